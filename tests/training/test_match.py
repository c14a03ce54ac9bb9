"""Quality-matched replay: which images are shown as copies, and how copies are made."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.codec.jpeg_progressive import LEAST_SCANS, cut
from mrdc.codec.scaled import scaled
from mrdc.data.examples import Companions, Examples, Places
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from mrdc.training.feed import Resident, open_feed
from mrdc.training.match import Copies, copies_of
from mrdc.training.settings import LearnSettings, MemorySettings, TrainSettings
from tests.conftest import jpeg, pixels
from tests.helpers import (
    KilledError,
    Remembers,
    Run,
    changed,
    numbers,
    small_run,
    small_stream,
    state_of,
    stored,
)
from tests.training.feeds import CPU, PLACES, equal, everything, examples, plain, varied

RESIDENT = pytest.mark.parametrize("resident", PLACES)
SIDES = [(12, 12), (9, 20), (30, 14)] * 8


def grey_copies(probability: float, places: Places) -> Copies:
    """Copies that are brighter by 100 than `plain` images."""
    images = [np.full((*SIDES[place], 3), 100 + place, np.uint8) for place in places]
    return Copies(probability, places, examples(images))


# The draw


@given(
    count=st.integers(1, 300),
    seed=st.integers(0, 2**31 - 1),
    low=st.floats(0, 1),
    high=st.floats(0, 1),
)
def test_only_examples_with_copies_are_replaced(
    count: int, seed: int, low: float, high: float
) -> None:
    """None at 0, all at 1; a higher probability adds to what a lower one replaces."""
    places = np.flatnonzero(np.arange(count) % 3 != 1)
    low, high = sorted((low, high))

    def replaced(probability: float, epoch: int = 0) -> set[int]:
        found = Copies(probability, places, Examples()).shown(count, seed, epoch)
        own = np.arange(count)
        moved = found != own
        assert (found[moved] - count == np.searchsorted(places, own[moved])).all()
        return set(own[moved].tolist())

    assert replaced(0.0) == set() and replaced(1.0) == set(places.tolist())
    assert replaced(low) <= replaced(high) <= set(places.tolist())


def test_every_image_and_epoch_is_drawn_on_its_own() -> None:
    """Shares by image and by epoch, within five standard deviations of the probability."""
    copies = Copies(0.3, np.arange(400), Examples())
    rows = np.stack([copies.shown(400, 5, epoch) >= 400 for epoch in range(400)])
    bound = 5 * np.sqrt(0.3 * 0.7 / 400)
    assert np.abs(rows.mean(0) - 0.3).max() < bound
    assert np.abs(rows.mean(1) - 0.3).max() < bound
    assert np.abs(np.corrcoef(rows) - np.eye(400)).max() < 5.5 / np.sqrt(400)


# Feeds


@RESIDENT
def test_feeds_show_the_copies_that_were_drawn(resident: Resident) -> None:
    """The grey says whether an image or its copy is shown; another epoch shows others."""
    copies = grey_copies(0.5, np.arange(4, 24))
    feed = open_feed(plain(SIDES), 8, CPU, resident, threads=2, copies=copies)
    assert len(feed) == 24
    found = []
    for epoch in (0, 1):
        images, labels = everything(feed, 3, epoch)
        bright = 100 * (torch.from_numpy(copies.shown(24, 3, epoch)) >= 24)
        assert sorted(labels.tolist()) == list(range(24))
        means = images.float().mean((1, 2, 3))
        assert (means - labels - bright[labels]).abs().max() < 0.1
        found.append(bright)
    assert 0 < found[0].sum() < 20 * 100 and not torch.equal(*found)


@RESIDENT
def test_all_other_draws_are_as_without_copies(resident: Resident) -> None:
    """Copies identical to their originals change nothing: order, crops and companions."""
    source = varied(12)

    def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        drawn = rng.integers(12, size=3)
        return drawn, drawn

    more = Companions(choose, 3, cropped=True)
    copies = Copies(0.5, np.arange(12), source)
    with_copies, without = (
        everything(open_feed(source, 8, CPU, resident, 2, companions=more, copies=one))
        for one in (copies, None)
    )
    assert equal(with_copies, without)


@RESIDENT
def test_companions_look_as_in_their_own_batch(resident: Resident) -> None:
    """Both originals and copies; so do the views before an epoch."""
    seen: list[Tensor] = []

    def match(views: Iterator[Tensor]) -> None:
        seen.append(torch.cat(list(views)).float())

    everyone = Companions(lambda batch, rng: (np.arange(24), np.arange(24)), 0, True, match)
    copies = grey_copies(0.5, np.arange(24))
    feed = open_feed(plain(SIDES), 8, CPU, resident, 2, companions=everyone, copies=copies)
    batches = list(feed.epoch(7, 0, 0))
    x, y = (torch.cat(part) for part in list(zip(*batches, strict=True))[:2])
    own = x[y.argsort()].float()
    for views in (*seen, *(more.float() for _, _, more, _ in batches)):
        torch.testing.assert_close(views, own, rtol=0, atol=1e-3)


# Copies


@pytest.mark.parametrize(
    ("codec", "scale", "quality"), [("jpeg", 1, 10), ("jpeg", 0.5, 25), ("webp", 1, 50)]
)
def test_copies_are_what_a_memory_would_store(codec: str, scale: float, quality: int) -> None:
    """Pixel for pixel, from files and from pixels; a JPEG that is small already stays as it is."""
    small = jpeg(3, 5)
    source = examples([jpeg(0, 95, 41, 60), pixels(1, 33, 20), small])
    memory = ReplayMemory("1MB", scaled(CODECS[codec], scale), quality)
    memory.add({0: source.photos[:1], 1: source.photos[1:2], 2: source.photos[2:]})
    copies = copies_of(source, np.array([0, 1, 2]), memory, 0.5, threads=2)
    assert copies is not None and copies.probability == 0.5
    assert copies.examples.labels == source.labels
    for place, wanted in enumerate(memory.examples().photos):
        assert np.array_equal(copies.examples.photos[place].pixels(), wanted.pixels())
    same = np.array_equal(copies.examples[2][0], source[2][0])
    assert same == bool(memory.kept_sources()) == (codec == "jpeg")


def test_copies_are_as_faded_as_the_memory() -> None:
    """All images of the memory are down to their first five scans, and so are copies of others."""
    source = examples([pixels(seed, 64, 64) for seed in range(10)])
    memory = ReplayMemory(10**6, "jpeg-progressive", 75, fade=True)
    memory.add({0: source.photos[:9]})
    memory.rebudget(Budget(memory.nbytes * 0.4, "originals", 1.0))
    assert set(memory.scans()) == {LEAST_SCANS}
    copies = copies_of(source, np.arange(10), memory, 1.0)
    assert copies is not None
    for photo, wanted in zip(copies.examples.photos, memory.examples().photos, strict=False):
        assert np.array_equal(photo.pixels(), wanted.pixels())
    whole = CODECS["jpeg-progressive"].encode(source.photos[9].pixels(), 75)
    assert np.array_equal(copies.examples.photos[9].pixels(), decode(cut(whole, LEAST_SCANS)))


def test_nothing_is_copied_if_no_image_would_change() -> None:
    source, some = varied(3), np.array([0, 2])
    memory = ReplayMemory("1MB", "jpeg", 50)
    assert copies_of(source, some, memory, 0.5) is None  # nothing is stored
    memory.add({0: source.photos})
    assert copies_of(source, some, memory, 0.5) is not None
    assert copies_of(source, some[:0], memory, 0.5) is None
    memory.codec, memory.quality = CODECS["original"], None
    assert copies_of(source, some, memory, 0.5) is None


# Runs


def running(match: float, method: str = "lucir", *options: str, **settings: Any) -> Run:
    given: dict[str, Any] = {"memory": {"quality": "10"}} | settings
    train = TrainSettings(epochs=2, batch_size=16, match=match)
    return small_run(method, *options, train=train, stream=small_stream(2, 2), **given)


@cache
def matched() -> Run:
    run = running(0.5)
    run.run()
    return run


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Copies | None]:
    """The copies of every opened feed."""
    found: list[Copies | None] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        found.append(arguments[-1])
        return open_feed(*arguments, **named)

    monkeypatch.setattr("mrdc.training.learner.open_feed", watched)
    return found


@pytest.mark.usefixtures("quick")
def test_runs_copy_the_new_images_of_later_phases(shown: list[Copies | None]) -> None:
    """In the main stage; later stages train on the memory. The first phase stays as it is."""
    without, run = (
        running(match, "lucir", "balance=all", "balance_epochs=1") for match in (0.0, 0.5)
    )
    without.learn(0), run.learn(0)
    assert changed(run.learner.model, state_of(without.learner.model)) == set()
    without.learn(1), run.learn(1)
    assert changed(run.learner.model, state_of(without.learner.model))
    assert [one is not None for one in shown] == [False] * 4 + [True, False]
    copies = shown[4]
    assert copies is not None
    assert set(copies.examples.labels) == {2, 3} and len(copies.places) == 12


@pytest.mark.usefixtures("quick")
def test_runs_without_compressed_images_copy_nothing(shown: list[Copies | None]) -> None:
    running(0.5, memory={"quality": "original"}).learn(0, 1)
    running(0.5, "finetune").learn(0, 1)
    assert shown == [None] * 4


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("stop", [(0, None), (1, 1)])
def test_a_matched_run_resumes(stop: tuple[int, int | None]) -> None:
    """Between phases and inside one, to the bit; with streamed images and other threads, too."""
    keeper = Remembers(stop=stop)
    with pytest.raises(KilledError):
        running(0.5, keeper=keeper).run()
    again = running(0.5, keeper=keeper, resident="stream", threads=1)
    again.run()
    assert changed(again.learner.model, state_of(matched().learner.model)) == set()
    assert stored(again.memory) == stored(matched().memory)
    assert numbers(again.results) == numbers(matched().results)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", ["bic", "lucir-dde", "lucir-aanets", "tpcil"])
def test_methods_that_change_their_examples_can_be_matched(
    method: str, shown: list[Copies | None]
) -> None:
    """BiC sets images aside, others bring companions; every copy belongs to its image."""
    run = running(1.0, method).learn(0, 1)
    copies = next(one for one in shown if one is not None)
    lesson = run.learner.lesson
    assert lesson is not None
    for place, copy in zip(copies.places, copies.examples.photos, strict=True):
        assert lesson.train.photos[place].id == copy.id and lesson.train.labels[place] >= 2


@pytest.mark.parametrize(
    ("match", "limits"), [(0.0, (0.95, 1.03)), (0.5, (0.95, 1.03)), (1.0, (0.5, 1.5))]
)
def test_a_matched_run_may_compress_more(match: float, limits: tuple[float, float]) -> None:
    """Wider limits of r, and quality 5, unless they are given; those of R_q are the paper's."""
    train = TrainSettings(epochs=1, match=match)
    by_volume = {"criterion": "volume-ratio"}
    usual = (5, 10, 25, 50, 75, 90) if match == 1 else (10, 25, 50, 75, 90)
    for memory, expected in (
        ({}, limits),
        ({"epsilon": 0.25}, (0.75, 1.25)),
        (by_volume, (0.5, 1.5)),
    ):
        auto = {"quality": "auto", "qualities": None}
        run = small_run("lucir", train=train, memory=auto | memory)
        assert run.learner.exemplars is not None
        settings = run.learner.exemplars.settings
        assert (settings.limits, settings.tried(CODECS["jpeg"])) == (expected, usual)
    given = LearnSettings(train=train, memory=MemorySettings(qualities=(30, 60)))
    assert given.choice.tried(CODECS["avif"]) == (30, 60)
