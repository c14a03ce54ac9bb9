"""Quality-matched replay: new images as the memory stores them.

Old classes are replayed compressed. If new classes are seen as originals, a network can tell old
from new by the artefacts of the codec, which says nothing about test images. So an image of a new
class may be shown as a compressed copy, as the memory would store it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.seeds import named_seed
from mrdc._utils.threads import ordered, workers
from mrdc.data.examples import Companions, Examples, Places
from mrdc.data.photo import Photo
from mrdc.distributed.group import world
from mrdc.memory.replay import ReplayMemory


@dataclass(frozen=True)
class Copies:
    """Compressed copies of some examples, each shown instead of its original at random.

    A feed keeps the copies after the examples, in this order.
    """

    probability: float  # of an image in an epoch
    places: Places  # positions of the examples that have a copy
    examples: Examples  # the copies

    def shown(self, count: int, seed: int, epoch: int) -> Places:
        """Where the image of each of `count` examples is in an epoch: its own place, or its copy's.

        A generator of its own draws one number per example, so that all other draws are as
        without copies, and a copy shown with some probability is also shown with any higher one.
        """
        rng = np.random.default_rng((named_seed(seed, "match"), epoch))
        return self._found(count, rng.random(count)[self.places] < self.probability)

    def all(self, count: int) -> Places:
        """Where the copy of each of `count` examples is; its own place if it has none."""
        return self._found(count, np.ones(len(self.places), bool))

    def _found(self, count: int, drawn: NDArray[np.bool_]) -> Places:
        found = np.arange(count)
        found[self.places[drawn]] = count + np.flatnonzero(drawn)
        return found


def shown(copies: Copies | None, count: int, seed: int, epoch: int) -> Places:
    """`Copies.shown`; without copies, every example at its own place."""
    return np.arange(count) if copies is None else copies.shown(count, seed, epoch)


def beside(companions: Companions | None, copies: Copies | None, places: Places) -> Places:
    """Where the image of each example is when it is a companion, from where it is in a batch."""
    if companions is None or not companions.copies or copies is None:
        return places
    return copies.all(len(places))


def unmatched(train: Any) -> dict[str, Any]:
    """Training settings that the first phase depends on: it is not matched, so all but `match`."""
    return {name: value for name, value in asdict(train).items() if name != "match"}


def with_copies(examples: Examples, copies: Copies | None) -> Examples:
    """Examples, and their copies after them."""
    return examples if copies is None else examples + copies.examples


def copies_of(
    examples: Examples,
    places: Places,
    memory: ReplayMemory,
    probability: float,
    threads: int | None = None,
) -> Copies | None:
    """Copies of the examples at these places, encoded like the newest images of a memory.

    None if no example would change: nothing is stored yet, or it is stored as it is.
    """
    if not (len(places) and len(memory)) or memory.codec.name == "original":
        return None
    chosen = examples.pick(places.tolist())
    photos = compressed(chosen.photos, memory, threads)
    return Copies(probability, places, Examples(photos, chosen.labels))


def compressed(
    photos: Sequence[Photo], memory: ReplayMemory, threads: int | None = None
) -> tuple[Photo, ...]:
    """Photos as a memory stores them; every process encodes a part, and all get all of them."""
    with workers(threads) as pool:
        own = [photo for _, photo in ordered(pool, memory.as_stored, world().part(photos))]
    return tuple(world().join(own))
