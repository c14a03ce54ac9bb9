"""What every method in the table must do, on a stream that a small network learns in seconds."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mrdc.training.prepare
from mrdc.codec import CODECS
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.replay import ReplayMemory
from mrdc.methods import METHODS
from mrdc.methods.base import Lesson
from mrdc.nn.checkpoint import Checkpoint
from mrdc.nn.heads import Split
from mrdc.training.classes import Run, run_phases
from mrdc.training.resume import Keeper, Partial, Saved
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings

COLOURS = ((220, 40, 40), (40, 220, 40), (40, 40, 220), (220, 220, 40), (220, 40, 220))
SIZES = (2, 1, 2)  # three phases, one of a single class
EPOCHS = 6
QUICK = {
    "podnet": ("finetune_epochs=2",),
    "lucir": ("balance=all", "balance_epochs=2"),
    "lucir-aanets": ("mixing_lr=0.01",),
    "podnet-aanets": ("finetune_epochs=2",),
    "lucir-dde": ("neighbours=2", "removal=learned", "balance=all", "balance_epochs=2"),
    "podnet-dde": ("neighbours=2", "finetune_epochs=2"),
    "mnemonics": ("pixel_lr=10",),
    "tpcil": ("vertices=4",),
}
LATER_STAGES = tuple((name, EPOCHS) for name in ("bic", *QUICK))  # after the last epoch
EVERY = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny networks gain nothing from a second thread, and wait long for it on a busy machine."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


@pytest.fixture(autouse=True, scope="module")
def one_thread_at_first() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mrdc.training.prepare, "WIDTHS", {"resnet18-narrow": 8})  # narrower still
        yield
    torch.set_num_threads(before)


def noisy(colour: tuple[int, int, int], rng: np.random.Generator) -> bytes:
    """A noisy image of about one colour, as a JPEG file."""
    flat = np.array(colour) + rng.normal(0, 20, 3)
    pixels = np.clip(flat + rng.normal(0, 25, (32, 32, 3)), 0, 255).astype(np.uint8)
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


def settings_for(method: str) -> RunSettings:
    return RunSettings(
        "colours",
        method=method,
        network="resnet18-narrow",
        size=32,
        device="cpu",
        threads=2,
        options=QUICK.get(method, ()),
        train=TrainSettings(epochs=EPOCHS, lr=0.02, batch_size=6, brightness=0.1),
        memory=MemorySettings(budget="2/class", quality="auto", candidates=(90,), epsilon=1e9),
    )


class KilledError(Exception):
    """The run is over before its time."""


@dataclass
class Remembers(Keeper):
    """Keeps copies in RAM, laid out as files would; may stop the run once.

    Attributes:
        stop: a phase, and an epoch in it or None for its end.
    """

    stop: tuple[int, int | None] | None = None
    saved: list[Saved] = field(default_factory=list)
    partial: Partial | None = None

    def load(self) -> Saved | None:
        return as_files(self.saved[-1]) if self.saved else None

    def save(self, saved: Saved) -> None:
        self.saved.append(as_files(saved))
        self._maybe_stop(saved.phase, None)

    def load_partial(self, phase: int) -> Partial | None:
        return self.partial if self.partial and self.partial.phase == phase else None

    def save_partial(self, partial: Callable[[], Partial]) -> None:
        made = partial()
        self.partial = Partial(made.phase, made.epoch, as_file(made.checkpoint))
        self._maybe_stop(made.phase, made.epoch)

    def _maybe_stop(self, phase: int, epoch: int | None) -> None:
        if self.stop == (phase, epoch):
            self.stop = None
            raise KilledError


def as_files(saved: Saved) -> Saved:
    memory = copy.copy(saved.memory)  # adding to it replaces what it holds, and changes nothing
    return Saved(saved.phase, as_file(saved.checkpoint), memory)


def as_file(checkpoint: Checkpoint) -> Checkpoint:
    groups = checkpoint.tensors.items()
    return Checkpoint(
        checkpoint.architecture,
        {g: {n: t.detach().contiguous().clone() for n, t in ts.items()} for g, ts in groups},
        json.loads(json.dumps(checkpoint.about)),
    )


@dataclass
class Outcome:
    """All of a run that a setting which decides no number must leave alone."""

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


def outcome(keeper: Remembers, results: list[dict[str, Any]]) -> Outcome:
    names = (
        "phase", "classes", "accuracy", "head_accuracy", "tasks", "quality", "memory",
        "candidates", "trained_images",
    )  # fmt: skip
    last = keeper.saved[-1]
    return Outcome(
        [{name: result[name] for name in names} for result in results],
        last.checkpoint.tensors["model"],
        stored(last.memory),
    )


def stored(memory: ReplayMemory | None) -> list[bytes]:
    return [] if memory is None else [memory.encoded(index) for index in range(len(memory))]


def run(settings: RunSettings) -> tuple[Remembers, Outcome]:
    keeper = Remembers()
    results = run_phases(settings, stream(), keeper)
    return keeper, outcome(keeper, results)


@cache
def unbroken(method: str) -> tuple[Remembers, Outcome]:
    """The run that the others are compared with."""
    return run(settings_for(method))


@EVERY
def test_learns_the_stream_better_than_by_chance(method: str) -> None:
    """The first phase well; all classes, at the end, at least half as often again as by chance."""
    results = unbroken(method)[1].measured
    assert results[0]["accuracy"] > 60
    assert results[-1]["accuracy"] >= 1.5 * 100 / len(COLOURS)
    assert [result["classes"] for result in results] == [2, 3, 5]
    assert [len(result["tasks"]) for result in results] == [1, 2, 3]


@EVERY
def test_accuracy_is_the_mean_of_its_tasks(method: str) -> None:
    """All classes have as many test images, so a task counts by its classes."""
    for result in unbroken(method)[1].measured:
        sizes = SIZES[: len(result["tasks"])]
        mean = np.average(result["tasks"], weights=sizes)
        assert result["accuracy"] == pytest.approx(mean)


@EVERY
def test_the_same_seed_gives_the_same_run(method: str) -> None:
    """Every number, every weight and every stored byte, as far as the second phase."""
    keeper = Remembers()
    again = Run(settings_for(method), stream(), keeper)
    for phase in range(2):
        again.learn(phase)
    first = Remembers(saved=unbroken(method)[0].saved[:2])
    results = unbroken(method)[1].measured[:2]
    assert outcome(keeper, again.results) == outcome(first, results)


@EVERY
def test_threads_change_nothing(method: str) -> None:
    """One decoding thread or five, the same run."""
    other = run(replace(settings_for(method), threads=5))[1]
    assert other == unbroken(method)[1]


@pytest.mark.parametrize(
    ("method", "epoch"), [*((name, EPOCHS // 2) for name in METHODS), *LATER_STAGES]
)
def test_goes_on_in_the_middle_of_a_phase(method: str, epoch: int) -> None:
    """Stopped after an epoch, or before a later stage, and started again: the unbroken run."""
    keeper = Remembers(stop=(1, epoch))
    with pytest.raises(KilledError):
        run_phases(settings_for(method), stream(), keeper)
    assert len(keeper.saved) == 1
    results = run_phases(settings_for(method), stream(), keeper)
    assert outcome(keeper, results) == unbroken(method)[1]


@EVERY
def test_goes_on_after_a_phase(method: str) -> None:
    """From what the unbroken run kept after its second phase to the same end."""
    keeper = Remembers(saved=unbroken(method)[0].saved[:2])
    results = run_phases(settings_for(method), stream(), keeper)
    assert outcome(keeper, results) == unbroken(method)[1]


def test_another_seed_gives_another_run() -> None:
    """So the comparisons above can fail."""
    keeper = Remembers()
    Run(replace(settings_for("lwf"), seed=1), stream(), keeper).learn(0)
    first = Remembers(saved=unbroken("lwf")[0].saved[:1])
    assert outcome(keeper, []).network.keys() == outcome(first, []).network.keys()
    assert outcome(keeper, []) != outcome(first, [])


@EVERY
def test_the_memory_stays_within_its_budget(method: str) -> None:
    """After every phase, with an image of every class seen, where a method replays at all."""
    for saved, seen in zip(unbroken(method)[0].saved, (2, 3, 5), strict=True):
        if not METHODS[method]().replays:
            assert saved.memory is None
            continue
        assert saved.memory is not None
        assert saved.memory.nbytes <= 2 * seen * stream().original_bytes
        assert saved.memory.labels == list(range(seen))
        assert 2 * seen < len(saved.memory) < 10 * seen  # more than originals, not all


@EVERY
def test_compression_leaves_the_first_phase_alone(method: str) -> None:
    """Runs with originals and with compressed images share its network and its accuracy."""
    settings = settings_for(method)
    memory = replace(settings.memory, quality="original")
    keeper = Remembers()
    Run(replace(settings, memory=memory), stream(), keeper).learn(0)
    compressed, outcome = unbroken(method)
    (only,) = keeper.saved[0].checkpoint.about["results"]
    assert only["accuracy"] == outcome.measured[0]["accuracy"]
    mine = keeper.saved[0].checkpoint.tensors["model"]
    theirs = compressed.saved[0].checkpoint.tensors["model"]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    if METHODS[method]().replays:
        assert stored(keeper.saved[0].memory) != stored(compressed.saved[0].memory)


@pytest.mark.parametrize(
    "method", [m for m, make in METHODS.items() if issubclass(make().head, Split)]
)
def test_the_main_training_leaves_old_rows_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, weight decay included; the new rows and the scale move."""
    run = Run(settings_for(method), stream(), Remembers())
    run.learn(0)
    before, scale = heads(run).rows.detach().clone(), heads(run).scale.item()
    seen: list[Split] = []
    real = run.method.end_phase

    def end_phase(lesson: Lesson) -> None:
        seen.append(copy.deepcopy(heads(run)))
        real(lesson)

    monkeypatch.setattr(run.method, "end_phase", end_phase)
    run.learn(1)
    assert torch.equal(seen[0].old, before)
    assert seen[0].scale.item() != scale


def heads(run: Run) -> Split:
    assert isinstance(run.model.head, Split)
    return run.model.head
