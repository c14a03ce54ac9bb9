"""What a run stores: previews, ranks, budgets, and pixels stored instead of others."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from mrdc._utils.clock import Clock
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels, decode
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import embed
from mrdc.planning.selection import herding
from mrdc.training.exemplars import Exemplars
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests.conftest import CHEAP, jpeg

pytestmark = pytest.mark.usefixtures("seeded")


def stream(classes: int = 4, images: int = 8) -> Stream:
    """Two classes a phase, of small JPEG files with the same names in every class."""
    made = []
    for first in (0, 50):
        data = [[jpeg(100 * c + first + n, 95, 20, 24) for n in range(images)]
                for c in range(classes)]  # fmt: skip
        photos = tuple([Photo(str(n), partial(bytes, d)) for n, d in enumerate(of)] for of in data)
        sizes = tuple([len(d) for d in of_class] for of_class in data)
        made.append(ImageSet(tuple("abcdefgh"[:classes]), photos, sizes))
    return Stream(made[0], made[1], (2,) * (classes // 2))


def run_settings(**memory: Any) -> RunSettings:
    budget = MemorySettings(
        budget="6/class", **{"quality": "original", "candidates": (50,)} | memory
    )
    return RunSettings(
        "photos", method="lucir", network="resnet18-narrow", size=8, device="cpu", threads=2,
        memory=budget, train=TrainSettings(epochs=2, lr=0.01, batch_size=8),
    )  # fmt: skip


def exemplars(many: int = 4, **memory: Any) -> Exemplars:
    return Exemplars(run_settings(**memory), stream(many), lambda ids, ranking, label: ranking)


def held(memory: ReplayMemory) -> dict[tuple[int, str], bytes]:
    """Stored files by label and name."""
    names = [name for label in memory.labels for name in memory.sources(label)]
    keys = zip(memory.targets, names, strict=True)
    return {key: memory.encoded(place) for place, key in enumerate(keys)}


def flat(*colour: int) -> Pixels:
    return np.full((16, 16, 3), colour, np.uint8)


@pytest.mark.parametrize(
    ("quality", "after_preview", "after_store"), [("auto", 1, 1), ("dynamic", 1, 1), ("50", 0, 0)]
)
def test_a_preview_chooses_the_quality_where_none_is_chosen_yet(
    quality: str, after_preview: int, after_store: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a phase, so that what is stored is what was seen."""
    choices: list[int] = []
    real = Exemplars._choose

    def choose(self: Exemplars) -> None:
        choices.append(1)
        real(self)

    monkeypatch.setattr(Exemplars, "_choose", choose)
    made = exemplars(quality=quality, epsilon=1e9)
    assert made.quality == (50 if quality == "50" else None)
    seen = made.preview(0, CHEAP, Clock())
    assert (made.quality, seen.quality, len(choices)) == (50, 50, after_preview)
    assert len(made.memory) == 0
    made.store(0, CHEAP, Clock())
    assert (made.quality, made.memory.quality, len(choices)) == (50, 50, after_store)
    assert held(made.memory) == held(seen)
    assert [candidate.quality for candidate in made.candidates] == [None, 50]


def test_a_preview_keeps_a_choice_that_store_would_not_make() -> None:
    """After a preview under auto, another rule changes nothing any more."""
    made = exemplars(quality="auto", epsilon=1e9)
    made.preview(0, CHEAP, Clock())
    made.settings = run_settings(quality="auto", epsilon=1e-9)  # by which nothing passes
    made.store(0, CHEAP, Clock())
    assert (made.codec.name, made.quality) == ("jpeg", 50)


def test_a_preview_is_of_the_new_classes_alone() -> None:
    """Which will be stored, give or take one at the end; the memory stays as it is."""
    made = exemplars()
    made.store(0, CHEAP, Clock())
    before = held(made.memory)
    seen = made.preview(1, CHEAP, Clock())
    assert seen.labels == [2, 3]
    assert held(made.memory) == before
    made.store(1, CHEAP, Clock())
    assert made.memory.labels == [0, 1, 2, 3]
    for label in (2, 3):
        told, stored = seen.sources(label), made.memory.sources(label)
        both = min(len(told), len(stored))
        assert told[:both] == stored[:both] and abs(len(told) - len(stored)) <= 1
        assert all(held(seen)[label, n] == held(made.memory)[label, n] for n in told[:both])


@pytest.mark.parametrize("quality", ["90", "original"])
@pytest.mark.parametrize("phase", [0, 1])
def test_given_pixels_are_stored_instead(quality: str, phase: int) -> None:
    """Of that label and that name, and nothing else of the phase; older classes stay."""
    plain, other = exemplars(quality=quality), exemplars(quality=quality)
    for number in range(phase):
        plain.store(number, CHEAP, Clock())
        other.store(number, CHEAP, Clock())
    plain.store(phase, CHEAP, Clock())
    before = held(plain.memory)
    label = 2 * phase + 1
    first, second = (plain.memory.sources(n) for n in (label - 1, label))
    names = [name for name in second if name in first][:2]  # in both classes
    instead = {(label, name): flat(10 + 40 * n, 200, 90) for n, name in enumerate(names)}
    assert len(instead) == 2 < len(second)
    instead[label - 1, names[0]] = flat(5, 6, 7)
    other.store(phase, CHEAP, Clock(), instead)
    after = held(other.memory)
    for key, wanted in instead.items():
        stored = after[key]
        assert stored[:2] == b"\xff\xd8"
        assert np.abs(decode(stored).astype(int) - wanted).max() <= 3
        if quality == "original":
            assert stored == CODECS["jpeg"].encode(wanted, 95)
    older = {key: value for key, value in before.items() if key[0] < label - 1}
    assert {key: value for key, value in after.items() if key not in instead} == older
    assert other.memory.nbytes <= other.memory.budget_bytes


def test_a_budget_that_does_not_grow_is_shared_with_older_classes() -> None:
    """10 originals: all for the first two classes, half of them for the next two."""
    chosen = run_settings(accounting="file")
    chosen = replace(chosen, memory=replace(chosen.memory, budget="10 originals"))
    made = Exemplars(chosen, stream(), lambda ids, ranking, label: ranking)
    for phase, room in enumerate((10, 5)):
        seen = made.preview(phase, CHEAP, Clock())
        made.store(phase, CHEAP, Clock())
        assert abs(made.candidates[0].quantity - room) <= 1
        assert abs(len(seen) - room) <= 1


@pytest.mark.parametrize("pairing", ["paired", "independent"])
def test_ranks_are_those_of_originals_or_of_compressed_images(pairing: str) -> None:
    """As herding gives them, and the method turns them round; the best that fit are stored."""
    chosen = run_settings(pairing=pairing, quality="10")
    found = Exemplars(chosen, stream(2, 12), lambda ids, ranking, label: ranking[::-1])
    found.store(0, CHEAP, Clock())
    parted = False
    for label in (0, 1):
        photos = found.stream.train.photos[label]
        coded = ReplayMemory("1MB", "jpeg", 10)
        coded.add({0: photos})
        files = [Photo(str(n), partial(coded.encoded, n)) for n in range(12)]
        by_file, by_code = (herding(embed(of, CHEAP)[0], 12)[::-1] for of in (photos, files))
        parted |= by_file.tolist() != by_code.tolist()
        held = found.memory.sources(label)
        ranks = by_file if pairing == "paired" else by_code
        assert len(held) > 1 and held == [photos[n].id for n in ranks[: len(held)]]
    assert parted  # else there would be nothing to tell


@pytest.mark.parametrize("quality", ["90", "original"])
def test_given_pixels_are_charged_to_the_budget(quality: str) -> None:
    """Noise takes more bytes than a photo, so that fewer images are held, first ranks first."""
    plain, other = exemplars(quality=quality), exemplars(quality=quality)
    plain.store(0, CHEAP, Clock())
    keys = list(held(plain.memory))
    rng = np.random.default_rng(0)
    noise = {key: rng.integers(0, 256, (48, 48, 3), dtype=np.uint8) for key in keys}
    other.store(0, CHEAP, Clock(), noise)
    assert other.memory.nbytes <= other.memory.budget_bytes
    assert 2 <= len(other.memory) < len(plain.memory)
    for label in (0, 1):
        kept = other.memory.sources(label)
        assert kept == plain.memory.sources(label)[: len(kept)]
        assert all(decode(held(other.memory)[label, name]).shape == (48, 48, 3) for name in kept)
