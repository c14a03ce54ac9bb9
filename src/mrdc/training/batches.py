"""The interface of a feed, and the cutting of an epoch into batches."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from mrdc._utils.errors import TrainingError
from mrdc.data.examples import Companions, Places
from mrdc.distributed.group import world


class Feed(Protocol):
    """Training views of some examples; with several processes, this one's part of each batch."""

    def __len__(self) -> int: ...

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Shuffled crops (n, 3, size, size) from 0 to 255, labels, and companions if any."""
        ...


class ReportingFeed(Feed, Protocol):
    """A feed that describes itself."""

    @property
    def about(self) -> dict[str, Any]:
        """Where images are, and who decodes them."""
        ...


def in_batches(order: Places, batch_size: int) -> list[Places]:
    """Cut an order into batches of at least two images and a quarter of the batch size.

    Each process gets at least one image of every batch.

    A shorter rest joins the batch before it: batch norms over a few images spoil an epoch, and
    over one they fail. So a single image is shown twice.
    """
    if len(order) == 1:
        return [np.repeat(order, 2)]
    cuts = list(range(batch_size, len(order), batch_size))
    if cuts and len(order) - cuts[-1] < max(2, batch_size / 4, world().size):
        cuts.pop()
    return np.split(order, cuts)


def own_parts(batches: list[Places]) -> list[Places]:
    """This process's part of each batch."""
    if (fewest := min(map(len, batches))) < (ranks := world().size):
        raise TrainingError(
            f"a batch has {fewest} images, too few for {ranks} processes: run with fewer processes"
        )
    return [world().part(batch) for batch in batches]


def chosen(
    companions: Companions | None, batches: list[Places], rng: np.random.Generator
) -> tuple[list[Places], list[Places]]:
    """Companions of each batch and their numbers; empty without companions."""
    none = (np.empty(0, np.intp),) * 2
    pairs = [companions.choose(batch, rng) if companions else none for batch in batches]
    return [places for places, _ in pairs], [numbers for _, numbers in pairs]
