"""Properties of every registered method, on a stream that a small network learns in seconds."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mrdc.codec import CODECS
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.methods import METHODS, Lesson, TrainSettings
from mrdc.methods.options import make_method
from mrdc.nn.checkpoint import WIDTHS
from mrdc.nn.heads import Split
from mrdc.training.classes import ClassLearner, learn_classes
from mrdc.training.results import PhaseResult
from mrdc.training.settings import LearnSettings, MemorySettings
from tests.helpers import KilledError, Remembers, Run, stored

COLOURS = ((220, 40, 40), (40, 220, 40), (40, 40, 220), (220, 220, 40), (220, 40, 220))
SIZES = (2, 1, 2)  # three phases, one of a single class
EPOCHS = 4
QUICK = {
    "podnet": ("finetune_epochs=2",),
    "lucir": ("balance=all", "balance_epochs=2"),
    "lucir-aanets": (),
    "podnet-aanets": ("finetune_epochs=2",),
    "lucir-dde": ("neighbours=2", "balance=all", "balance_epochs=2"),
    "podnet-dde": ("neighbours=2", "finetune_epochs=2"),
    "mnemonics": ("pixel_lr=10",),
    "tpcil": ("vertices=4",),
}
LATER_STAGES = tuple((name, EPOCHS) for name in ("bic", *QUICK))  # after the last epoch
EVERY = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True, scope="module")
def narrow_and_single_threaded() -> Iterator[None]:
    """A second thread gains nothing for tiny networks, and waits long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WIDTHS, "resnet18-narrow", 4)
        yield
    torch.set_num_threads(before)


def noisy(colour: tuple[int, int, int], rng: np.random.Generator) -> bytes:
    """A noisy image of about one colour, as a JPEG file."""
    flat = np.array(colour) + rng.normal(0, 20, 3)
    pixels = np.clip(flat + rng.normal(0, 25, (16, 16, 3)), 0, 255).astype(np.uint8)
    return CODECS["jpeg"].encode(pixels, 95)


def colours(numbers: range) -> ImageSet:
    photos: tuple[list[Photo], ...] = tuple([] for _ in COLOURS)
    sizes: tuple[list[int], ...] = tuple([] for _ in COLOURS)
    for label, colour in enumerate(COLOURS):
        for number in numbers:
            data = noisy(colour, np.random.default_rng((label, number)))
            photos[label].append(Photo(f"{label}/{number}", partial(bytes, data)))
            sizes[label].append(len(data))
    return ImageSet(tuple(f"colour{label}" for label in range(len(COLOURS))), photos, sizes)


@cache
def stream() -> Stream:
    return Stream(colours(range(10)), colours(range(100, 106)), SIZES)


SETTINGS = LearnSettings(
    network="resnet18-narrow",
    size=16,
    device="cpu",
    threads=2,
    train=TrainSettings(epochs=EPOCHS, lr=0.02, batch_size=8, brightness=0.1),
    memory=MemorySettings(budget="2/class", quality="auto", qualities=(90,), epsilon=1e9),
)


def start(method: str, keeper: Remembers, settings: LearnSettings = SETTINGS) -> Run:
    made = make_method(method, QUICK.get(method, ()))
    return Run(ClassLearner(made, stream(), settings), keeper)


def finish(
    method: str, keeper: Remembers, settings: LearnSettings = SETTINGS
) -> Sequence[PhaseResult]:
    made = make_method(method, QUICK.get(method, ()))
    return learn_classes(made, stream(), settings, keeper=keeper).phases


@dataclass
class Outcome:
    """Everything that a setting which changes no number must leave alone."""

    measured: list[dict[str, Any]]
    network: dict[str, Tensor]
    memory: list[bytes]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        return (
            self.measured == other.measured
            and self.memory == other.memory
            and self.network.keys() == other.network.keys()
            and all(torch.equal(self.network[n], other.network[n]) for n in self.network)
        )


TIMES = {"seconds", "parts", "first_phase_seconds"}


def outcome(keeper: Remembers, results: Sequence[PhaseResult]) -> Outcome:
    last = keeper.saved[-1]
    kept = [{n: v for n, v in one.to_json().items() if n not in TIMES} for one in results]
    return Outcome(kept, last.checkpoint.tensors["model"], stored(last.memory))


@cache
def unbroken(method: str) -> tuple[Remembers, Sequence[PhaseResult]]:
    """The run that the others are compared with."""
    keeper = Remembers()
    return keeper, finish(method, keeper)


def after(method: str, phases: int) -> Outcome:
    """The unbroken run after this many phases."""
    keeper, results = unbroken(method)
    return outcome(Remembers(saved=keeper.saved[:phases]), results[:phases])


@EVERY
def test_learns_better_than_by_chance_within_its_budget(method: str) -> None:
    """Replaying methods hold images of every class seen, more than originals but not all."""
    keeper, results = unbroken(method)
    assert results[0].accuracy > 60
    assert results[-1].accuracy >= 1.5 * 100 / len(COLOURS)
    for result, saved, seen in zip(results, keeper.saved, (2, 3, 5), strict=True):
        assert result.classes == seen and result.tasks is not None
        mean = np.average(result.tasks, weights=SIZES[: len(result.tasks)])
        assert result.accuracy == pytest.approx(mean)  # every class has six test images
        if not METHODS[method]().needs.replays:
            assert saved.memory is None
            continue
        assert saved.memory is not None
        assert saved.memory.nbytes <= 2 * seen * stream().original_bytes
        assert saved.memory.labels == list(range(seen))
        assert 2 * seen < len(saved.memory) < 10 * seen


@EVERY
def test_neither_repetition_nor_threads_change_anything(method: str) -> None:
    """Every number, weight and stored byte is the same with five threads as with two."""
    keeper = Remembers()
    again = start(method, keeper, replace(SETTINGS, threads=5)).learn(0, 1)
    assert outcome(keeper, again.results) == after(method, 2)


@pytest.mark.parametrize(
    ("method", "epoch"), [*((name, EPOCHS // 2) for name in METHODS), *LATER_STAGES]
)
def test_resumes_in_the_middle_of_a_phase(method: str, epoch: int) -> None:
    """Stopped after an epoch, or before a later stage, it ends like the unbroken run."""
    keeper = Remembers(stop=(1, epoch))
    with pytest.raises(KilledError):
        finish(method, keeper)
    assert len(keeper.saved) == 1
    run = start(method, keeper)
    run.learn(run._restore())
    assert outcome(keeper, run.results) == after(method, 2)


@EVERY
def test_resumes_after_a_phase(method: str) -> None:
    """From the end of the second phase it ends like the unbroken run."""
    keeper = Remembers(saved=unbroken(method)[0].saved[:2])
    assert outcome(keeper, finish(method, keeper)) == after(method, 3)


def test_another_seed_gives_another_run() -> None:
    """So the comparisons above can fail."""
    keeper = Remembers()
    start("lwf", keeper, replace(SETTINGS, seed=1)).learn(0)
    other, first = outcome(keeper, []), replace(after("lwf", 1), measured=[])
    assert other.network.keys() == first.network.keys()
    assert other != first


@EVERY
def test_compression_leaves_the_first_phase_alone(method: str) -> None:
    """Runs with originals and with compressed images share its network and its accuracy."""
    keeper = Remembers()
    memory = replace(SETTINGS.memory, quality="original")
    (result,) = start(method, keeper, replace(SETTINGS, memory=memory)).learn(0).results
    compressed = unbroken(method)[0].saved[0]
    assert result.accuracy == unbroken(method)[1][0].accuracy
    mine, theirs = (one.checkpoint.tensors["model"] for one in (keeper.saved[0], compressed))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    if METHODS[method]().needs.replays:
        assert stored(keeper.saved[0].memory) != stored(compressed.memory)


@pytest.mark.parametrize(
    "method", [name for name, make in METHODS.items() if issubclass(make().needs.head, Split)]
)
def test_the_main_stage_leaves_old_rows_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, in spite of weight decay; the scale is trained."""
    run = start(method, Remembers(saved=unbroken(method)[0].saved[:1]))
    run._restore()
    before, scale = head(run).rows.detach().clone(), head(run).scale.item()
    seen: list[Split] = []
    real = run.learner.method.before_store

    def before_store(lesson: Lesson) -> None:
        seen.append(copy.deepcopy(head(run)))
        real(lesson)

    monkeypatch.setattr(run.learner.method, "before_store", before_store)
    run.learn(1)
    assert torch.equal(seen[0].old, before)
    assert seen[0].scale.item() != scale


def head(run: Run) -> Split:
    assert isinstance(run.learner.model.head, Split)
    return run.learner.model.head
