"""Properties of every registered method, on a stream that a small network learns in seconds."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mrdc
from mrdc.data.stream import Stream
from mrdc.methods import METHODS, Lesson, TrainSettings
from mrdc.methods.options import make_method
from mrdc.nn.checkpoint import WIDTHS
from mrdc.nn.heads import Head, Split
from mrdc.training.learner import ClassLearner
from mrdc.training.results import PhaseResult
from mrdc.training.settings import LearnSettings, MemorySettings
from tests.helpers import KilledError, Remembers, Run, coloured_stream, numbers, stored

SIZES = (2, 1, 2)  # three phases, one of a single class
EPOCHS = 6
GENTLE = "base=1"  # weaker preservation: with the usual 10, six epochs may not learn a new class
QUICK = {
    "podnet": ("finetune_epochs=2",),
    "lucir": (GENTLE, "balance=all", "balance_epochs=2"),
    "lucir-aanets": (GENTLE,),
    "podnet-aanets": ("finetune_epochs=2",),
    "lucir-dde": (GENTLE, "neighbours=2", "balance=all", "balance_epochs=2"),
    "podnet-dde": ("neighbours=2", "finetune_epochs=2"),
    "lucir-fidelity": (GENTLE,),
    "lucir-relaxed": (GENTLE,),
    "mnemonics": (GENTLE, "pixel_lr=10"),
    "tpcil": ("vertices=4",),
}
LATER_STAGES = ("bic", "lucir", "podnet", "tpcil", "mnemonics", "lucir-dde")


@pytest.fixture(autouse=True, scope="module")
def narrow_and_single_threaded() -> Iterator[None]:
    """A second thread does not help tiny networks, and waits long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WIDTHS, "resnet18-narrow", 6)
        yield
    torch.set_num_threads(before)


@cache
def stream() -> Stream:
    return coloured_stream(*SIZES, images=10)


SETTINGS = LearnSettings(
    network="resnet18-narrow",
    size=16,
    device="cpu",
    threads=2,
    train=TrainSettings(epochs=EPOCHS, lr=0.05, batch_size=5, brightness=0.1),
    memory=MemorySettings(
        "2/class", quality="auto", qualities=(90,), criterion="volume-ratio", epsilon=1e9
    ),
)


def start(method: str, keeper: Remembers, settings: LearnSettings = SETTINGS) -> Run:
    made = make_method(method, QUICK.get(method, ()))
    return Run(ClassLearner(made, stream(), settings), keeper)


@dataclass
class Outcome:
    """Everything that must not depend on settings which change no number."""

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


def outcome(keeper: Remembers, results: Sequence[PhaseResult]) -> Outcome:
    last = keeper.saved[-1]
    return Outcome(numbers(results), last.checkpoint.tensors["model"], stored(last.memory))


@cache
def unbroken(method: str) -> tuple[Remembers, Sequence[PhaseResult], list[Head]]:
    """The run that the others are compared with, and its head after each main stage."""
    keeper, heads = Remembers(), list[Head]()
    run = start(method, keeper)
    real = run.learner.method.before_store

    def before_store(lesson: Lesson) -> None:
        heads.append(copy.deepcopy(lesson.model.head))
        real(lesson)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.learner.method, "before_store", before_store)
        return keeper, run.run(), heads


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    """Every method; its tests run one after the other and share its unbroken run."""
    return str(request.param)


def test_can_be_imported_from_mrdc(method: str) -> None:
    """So can the method that an add-on wraps."""
    made = METHODS[method]()
    for part in (made, getattr(made, "inner", made)):
        assert getattr(mrdc, type(part).__name__) is type(part)


def test_learns_better_than_by_chance_within_its_budget(method: str) -> None:
    """By half, on average; memories hold every class, more images than originals, but not all."""
    keeper, results, _ = unbroken(method)
    assert results[0].accuracy > 80
    chance = [100 / seen for seen in (2, 3, 5)]
    assert np.mean([result.accuracy for result in results]) > 1.5 * np.mean(chance)
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
        assert 2 * seen < len(saved.memory) <= 10 * seen
        if method != "mnemonics":  # whose squares are small enough to store all
            assert len(saved.memory) < 10 * seen


def test_resumes_after_and_in_the_middle_of_a_phase(method: str) -> None:
    """Also before a later stage, with any threads: every number, weight and stored byte agrees."""
    whole, results, _ = unbroken(method)
    for epoch in (EPOCHS // 2, EPOCHS)[: 1 + (method in LATER_STAGES)]:
        keeper = Remembers(stop=(2, epoch), saved=whole.saved[:2])
        with pytest.raises(KilledError):
            start(method, keeper, replace(SETTINGS, threads=5)).run()
        assert len(keeper.saved) == 2
        assert outcome(keeper, start(method, keeper).run()) == outcome(whole, results)


def test_another_seed_gives_another_run() -> None:
    """So the comparisons above can fail."""
    keeper, first = Remembers(), Remembers(saved=unbroken("lwf")[0].saved[:1])
    start("lwf", keeper, replace(SETTINGS, seed=1)).learn(0)
    other, same = outcome(keeper, []), outcome(first, [])
    assert other.network.keys() == same.network.keys()
    assert other != same


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


def test_the_main_stage_leaves_old_rows_alone(method: str) -> None:
    """Bit for bit, despite weight decay; the scale is trained."""
    keeper, _, heads = unbroken(method)
    if not isinstance(heads[1], Split):
        pytest.skip("all rows of a linear head learn")
    before = keeper.saved[0].checkpoint.tensors["model"]
    assert torch.equal(heads[1].old, torch.cat([before["head.old"], before["head.new"]]))
    assert heads[1].scale.item() != before["head.scale"].item()
