"""Runs of detectors: phases, what is gone on with, what is replayed and reported."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mrdc.detection.learner
from mrdc._utils.clock import Clock
from mrdc._utils.errors import CheckpointError
from mrdc.data.photo import Photo
from mrdc.data.shapes import scene, shapes_splits
from mrdc.detection.album import Album
from mrdc.detection.evaluate import average_precision, detect
from mrdc.detection.learner import NEARLY_SINGULAR, SceneFeed, SceneRun, dependence, run_scenes
from mrdc.detection.methods import UnbiasedTeacher
from mrdc.detection.settings import StepSettings
from mrdc.detection.stream import make_scenes
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Checkpoint
from mrdc.training.resume import Keeper, Partial, Saved
from tests.scenes import CPU, SMALL, scenes, small, splits, stream, tiny

pytestmark = pytest.mark.usefixtures("seeded")

METHODS = pytest.mark.parametrize("method", ["supervised", "pseudo-labels", "unbiased-teacher"])
OPTIONS = {"pseudo-labels": ("threshold=0.0",), "unbiased-teacher": ("threshold=0.0", "carry=1")}


@pytest.fixture
def tiny_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "build_detector", tiny)


class KilledError(Exception):
    """The run is over before its time."""


class Remembers(Keeper):
    """Keeps copies in RAM; may stop a run once, after a chunk of a phase."""

    def __init__(self, stop: tuple[int, int] | None = None):
        self.stop, self.saved = stop, list[Saved]()
        self.partial: Partial | None = None
        self.kinds: list[str] = []

    def load(self) -> Saved | None:
        return self.saved[-1] if self.saved else None

    def save(self, saved: Saved) -> None:
        self.saved.append(replace(saved, checkpoint=copy.deepcopy(saved.checkpoint)))

    def load_partial(self, phase: int) -> Partial | None:
        return self.partial if self.partial and self.partial.phase == phase else None

    def save_partial(self, partial: Callable[[], Partial]) -> None:
        made = partial()
        self.partial = copy.deepcopy(made)
        if self.stop == (made.phase, made.epoch):
            self.stop = None
            raise KilledError

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        self.kinds.append(kind)


def weights(keeper: Remembers) -> dict[str, Tensor]:
    return keeper.saved[-1].checkpoint.tensors["model"]


def measured(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("seconds", "parts")
    return [{k: v for k, v in one.items() if k not in timed} for one in results]


@METHODS
@pytest.mark.usefixtures("tiny_detectors")
def test_goes_on_in_the_middle_of_a_phase(method: str) -> None:
    """To the same weights, memory and numbers as an unbroken run."""
    given_ = small(method, options=OPTIONS.get(method, ()))
    whole, broken = Remembers(), Remembers(stop=(1, 4))
    expected = run_scenes(given_, stream(), whole)
    with pytest.raises(KilledError):
        run_scenes(given_, stream(), broken)
    results = run_scenes(given_, stream(), broken)
    assert measured(results) == measured(expected)
    assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(whole).items())


@pytest.mark.parametrize("carry", [0, 1])
@pytest.mark.usefixtures("tiny_detectors")
def test_a_teacher_is_made_anew_or_goes_on(carry: int) -> None:
    """Anew: from the student, after the burn-in. Else it moves from the first step on."""
    given_ = small("unbiased-teacher", options=("threshold=0.9", "burn_in=0.5", f"carry={carry}"))
    keeper = Remembers()
    run = SceneRun(given_, stream(given_), keeper)
    learner = run.learner
    assert isinstance(learner, UnbiasedTeacher)
    run.learn(0)
    assert learner.first == given_.train.steps // 2
    before = learner.teacher
    assert before is not None
    again = SceneRun(given_, stream(given_), keeper)
    again.restore()
    there = again.learner.answers(again.model).state_dict()
    assert all(torch.equal(value, there[name]) for name, value in before.state_dict().items())
    run.learn(1)
    assert (learner.teacher is before) is bool(carry)
    assert learner.first == (0 if carry else given_.train.steps // 2)


@METHODS
@pytest.mark.usefixtures("tiny_detectors")
def test_boxes_of_unlabelled_images_decide_nothing(method: str) -> None:
    """With other boxes for them the weights are the same; only the report differs."""
    given_ = small(method, options=OPTIONS.get(method, ()), phases=1)
    real = stream(given_)
    assert real.truth is not None
    moved = tuple(tuple(np.flip(boxes, 0) * 0 for boxes in part) for part in real.truth)
    keepers = Remembers(), Remembers()
    run_scenes(given_, real, keepers[0])
    run_scenes(given_, replace(real, truth=moved), keepers[1])
    first, second = map(weights, keepers)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.usefixtures("tiny_detectors")
def test_the_memory_holds_a_prefix_with_its_boxes() -> None:
    """Of one random order, within its bytes; at a lower quality it holds all that a higher does."""
    kept: dict[str, ReplayMemory] = {}
    for quality in ("90", "30"):
        memory = replace(SMALL.memory, quality=quality)
        run = SceneRun(replace(SMALL, memory=memory), stream(), Keeper())
        run.learn(0)
        run.learn(1)
        assert run.memory is not None
        kept[quality] = run.memory
        assert run.memory.nbytes <= run.memory.budget_bytes
    many, few = kept["30"], kept["90"]
    for phase in range(2):
        names = many.sources(phase)
        assert names[: len(few.sources(phase))] == few.sources(phase)
        assert len(names) > len(few.sources(phase))
        boxes = {p.id: b for p, b in zip(stream().train.photos, stream().train.boxes, strict=True)}
        assert all(np.array_equal(many.boxes[name], boxes[name]) for name in names)


@pytest.mark.usefixtures("tiny_detectors")
def test_what_is_replayed_is_trained_on() -> None:
    """Nothing, the memory, or all labelled scenes so far."""
    counts = {}
    for replay in ("none", "memory", "joint"):
        run = SceneRun(replace(SMALL, replay=replay), stream(), Keeper())
        run.learn(0)
        held = 0 if run.memory is None else len(run.memory)
        run.phase = 1
        counts[replay] = len(run._feed(1).labelled), held
    assert counts["none"] == (6, 0)
    assert counts["joint"] == (12, 0)
    assert counts["memory"][0] == 6 + counts["memory"][1] > 6


@pytest.mark.usefixtures("tiny_detectors")
def test_a_phase_tells_what_it_measured() -> None:
    """AP, R_q of the originals 1, pseudo labels and their precision, the smallest eigenvalue."""
    given_ = small("unbiased-teacher", options=("threshold=0.0",), phases=1)
    keeper = Remembers()
    (result,) = run_scenes(given_, stream(given_), keeper)
    assert result["candidates"][0]["volume_ratio"] == 1
    assert {"pseudo_labels_per_image", "precision", "recall"} <= result["report"].keys()
    assert result["report"]["smallest_eigenvalue"] > 0
    assert 0 <= result["ap"] <= 100 and set(result["by_class"]) == {"dark", "bright"}
    assert keeper.kinds[0] == "phase_start" and keeper.kinds[-1] == "phase"
    assert keeper.kinds.count("epoch") == 6
    assert "teacher" in keeper.saved[0].checkpoint.tensors
    assert 0 <= result["report"]["student_ap"] <= 100


@pytest.mark.parametrize("threshold", [0.0, 0.999])
@pytest.mark.usefixtures("tiny_detectors")
def test_pseudo_labels_are_counted_by_class(threshold: float) -> None:
    given_ = small("pseudo-labels", options=(f"threshold={threshold}",), phases=1)
    (result,) = run_scenes(given_, stream(given_))
    report = result["report"]
    assert set(report["by_class"]) == {"dark", "bright"}
    assert sum(report["by_class"].values()) == report["pseudo_labels"]
    assert report["labels_per_image"] == report["pseudo_labels"] / given_.unlabelled
    assert (report["pseudo_labels"] > 0) is (threshold == 0)


@pytest.mark.usefixtures("tiny_detectors")
def test_a_silent_teacher_and_duplicates_are_both_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "NEARLY_SINGULAR", math.inf)
    given_ = small("unbiased-teacher", options=("threshold=0.99",), phases=1)
    (result,) = run_scenes(given_, stream(given_))
    assert result["report"]["pseudo_labels_per_image"] == 0
    warning = result["report"]["warning"]
    assert warning.startswith("the teacher gave no pseudo label") and "near-dup" in warning


@pytest.mark.usefixtures("tiny_detectors")
def test_learns_to_detect() -> None:
    """Well above a detector that has learned nothing."""
    train = StepSettings(steps=250, lr=0.02, batch_size=6, warmup=0.1)
    given_ = replace(SMALL, phases=1, labelled=18, unlabelled=0, train=train, replay="none")
    made = make_scenes(splits(), 1, 18, 0, 0)
    model = tiny(classes=2).eval()
    found = list(detect(model, Album(made.test.photos, CPU, 2), 4))
    before = average_precision(found, made.test)["ap50"]
    (result,) = run_scenes(given_, made)
    assert result["ap50"] > before + 40


def test_the_feed_depends_on_the_step_alone() -> None:
    """A chunk drawn by itself is that of the whole row."""
    found = scenes(range(5))
    clock = Clock()
    album = Album(found.photos, CPU, 1)
    feed = SceneFeed(album, found.boxes, album, lambda step: (), SMALL, clock)
    parts = [list(feed.epoch(3, 7, chunk)) for chunk in range(6)]
    assert [step for part in parts for _, _, step, _, _ in part] == list(range(6))
    assert clock.seconds.keys() == {"decode"}  # waiting for images is no training
    (again,) = list(feed.epoch(3, 7, 4))
    assert torch.equal(again[1], parts[4][0][1]) and len(feed) == 3
    for shot, place in zip(again[0], again[1].tolist(), strict=True):
        assert np.array_equal(shot.boxes.numpy(), found.boxes[place])


def test_unlabelled_images_are_drawn_from_the_pool_of_the_moment() -> None:
    """None at first, then full batches of those in it, again and again."""
    found = scenes(range(5))
    album = Album(found.photos, CPU, 1)

    def pool(step: int) -> tuple[int, ...]:
        return () if step < 2 else (1, 3)

    feed = SceneFeed(album, found.boxes, album, pool, SMALL, Clock())
    steps = [step for chunk in range(6) for step in feed.epoch(3, 7, chunk)]
    size = SMALL.train.unlabelled_batch
    assert size > 0 and [len(places) for *_, places in steps] == [0, 0, *[size] * 4]
    assert {place for *_, places in steps for place in places} == {1, 3}
    for *_, images, places in steps:
        for image, place in zip(images, places, strict=True):
            assert torch.equal(image, next(album.groups([[place]]))[0])


@pytest.mark.usefixtures("tiny_detectors")
def test_duplicates_that_are_not_stored_make_no_eigenvalue_small() -> None:
    """The eigenvalue is that of what is stored."""
    memory = replace(SMALL.memory, budget="6/phase")
    given_ = small("supervised", phases=1, memory=memory)
    made = stream(given_)
    first, *others = made.train.photos
    copies = [Photo(photo.id, first.load) for photo in others[:4]]
    train = replace(made.train, photos=(first, *copies, *others[4:]))
    (result,) = run_scenes(given_, replace(made, train=train, labelled=(tuple(range(6)),)))
    assert result["memory"]["items"] == 2
    assert result["report"]["smallest_eigenvalue"] > NEARLY_SINGULAR


def test_scenes_that_are_most_alike_are_named() -> None:
    """Rows 1 and 3 are nearly one; stored are 3, 0 and 1, in this order."""
    names = ["a", "b", "c", "d"]
    rows = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 2, 1e-3]])
    exemplars: Any = SimpleNamespace(
        memory=SimpleNamespace(sources=lambda phase: ["d", "a", "b"]),
        stream=SimpleNamespace(train=SimpleNamespace(photos=[[Photo(n, bytes) for n in names]])),
        features=[rows],
    )
    smallest, alike = dependence(exemplars, 0)
    assert smallest == pytest.approx(1 - 1 / math.hypot(1, 5e-4), rel=1e-6)
    assert alike == ["d", "b"]


@pytest.mark.usefixtures("tiny_detectors")
def test_candidates_pay_for_boxes_where_the_file_is_bounded() -> None:
    """A budget in bytes is for all of the file; what is chosen is what is stored."""
    memory = replace(SMALL.memory, budget="20000", quality="original")
    given_ = small("supervised", phases=1, memory=memory)
    many = np.tile(np.array([[1, 1, 9, 9, 0]], np.float32), (300, 1))
    made = stream(given_)
    train = replace(made.train, boxes=tuple(many for _ in made.train.boxes))
    (result,) = run_scenes(given_, replace(made, train=train))
    assert result["candidates"][0]["quantity"] == result["memory"]["items"] < 6


@pytest.mark.usefixtures("tiny_detectors")
def test_a_detector_of_another_version_is_refused() -> None:
    """In one line, not with the names of all its parts."""
    run = SceneRun(SMALL, stream(), Keeper())
    state = {f"old.{name}": value for name, value in run.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="go on with the version that began it"):
        run._take(Checkpoint(None, {"model": state}, {}))


def test_shapes_are_the_same_every_time() -> None:
    """Boxes lie inside, do not overlap, and enclose what they name."""
    made = shapes_splits()
    assert (len(made.train), len(made.test)) == (500, 100)
    pixels, boxes = scene(np.random.default_rng((5, 0)))
    again, same = scene(np.random.default_rng((5, 0)))
    assert np.array_equal(pixels, again) and np.array_equal(boxes, same)
    for one, (width, height) in zip(made.train.boxes, made.train.sides, strict=True):
        assert len(one) and one[:, :4].min() >= 0
        assert one[:, 2].max() <= width and one[:, 3].max() <= height
