"""Methods around methods: what AANets and DDE leave to others, and whole runs of them."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest
import torch

import mrdc.methods.dde
import mrdc.training.prepare
from mrdc._utils.errors import UsageError
from mrdc.methods import DDE, METHODS, AANets, Method
from mrdc.methods.base import Wrapper
from mrdc.methods.bic import BiC
from mrdc.methods.dde import colliding
from mrdc.methods.lucir import LUCIR
from mrdc.methods.podnet import PODNet
from mrdc.training.classes import Run, run_phases
from mrdc.training.prepare import make_method, method_settings
from mrdc.training.resume import Keeper, Partial, Saved
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests.helpers import small_stream

pytestmark = pytest.mark.usefixtures("quick")


# What a wrapper leaves to others

HOOKS = {name for name in vars(Method) if not name.startswith("_")} - {"state", "load_state"}


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (Wrapper, set()),
        (AANets, {"body", "start_phase", "end_epoch", "report"}),
        (DDE, {"start_phase", "loss", "end_phase", "predict", "report"}),
    ],
)
def test_the_inner_method_answers_for_the_rest(kind: type[Wrapper], own: set[str]) -> None:
    """Every public attribute of a method, settings of the class and hooks alike."""
    assert {"variant", "head", "body", "clamp", "first_phase", "loss", "arrange"} <= HOOKS
    inner = SimpleNamespace(**{name: object() for name in HOOKS})
    outer = kind(cast(Method, inner))
    answered = {name for name in HOOKS if getattr(outer, name) is getattr(inner, name)}
    assert answered == HOOKS - own


def test_a_wrapped_method_learns_as_it_would_alone() -> None:
    """Podnet's network, clamp and first phase, not those of a plain method."""
    outer, inner = DDE(AANets(PODNet(nca="ce"))), PODNet(nca="ce")
    for name in ("variant", "head", "clamp", "replays", "first_phase"):
        assert getattr(outer, name) == getattr(inner, name)
    assert outer.body == "branches"


def test_what_was_learned_goes_to_who_learned_it() -> None:
    """Through two wrappers, tensors and numbers."""
    outer = AANets(
        DDE(BiC(bias_=torch.ones(2), start_=3), momentum_=torch.full((4,), 2.0)),
        alpha_=torch.zeros(4), velocity_=torch.full((4,), 0.5),
    )  # fmt: skip
    state = outer.state()
    assert state.keys() >= {"alpha_", "velocity_", "momentum_", "bias_", "start_"}
    assert not state.keys() & {"mix_", "directions_", "answers_", "inner", "mixing"}
    other = AANets(DDE(BiC()))
    other.load_state(state)
    assert other.alpha_ is outer.alpha_ and other.velocity_ is outer.velocity_
    middle = other.inner
    assert isinstance(middle, DDE) and isinstance(middle.inner, BiC)
    assert middle.momentum_ is state["momentum_"] and middle.mix_ is None
    assert middle.inner.bias_ is state["bias_"] and middle.inner.start_ == 3
    assert not hasattr(other, "bias_") and not hasattr(other, "momentum_")
    assert not hasattr(middle, "alpha_") and not hasattr(middle, "bias_")
    assert not hasattr(middle.inner, "alpha_") and not hasattr(middle.inner, "momentum_")


def test_settings_reach_the_method_that_has_them() -> None:
    """The inner one and the outer one, by one list; what is not given stays."""
    options = ("margin=0.4", "mixing_lr=0.001")
    method = make_method(RunSettings("x", method="lucir-aanets", options=options))
    assert method == AANets(LUCIR(margin=0.4), mixing_lr=0.001)
    method = make_method(RunSettings("x", method="lucir-dde", options=("strength=0.2",)))
    assert method == DDE(LUCIR(base=5.0), strength=0.2)
    method = make_method(RunSettings("x", method="podnet-aanets", options=("nca=ce",)))
    assert method == AANets(PODNet(nca="ce"), mixing="fixed")


def test_settings_of_a_wrapper_are_its_own_and_the_inner_ones() -> None:
    """None shadows another; neither the inner method nor what is learned is a setting."""
    parts: list[Method] = [AANets(LUCIR()), DDE(LUCIR()), LUCIR()]
    aanets, dde, lucir = (set(method_settings(part)) for part in parts)
    assert aanets - lucir == {"mixing", "mixing_lr", "mixing_decay"}
    assert dde - lucir == {"neighbours", "own_weight", "neighbour_norm", "removal", "strength"}
    assert lucir < aanets and lucir < dde
    assert set(method_settings(AANets(DDE(LUCIR())))) == aanets | dde


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("lucir-aanets", "mixing=some", r"mixing must be 'learned' or 'fixed', got 'some'"),
        ("lucir-aanets", "mixing_lr=fast", r"--set mixing_lr=fast: mixing_lr takes a number"),
        ("lucir-aanets", "alpha_=1", r"unknown setting of lucir-aanets 'alpha_': choose from base"),
        ("lucir-aanets", "inner=lucir", r"unknown setting of lucir-aanets 'inner': choose from"),
        ("lucir-aanets", "neighbours=3", r"unknown setting of lucir-aanets 'neighbours'"),
        ("lucir-aanets", "balance=some", r"balance must be 'none', 'new' or 'all', got 'some'"),
        ("podnet-aanets", "margins=1", r"'margins': .*did you mean 'margin'\?"),
        ("lucir-dde", "neighbours=2.5", r"--set neighbours=2.5: neighbours takes a whole number"),
        ("lucir-dde", "neighbours=-1", r"neighbours must be 0 or more, and finite"),
        ("lucir-dde", "own_weight=1", r"own_weight between 0 and 1, got 10 and 1.0"),
        ("lucir-dde", "own_weight=0", r"own_weight between 0 and 1, got 10 and 0.0"),
        ("lucir-dde", "own_weight=nan", r"own_weight must be 0 or more, and finite"),
        ("podnet-dde", "removal=some", r"removal must be 'fixed' or 'learned', got 'some'"),
        ("podnet-dde", "neighbour_norm=no", r"neighbour_norm must be 'eval' or 'train', got 'no'"),
    ],
)  # fmt: skip
def test_refuses_settings_that_are_none(method: str, option: str, message: str) -> None:
    """Of the wrapper and of what it wraps; the message says which, and what is allowed."""
    with pytest.raises(UsageError, match=message):
        make_method(RunSettings("x", method=method, options=(option,)))


# Runs


def small_settings(method: str, *options: str) -> RunSettings:
    return RunSettings(
        "photos", method=method, options=options, network="resnet18-narrow", size=8, device="cpu",
        threads=1, memory=MemorySettings(budget="3/class", quality="original", candidates=(50,)),
        train=TrainSettings(epochs=2, batch_size=6),
    )  # fmt: skip


def test_a_learned_removal_in_a_run() -> None:
    """Reported from the second phase on; last phase's part counts from the third on.

    Neighbours come with every batch: of two epochs of 12 images and of 15, six at a time.
    """
    chosen = small_settings("lucir-dde", "removal=learned", "neighbours=2")
    with patch.object(mrdc.methods.dde, "colliding", wraps=colliding) as called:
        results = run_phases(chosen, small_stream(2, 1, 1))
    seen = Counter(tuple(call.args[1].shape) for call in called.call_args_list)
    assert seen == {(6, 2, 3): 4, (6, 2, 4): 4, (3, 2, 4): 2}
    assert "report" not in results[0]
    first, second = (result["report"]["mix"] for result in results[1:])
    assert first[0] == 1.0 and first[1] != 0.5
    assert second[0] != 1.0 and second[1] != 0.5
    assert all(abs(a - b) < 0.03 for a, b in zip((*first, *second), (1, 0.5) * 2, strict=True))


@pytest.mark.parametrize("order", ["aanets-dde", "dde-aanets"])
def test_wrappers_nest_in_either_order(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings reach all three, both report, and there are two branches."""
    made: dict[str, Callable[[], Method]] = {
        "aanets-dde": lambda: AANets(DDE(LUCIR())),
        "dde-aanets": lambda: DDE(AANets(LUCIR())),
    }
    monkeypatch.setitem(METHODS, order, made[order])
    options = ("mixing_lr=0.05", "neighbours=2", "margin=0.3", "strength=0.25")
    run = Run(small_settings(order, *options), small_stream(2, 1, 1), Keeper())
    for phase in range(2):
        run.learn(phase)
    report = run.results[-1]["report"]
    assert report["mix"] == [1.0, 0.25]
    assert all(0 < abs(alpha - 0.5) < 0.4 for alpha in report["alpha"])
    assert run.model.body == "branches"
    assert method_settings(run.method)["margin"] == 0.3


class KilledError(Exception):
    """The run is over before its time."""


@dataclass
class Remembers(Keeper):
    """Keeps copies; may stop the run once, after an epoch of a phase."""

    stop: tuple[int, int] | None = None
    saved: list[Saved] = field(default_factory=list)
    partial: Partial | None = None

    def load(self) -> Saved | None:
        return copy.copy(self.saved[-1]) if self.saved else None

    def save(self, saved: Saved) -> None:
        kept = copy.deepcopy(saved.checkpoint)
        self.saved.append(Saved(saved.phase, kept, copy.copy(saved.memory)))

    def load_partial(self, phase: int) -> Partial | None:
        return self.partial if self.partial and self.partial.phase == phase else None

    def save_partial(self, partial: Callable[[], Partial]) -> None:
        self.partial = copy.deepcopy(partial())
        if self.stop == (self.partial.phase, self.partial.epoch):
            self.stop = None
            raise KilledError


def test_mixing_weights_do_not_hide_a_later_stage() -> None:
    """A run stopped after the last epoch of a phase goes on to the same finetuned rows.

    Fault in `Run._stage`: the stage of the mixing weights has not been opened then, so the
    finetuning gets its number, and other batches.
    """
    chosen = small_settings("lucir-aanets", "balance=all", "balance_epochs=1")

    def go(keeper: Remembers) -> None:
        run = Run(chosen, small_stream(2, 1, 1), keeper)
        for phase in range(run.restore(), 2):
            run.learn(phase)

    whole, broken = Remembers(), Remembers(stop=(1, chosen.train.epochs))
    go(whole)
    with pytest.raises(KilledError):
        go(broken)
    go(broken)
    mine, theirs = (keeper.saved[1].checkpoint.tensors["model"] for keeper in (whole, broken))
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
