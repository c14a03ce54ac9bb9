"""Methods around methods: delegation, settings, state, AANets, and runs of method instances."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.methods import DDE, LUCIR, AANets, BiC, Lesson, Method, PODNet, TrainSettings, Wrapper
from mrdc.methods.base import Needs
from mrdc.methods.options import make_method, method_settings
from mrdc.nn.heads import Linear
from mrdc.nn.net import Net, Output
from mrdc.training.classes import run_phases
from mrdc.training.settings import MemorySettings
from tests.helpers import (
    KilledError,
    Remembers,
    lesson,
    small_run,
    small_stream,
    stored,
    tiny,
)

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
    ],
)
def test_the_inner_method_handles_the_rest(kind: type[Wrapper], own: set[str]) -> None:
    """Every hook and property of a method, with its arguments and its result."""
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


def test_state_returns_to_the_method_that_learned_it() -> None:
    """Tensors and numbers, through two wrappers."""
    outer = AANets(DDE(BiC(bias_=torch.ones(2), start_=3), momentum_=torch.full((4,), 2.0)))
    state = outer.state()
    assert state.keys() >= {"momentum_", "bias_", "start_"}
    assert not state.keys() & {"direction_", "scores_", "inner"}
    other = AANets(DDE(BiC()))
    other.load_state(state)
    middle = other.inner
    assert isinstance(middle, DDE) and isinstance(middle.inner, BiC)
    assert middle.momentum_ is state["momentum_"] and middle.direction_ is None
    assert middle.inner.bias_ is state["bias_"] and middle.inner.start_ == 3
    assert not hasattr(other, "bias_") and not hasattr(other, "momentum_")
    assert not hasattr(middle, "bias_") and not hasattr(middle.inner, "momentum_")


# Settings


def test_settings_reach_the_method_that_has_them() -> None:
    """The inner or the outer one; the others keep their values."""
    assert make_method("lucir-aanets", ("margin=0.4",)) == AANets(LUCIR(margin=0.4))
    assert make_method("lucir-dde", ("strength=0.2",)) == DDE(LUCIR(base=5.0), strength=0.2)
    made = make_method("podnet-dde", ("neighbours=3", "nca=ce"))
    assert made == DDE(PODNet(nca="ce"), neighbours=3)
    own = {"neighbours", "own_weight", "neighbour_norm", "strength"}
    assert method_settings(AANets(LUCIR())) == method_settings(LUCIR())
    assert set(method_settings(AANets(DDE(LUCIR())))) == own | set(method_settings(LUCIR()))


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("lucir-aanets", "inner=lucir", r"unknown setting of lucir-aanets 'inner': choose from"),
        ("lucir-aanets", "neighbours=3", r"unknown setting of lucir-aanets 'neighbours'"),
        ("lucir-aanets", "balance=some", r"balance must be 'none', 'new' or 'all', got 'some'"),
        ("podnet-aanets", "margins=1", r"'margins': .*did you mean 'margin'\?"),
        ("lucir-dde", "momentum_=1", r"unknown setting of lucir-dde 'momentum_': choose from"),
        ("lucir-dde", "strength=much", r"--set strength=much: strength takes a number"),
        ("lucir-dde", "neighbours=2.5", r"--set neighbours=2.5: neighbours takes a whole number"),
        ("lucir-dde", "neighbours=-1", r"neighbours must be 0 or more, and finite"),
        ("lucir-dde", "own_weight=1", r"own_weight between 0 and 1, got 10 and 1.0"),
        ("lucir-dde", "own_weight=0", r"own_weight between 0 and 1, got 10 and 0.0"),
        ("lucir-dde", "own_weight=nan", r"own_weight must be 0 or more, and finite"),
        ("podnet-dde", "neighbour_norm=no", r"neighbour_norm must be 'eval' or 'train', got 'no'"),
    ],
)
def test_refuses_invalid_settings(method: str, option: str, message: str) -> None:
    """Of the wrapper and of the wrapped method."""
    with pytest.raises(UsageError, match=message):
        make_method(method, (option,))


# AANets


class Notes(LUCIR):
    """Notes the body of the network that it starts a phase with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[str] = []

    def start_phase(self, lesson: Lesson) -> None:
        self.seen.append(lesson.model.body)


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_two_branches_from_the_second_phase_on(phase: int) -> None:
    """Made once, before the inner method starts; features stay the same, bit by bit."""
    net, inner = tiny(classes=2), Notes()
    if phase == 2:
        net = net.with_body("branches")
    x = torch.randint(0, 256, (3, 3, 8, 8))
    before = net(x).features
    now = lesson(phase=phase, model=net)
    AANets(inner).start_phase(now)
    assert inner.seen == [now.model.body] == ["branches" if phase else "plain"]
    assert (now.model is net) == (phase != 1)
    assert torch.equal(now.model(x).features, before)


# Runs of method instances

QUICK = TrainSettings(epochs=2, batch_size=6)
ORIGINALS = MemorySettings("3/class", "original", qualities=(50,))


def learned(method: Method, **given: Any) -> Any:
    usual = {"network": "resnet18-narrow", "size": 8, "device": "cpu", "threads": 1}
    return run_phases(method, small_stream(2, 1, 1), memory=ORIGINALS, train=QUICK, **usual | given)


@pytest.mark.parametrize(
    "method", [AANets(LUCIR(margin=0.4)), AANets(DDE(LUCIR())), DDE(AANets(LUCIR()), neighbours=2)]
)
def test_instances_run_and_wrappers_nest_in_either_order(method: Wrapper) -> None:
    """All three phases; there are two branches, and DDE has learned a direction."""
    keeper = Remembers()
    result = learned(method, keeper=keeper)
    assert result.method == type(method).__name__.lower()
    assert len(result.accuracy) == len(result.phases) == 3
    assert result.sizes == [2, 1, 1] and result.memory.items == 12
    last = keeper.saved[-1].checkpoint
    assert last.architecture is not None and last.architecture.body == "branches"
    assert result.memory.parameter_bytes > 0
    if method != AANets(LUCIR(margin=0.4)):
        assert last.tensors["method"].keys() == {"momentum_", "direction_", "scores_"}


def test_a_later_stage_is_the_same_after_a_stop() -> None:
    """A run stopped after the last epoch of a phase resumes to the same finetuned rows."""

    def run(keeper: Remembers) -> None:
        method = AANets(LUCIR(balance="all", balance_epochs=1))
        made = small_run(method, stream=small_stream(2, 1), keeper=keeper, train=QUICK)
        made.learn(*range(made._restore(), 2))

    whole, broken = Remembers(), Remembers(stop=(1, QUICK.epochs))
    run(whole)
    with pytest.raises(KilledError):
        run(broken)
    run(broken)
    mine, theirs = (keeper.saved[1].checkpoint.tensors["model"] for keeper in (whole, broken))
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


# Methods of other packages


class Order(Method):
    """Overrides every hook around storing, and calls none of the original ones."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def before_store(self, lesson: Lesson) -> None:
        self.calls.append(("before_store", len(lesson.memory)))

    def substitutes(self, lesson: Lesson) -> None:
        self.calls.append(("substitutes", len(lesson.memory)))

    def end_phase(self, lesson: Lesson) -> None:
        self.calls.append(("end_phase", len(lesson.memory)))


def test_the_engine_stores_whatever_a_method_overrides() -> None:
    """Between `substitutes` and `end_phase`, which sees the new images in the memory."""
    method = Order()
    keeper = Remembers()
    learned(method, keeper=keeper)
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
    """A method with a head, a loss and a state of its own."""

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
    """Stopped after a phase and inside one, it resumes to the same bits."""
    whole = Remembers()
    result = learned(Own(), keeper=whole)
    seen = sum(len(stored(saved.memory)) for saved in whole.saved)
    for stop in ((0, None), (1, 1)):
        broken = Remembers(stop=stop)
        with pytest.raises(KilledError):
            learned(Own(), keeper=broken)
        again = learned(Own(), keeper=broken)
        assert again.accuracy == result.accuracy
        mine, theirs = (keeper.saved[-1].checkpoint for keeper in (whole, broken))
        assert mine.architecture == theirs.architecture
        assert mine.architecture is not None and mine.architecture.head == "Bilinear"
        assert mine.about["method"] == theirs.about["method"] == {"seen_": seen}
        tensors = mine.tensors["model"]
        assert "head.mix" in tensors and not torch.equal(tensors["head.mix"], torch.eye(16))
        assert all(torch.equal(tensors[n], theirs.tensors["model"][n]) for n in tensors)
