"""Runs of detectors: phases, resuming, replay and reports."""

import math
from dataclasses import dataclass, field, replace
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
from mrdc.detection.feed import SceneFeed
from mrdc.detection.learner import NEARLY_SINGULAR, dependence, run_scenes
from mrdc.detection.methods import UnbiasedTeacher
from mrdc.detection.settings import DetectSettings, StepSettings
from mrdc.detection.stream import SceneStream, make_scenes
from mrdc.nn.checkpoint import Checkpoint
from mrdc.training.phases import Session
from mrdc.training.results import PhaseResult
from mrdc.training.resume import Keeper
from tests.helpers import KilledError, Remembers
from tests.scenes import CPU, SMALL, SceneRun, scenes, small, splits, stream, tiny

pytestmark = pytest.mark.usefixtures("seeded")

METHODS = pytest.mark.parametrize("method", ["supervised", "pseudo-labels", "unbiased-teacher"])
OPTIONS = {"pseudo-labels": ("threshold=0.0",), "unbiased-teacher": ("threshold=0.0", "carry=1")}


@pytest.fixture(autouse=True)
def tiny_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "build_detector", tiny)


@dataclass
class Notes(Remembers):
    """Also records the kinds of events."""

    kinds: list[str] = field(default_factory=list)

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        self.kinds.append(kind)

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.saved[-1].checkpoint.tensors["model"]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def one_phase(settings: DetectSettings, scenes: SceneStream | None = None) -> PhaseResult:
    """The result of the first phase."""
    (result,) = run_scenes(settings, scenes or stream(settings)).phases
    return result


@METHODS
def test_resumes_in_the_middle_of_a_phase(method: str) -> None:
    """Weights, memory and numbers equal those of an uninterrupted run."""
    settings = small(method, options=OPTIONS.get(method, ()))
    whole, broken = Notes(), Notes(stop=(1, 4))
    expected = run_scenes(settings, stream(), whole)
    with pytest.raises(KilledError):
        run_scenes(settings, stream(), broken)
    result = run_scenes(settings, stream(), broken)
    times: dict[str, Any] = {"seconds": 0.0, "parts": {}, "first_phase_seconds": None}
    assert [replace(p, **times) for p in result.phases] == [
        replace(p, **times) for p in expected.phases
    ]
    assert same(whole.weights, broken.weights)


@pytest.mark.parametrize("carry", [0, 1])
def test_a_teacher_is_new_or_carried_over(carry: int) -> None:
    """A new one copies the student after burn-in; one carried over moves from the first step."""
    options = ("threshold=0.9", "burn_in=0.5", f"carry={carry}")
    settings, keeper = small("unbiased-teacher", options=options), Notes()
    run = SceneRun(settings, keeper).learn(0)
    method = run.learner.method
    assert isinstance(method, UnbiasedTeacher)
    assert method.first == settings.train.steps // 2
    before = method.teacher
    assert before is not None
    again = SceneRun(settings).learner
    again.restore(0, keeper.saved[-1].checkpoint)
    kept = again.method.answers(again.model).state_dict()
    assert same(before.state_dict(), kept)
    run.learn(1)
    assert (method.teacher is before) is bool(carry)
    assert method.first == (0 if carry else settings.train.steps // 2)


@METHODS
def test_boxes_of_unlabelled_images_do_not_change_training(method: str) -> None:
    """They only affect the report."""
    settings = small(method, options=OPTIONS.get(method, ()), phases=1)
    real = stream(settings)
    assert real.truth is not None
    moved = tuple(tuple(np.flip(boxes, 0) * 0 for boxes in part) for part in real.truth)
    first, second = Notes(), Notes()
    run_scenes(settings, real, first)
    run_scenes(settings, replace(real, truth=moved), second)
    assert same(first.weights, second.weights)


def test_the_memory_holds_a_prefix_with_its_boxes() -> None:
    """Of one random order; a lower quality holds everything that a higher one does, and more."""
    few, many = (
        SceneRun(replace(SMALL, memory=replace(SMALL.memory, quality=quality))).learn(0, 1).memory
        for quality in ("90", "30")
    )
    assert few.nbytes <= few.budget_bytes and many.nbytes <= many.budget_bytes
    boxes = stream().train.by_id()
    for phase in range(2):
        names = many.sources(phase)
        assert names[: len(few.sources(phase))] == few.sources(phase)
        assert len(names) > len(few.sources(phase))
        assert all(np.array_equal(many.boxes[name], boxes[name]) for name in names)


@pytest.mark.parametrize("replay", ["none", "memory", "joint"])
def test_what_is_replayed_is_trained_on(replay: Any) -> None:
    """Nothing, the memory, or all labelled scenes so far."""
    run = SceneRun(replace(SMALL, replay=replay)).learn(0)
    more = {"none": 0, "joint": 6, "memory": len(run.memory) if replay == "memory" else 0}[replay]
    assert len(run.learner._feed(1).labelled) == 6 + more
    assert (more > 0) is (replay != "none")


def test_the_result_of_a_phase() -> None:
    """AP, all criteria over the phase as one class, pseudo labels, the smallest eigenvalue."""
    settings = small("unbiased-teacher", options=("threshold=0.0",), phases=1)
    keeper = Notes()
    (result,) = run_scenes(settings, stream(settings), keeper).phases
    first, *others = result.candidates
    assert first["volume_ratio"] == first["ratio_per_image"] == 1 and first["discrepancy"] > 0
    assert all(row["ratio_per_image"] != 1 and row["discrepancy"] > 0 for row in others)
    assert {"pseudo_labels_per_image", "precision", "recall"} <= result.report.keys()
    assert result.report["smallest_eigenvalue"] > 0
    assert 0 <= result.accuracy <= 100 and set(result.by_class or {}) == {"dark", "bright"}
    assert result.accuracy == result.ap and 0 <= result.report["student_ap"] <= 100
    assert keeper.kinds == ["phase_start", *["epoch"] * 6, "phase"]
    state = keeper.saved[0].checkpoint.tensors["method"]
    assert any(name.startswith("teacher.") for name in state)


@pytest.mark.parametrize("threshold", [0.0, 0.999])
def test_pseudo_labels_are_counted_by_class(threshold: float) -> None:
    settings = small("pseudo-labels", options=(f"threshold={threshold}",), phases=1)
    report = one_phase(settings).report
    assert set(report["by_class"]) == {"dark", "bright"}
    assert sum(report["by_class"].values()) == report["pseudo_labels"]
    assert report["labels_per_image"] == report["pseudo_labels"] / settings.unlabelled
    assert (report["pseudo_labels"] > 0) is (threshold == 0)


def test_warns_of_a_silent_teacher_and_of_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "NEARLY_SINGULAR", math.inf)
    report = one_phase(small("unbiased-teacher", options=("threshold=0.99",), phases=1)).report
    assert report["pseudo_labels_per_image"] == 0
    assert report["warning"].startswith("the teacher gave no pseudo label")
    assert "near-dup" in report["warning"]


def test_learns_to_detect() -> None:
    """Far better than an untrained detector."""
    train = StepSettings(steps=150, lr=0.02, batch_size=6, warmup=0.1)
    settings = replace(SMALL, phases=1, labelled=18, unlabelled=0, train=train, replay="none")
    made = make_scenes(splits(), 1, 18, 0, 0)
    found = list(detect(tiny(classes=2).eval(), Album(made.test.photos, CPU, 2), 4))
    before = average_precision(found, made.test)["ap50"]
    assert (one_phase(settings, made).ap50 or 0) > before + 40


def test_labelled_images_of_a_step_depend_on_its_number_only() -> None:
    """A chunk drawn alone equals that part of the whole sequence."""
    found, clock = scenes(range(5)), Clock()
    album = Album(found.photos, CPU, 1)
    feed = SceneFeed(album, found.boxes, album, lambda steps: [()], SMALL, clock)
    parts = [list(feed.epoch(3, 7, chunk)) for chunk in range(6)]
    assert [step for part in parts for _, _, step, _, _ in part] == list(range(6))
    assert clock.seconds.keys() == {"decode"}  # waiting for images does not count as training
    (again,) = list(feed.epoch(3, 7, 4))
    assert torch.equal(again[1], parts[4][0][1]) and len(feed) == 3
    for shot, place in zip(again[0], again[1].tolist(), strict=True):
        assert np.array_equal(shot.boxes.numpy(), found.boxes[place])


def test_new_scenes_are_matched_to_the_memory() -> None:
    """The six new scenes of the second phase have copies, with boxes; stored ones have none."""
    memory, train = replace(SMALL.memory, quality="10"), replace(SMALL.train, steps=40, match=0.5)
    run = SceneRun(replace(SMALL, memory=memory, train=train))
    assert run.learner._feed(0).copies is None
    feed, count = run.learn(0).learner._feed(1), 6 + len(run.memory)
    assert len(feed.boxes) == count and len(feed.labelled) == count + 6
    looks: list[set[bytes]] = [set() for _ in range(count)]
    for step in (step for chunk in range(40) for step in feed.epoch(3, 7, chunk)):
        for shot, place in zip(*step[:2], strict=True):
            assert np.array_equal(shot.boxes.numpy(), feed.boxes[place])
            looks[place].add(shot.image.numpy().tobytes())
    expected = [[place, count + place] if place < 6 else [place] for place in range(count)]
    for found, indices in zip(looks, expected, strict=True):
        assert found == {one.numpy().tobytes() for one in next(feed.labelled.groups([indices]))}


def test_unlabelled_images_come_from_the_current_pool() -> None:
    """Nothing at first, then full batches of the images in it, again and again."""
    found = scenes(range(5))
    album = Album(found.photos, CPU, 1)

    def pools(steps: range) -> list[tuple[int, ...]]:
        return [() if step < 2 else (1, 3) for step in steps]

    feed = SceneFeed(album, found.boxes, album, pools, SMALL, Clock())
    steps = [step for chunk in range(6) for step in feed.epoch(3, 7, chunk)]
    size = SMALL.train.unlabelled_batch
    assert size > 0 and [len(places) for *_, places in steps] == [0, 0, *[size] * 4]
    assert {place for *_, places in steps for place in places} == {1, 3}
    for *_, images, places in steps:
        for image, place in zip(images, places, strict=True):
            assert torch.equal(image, next(album.groups([[place]]))[0])


def test_a_teacher_decodes_no_unlabelled_image_during_burn_in() -> None:
    """Burn-in ends inside the second chunk of three steps."""
    train = replace(SMALL.train, steps=300, unlabelled_batch=4)
    run = SceneRun(small("unbiased-teacher", options=("burn_in=0.0133",), train=train))
    run.learner.start(Session(0, Keeper()))
    feed = run.learner.feed
    assert feed is not None
    list(feed.epoch(3, 7, 0))
    assert not feed.unlabelled._kept
    counts = [len(places) for *_, places in feed.epoch(3, 7, 1)]
    assert counts == [0, 4, 4] and len(feed.unlabelled._kept) == 4


def test_duplicates_that_are_not_stored_do_not_count() -> None:
    """The eigenvalue covers the stored scenes."""
    settings = small("supervised", phases=1, memory=replace(SMALL.memory, budget="6/phase"))
    made = stream(settings)
    first, *others = made.train.photos
    copies = [Photo(photo.id, first.load) for photo in others[:4]]
    train = replace(made.train, photos=(first, *copies, *others[4:]))
    result = one_phase(settings, replace(made, train=train, labelled=(tuple(range(6)),)))
    assert result.memory.items == 2
    assert result.report["smallest_eigenvalue"] > NEARLY_SINGULAR


def test_the_most_similar_scenes_are_named() -> None:
    """Rows 1 and 3 are nearly equal; stored are 3, 0 and 1, in this order."""
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


def test_candidates_pay_for_boxes_if_the_whole_file_is_bounded() -> None:
    """A budget in bytes is for the whole file; candidates hold what is stored."""
    memory = replace(SMALL.memory, budget="20000", quality="original")
    settings = small("supervised", phases=1, memory=memory)
    many = np.tile(np.array([[1, 1, 9, 9, 0]], np.float32), (300, 1))
    made = stream(settings)
    train = replace(made.train, boxes=tuple(many for _ in made.train.boxes))
    result = one_phase(settings, replace(made, train=train))
    assert result.candidates[0]["quantity"] == result.memory.items < 6


def test_a_detector_of_another_version_is_refused() -> None:
    """In one line, not with the names of all its parts."""
    learner = SceneRun().learner
    state = {f"old.{name}": value for name, value in learner.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="resume with the version that started it"):
        learner.restore(0, Checkpoint(None, {"model": state}, {}))


def test_shapes_are_the_same_every_time() -> None:
    """Boxes lie inside the images."""
    made = shapes_splits()
    assert (len(made.train), len(made.test)) == (500, 100)
    pixels, boxes = scene(np.random.default_rng((5, 0)))
    again, same = scene(np.random.default_rng((5, 0)))
    assert np.array_equal(pixels, again) and np.array_equal(boxes, same)
    for one, (width, height) in zip(made.train.boxes, made.train.sides, strict=True):
        assert len(one) and one[:, :4].min() >= 0
        assert one[:, 2].max() <= width and one[:, 3].max() <= height
