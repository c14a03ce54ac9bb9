"""Wrapper methods: delegation, settings, state, AANets, and runs of method instances."""

from dataclasses import dataclass, replace
from functools import partialmethod
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.methods import (
    DDE,
    LUCIR,
    AANets,
    Fidelity,
    Lesson,
    Method,
    PODNet,
    Relaxed,
    TrainSettings,
    Wrapper,
)
from mrdc.methods.base import Needs
from mrdc.nn.heads import Linear
from mrdc.nn.net import Net, Output
from mrdc.training.classes import run_phases
from mrdc.training.results import RunResult
from mrdc.training.settings import MemorySettings
from tests.helpers import KilledError, Remembers, lesson, small_stream, stored, tiny

pytestmark = pytest.mark.usefixtures("quick")

HOOKS = {name for name in vars(Method) if not name.startswith("_")} - {"state", "load_state"}
PROPERTIES = {"needs", "first_phase"}


# Delegation


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (Wrapper, set()),
        (AANets, {"needs", "start_phase"}),
        (DDE, {"start_phase", "loss", "end_phase", "predict"}),
        (Fidelity, {"start_phase", "loss"}),
        (Relaxed, {"start_phase", "loss", "preservation", "report"}),
    ],
)
def test_the_inner_method_handles_the_rest(kind: type[Wrapper], own: set[str]) -> None:
    """Every hook and property of a method, with its arguments and result."""
    assert {"needs", "loss", "substitutes", "arrange", "report", "first_phase"} <= HOOKS
    calls: list[tuple[str, tuple[Any, ...]]] = []

    def hook(name: str) -> Any:
        return lambda *given: calls.append((name, given)) or name  # type: ignore[func-returns-value]

    parts = {name: name if name in PROPERTIES else hook(name) for name in HOOKS}
    outer = kind(cast(Method, SimpleNamespace(**parts)))
    counts = {"loss": 4, "classification": 3, "preservation": 5, "arrange": 3, "report": 0}
    for name in HOOKS - own:
        if name in PROPERTIES:
            assert getattr(outer, name) == name
            continue
        given = tuple(object() for _ in range(counts.get(name, 1)))
        found = getattr(outer, name)(*given)
        assert found == (None if Method.__dict__[name].__annotations__["return"] is None else name)
        assert calls.pop() == (name, given)


def test_a_wrapped_method_needs_what_it_would_need_alone() -> None:
    """PODNet's network, clamp and first phase, with the body of AANets."""
    outer, inner = DDE(AANets(PODNet(nca="ce"))), PODNet(nca="ce")
    assert outer.needs == replace(inner.needs, body="branches")
    assert outer.first_phase == inner.first_phase


@dataclass(kw_only=True)
class Learned(LUCIR):
    """A method that learns something beside the network."""

    bias_: Tensor | None = None
    start_: int = 0


def test_state_returns_to_the_method_that_learned_it() -> None:
    inner = Learned(bias_=torch.ones(2), start_=3)
    outer = AANets(DDE(inner, momentum_=torch.full((4,), 2.0)))
    state = outer.state()
    assert state.keys() >= {"momentum_", "bias_", "start_"}
    assert not state.keys() & {"direction_", "scores_", "inner"}
    other = AANets(DDE(Learned()))
    other.load_state(state)
    middle = other.inner
    assert isinstance(middle, DDE) and isinstance(middle.inner, Learned)
    assert middle.momentum_ is state["momentum_"] and middle.direction_ is None
    assert middle.inner.bias_ is state["bias_"] and middle.inner.start_ == 3
    assert not hasattr(other, "bias_") and not hasattr(other, "momentum_")
    assert not hasattr(middle, "bias_") and not hasattr(middle.inner, "momentum_")


# AANets


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_two_branches_from_the_second_phase_on(phase: int) -> None:
    """Made once, before the inner method starts; features stay the same, bit for bit."""
    seen: list[str] = []
    inner = SimpleNamespace(start_phase=lambda now: seen.append(now.model.body))
    net = tiny(classes=2).with_body("branches" if phase == 2 else "plain")
    x = torch.randint(0, 256, (3, 3, 8, 8))
    before = net(x).features
    now = lesson(phase=phase, model=net)
    AANets(cast(Method, inner)).start_phase(now)
    assert seen == [now.model.body] == ["branches" if phase else "plain"]
    assert (now.model is net) == (phase != 1)
    assert torch.equal(now.model(x).features, before)


# Runs of method instances

QUICK = TrainSettings(epochs=2, batch_size=6)
ORIGINALS = MemorySettings("3/class", "original", qualities=(50,))


def learned(method: Method, keeper: Remembers) -> RunResult:
    where: dict[str, Any] = {
        "network": "resnet18-narrow",
        "size": 16,
        "device": "cpu",
        "threads": 1,
    }
    stream = small_stream(2, 1, 1)
    return run_phases(method, stream, memory=ORIGINALS, train=QUICK, keeper=keeper, **where)


@pytest.mark.parametrize(
    "method", [AANets(LUCIR(margin=0.4)), AANets(DDE(LUCIR())), DDE(AANets(LUCIR()), neighbours=2)]
)
def test_instances_run_and_wrappers_nest_in_either_order(method: Wrapper) -> None:
    """All three phases; there are two branches, and DDE has learned a direction."""
    keeper = Remembers()
    result = learned(method, keeper)
    assert result.method == type(method).__name__.lower()
    assert len(result.accuracy) == len(result.phases) == 3
    assert result.sizes == [2, 1, 1] and result.memory.items == 12
    last = keeper.saved[-1].checkpoint
    assert last.architecture is not None and last.architecture.body == "branches"
    assert (result.memory.parameter_bytes or 0) > 0
    if method != AANets(LUCIR(margin=0.4)):
        assert last.tensors["method"].keys() == {"momentum_", "direction_", "scores_"}


# Methods of other packages


class Order(Method):
    """Overrides every hook around storing, without calling super."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def _note(self, name: str, lesson: Lesson) -> None:
        self.calls.append((name, len(lesson.memory)))

    before_store = partialmethod(_note, "before_store")
    substitutes = partialmethod(_note, "substitutes")
    end_phase = partialmethod(_note, "end_phase")


def test_the_engine_stores_whatever_a_method_overrides() -> None:
    """Between `substitutes` and `end_phase`, which sees the new images in the memory."""
    method = Order()
    keeper = Remembers()
    learned(method, keeper)
    held = [0, *(len(stored(saved.memory)) for saved in keeper.saved)]
    assert held[1:] == [6, 9, 12]
    names = ("before_store", "substitutes", "end_phase")
    expected = [(name, held[phase + (name == "end_phase")]) for phase in range(3) for name in names]
    assert method.calls == expected
    assert keeper.saved[-1].memory is not None
    assert keeper.saved[-1].memory.labels == [0, 1, 2, 3]


class Bilinear(Linear):
    """A head with one more parameter."""

    def __init__(self, features: int):
        super().__init__(features)
        self.mix = torch.nn.Parameter(torch.eye(features))

    def scores(self, features: Tensor) -> Tensor:
        return super().scores(features @ self.mix)


class Own(Method):
    """A method with its own head, loss and state."""

    seen_: int = 0

    @property
    def needs(self) -> Needs:
        return Needs(head=Bilinear)

    def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
        assert isinstance(model.head, Bilinear)
        return F.cross_entropy(out.logits, y, label_smoothing=0.1)

    def end_phase(self, lesson: Lesson) -> None:
        self.seen_ += len(lesson.memory)


def test_a_method_with_its_own_head_survives_a_checkpoint() -> None:
    """Stopped inside its second phase, it resumes with the same bits."""
    whole, broken = Remembers(), Remembers(stop=(1, 1))
    result = learned(Own(), whole)
    seen = sum(len(stored(saved.memory)) for saved in whole.saved)
    with pytest.raises(KilledError):
        learned(Own(), broken)
    assert learned(Own(), broken).accuracy == result.accuracy
    mine, theirs = (keeper.saved[-1].checkpoint for keeper in (whole, broken))
    assert mine.architecture == theirs.architecture
    assert mine.architecture is not None and mine.architecture.head == "Bilinear"
    assert mine.about["method"] == theirs.about["method"] == {"seen_": seen}
    tensors = mine.tensors["model"]
    assert "head.mix" in tensors and not torch.equal(tensors["head.mix"], torch.eye(16))
    assert all(torch.equal(tensors[n], theirs.tensors["model"][n]) for n in tensors)
