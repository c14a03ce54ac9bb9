"""Settings of all methods: published defaults, types, refusals, networks."""

from dataclasses import dataclass
from typing import Any

import pytest

from mrdc._utils.errors import UsageError
from mrdc.methods import DDE, LUCIR, METHODS, AANets, Method, PODNet
from mrdc.methods.options import make_method, method_settings, with_options
from mrdc.nn.heads import LSC
from mrdc.training.architecture import make_architecture
from mrdc.training.settings import LearnSettings

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("method", "published"),
    [
        ("lwf", "temperature=2.0 weight=0.25"),
        ("icarl", "temperature=2.0 weight=0.25 objective=kd"),
        ("bic", "temperature=2.0 weighting=phases decay=0.1"),
        ("lucir", "base=10.0 margin=0.5 rivals=2 balance=none balance_epochs=20 balance_lr=0.01"),
        (
            "podnet",
            "nca=official margin=0.6 spatial=8.0 flat=10.0 "
            "finetune_epochs=20 finetune_lr=0.01 finetune_norm=train",
        ),
    ],
)
def test_defaults_are_the_published_settings(method: str, published: str) -> None:
    """DDE halves the base of the LUCIR it wraps."""
    found = method_settings(METHODS[method]()).items()
    assert " ".join(f"{name}={value}" for name, value in found) == published
    assert method_settings(METHODS["lucir-dde"]())["base"] == 5.0


def test_settings_have_the_types_of_their_fields() -> None:
    """Integers, numbers and names; spaces do not matter; wrappers pass them to the inner method."""
    options = ("margin=0.4", " rivals = 3", "balance=new", "base=5")
    assert make_method("lucir", options) == LUCIR(margin=0.4, rivals=3, balance="new", base=5.0)
    assert make_method("lucir-aanets", ("margin=0.4",)) == AANets(LUCIR(margin=0.4))
    assert make_method("lucir-dde", ("strength=0.2",)) == DDE(LUCIR(base=5.0), strength=0.2)
    made = make_method("podnet-dde", ("neighbours=3", "nca=ce"))
    assert made == DDE(PODNet(nca="ce"), neighbours=3)
    own = {"neighbours", "matching", "own_weight", "neighbour_norm", "strength"}
    assert method_settings(AANets(LUCIR())) == method_settings(LUCIR())
    assert set(method_settings(AANets(DDE(LUCIR())))) == own | set(method_settings(LUCIR()))


@dataclass(kw_only=True)
class Switched(Method):
    """A method of a plugin, with a switch and a setting that text cannot give."""

    fast: bool = False
    hook: object = None


def test_a_setting_can_be_a_switch() -> None:
    for text, value in (("true", True), ("False", False)):
        assert with_options(Switched(), [f"fast={text}"], "switched").fast is value
    with pytest.raises(UsageError, match="--set fast=1: fast takes true or false"):
        with_options(Switched(), ["fast=1"], "switched")
    with pytest.raises(UsageError, match="--set hook=x: hook can be set in Python only"):
        with_options(Switched(), ["hook=x"], "switched")


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("lucir", "margin", r"--set margin: write it as name=value"),
        ("lucir", "margins=1", r"unknown setting of lucir 'margins' .*mean 'margin'\?\): choose"),
        ("lucir", "margin=wide", r"--set margin=wide: margin takes a number"),
        ("lucir", "rivals=2.5", r"--set rivals=2.5: rivals takes a whole number"),
        ("lucir", "balance=some", r"balance must be 'none', 'new' or 'all', got 'some'"),
        ("icarl", "objective=mse", r"objective must be 'kd' or 'bce', got 'mse'"),
        ("podnet", "nca=best", r"nca must be 'official', 'paper' or 'ce', got 'best'"),
        ("podnet", "finetune_norm=no", r"finetune_norm must be 'train' or 'eval', got 'no'"),
        ("mnemonics", "pixels=x", r"pixels must be 'prototype', 'bilevel' or 'none', got 'x'"),
        ("lucir-aanets", "balance=some", r"balance must be 'none', 'new' or 'all', got 'some'"),
        ("lucir-aanets", "inner=lucir", r"unknown setting of lucir-aanets 'inner': choose from"),
        ("lucir-aanets", "neighbours=3", r"unknown setting of lucir-aanets 'neighbours'"),
        ("lucir-dde", "momentum_=1", r"unknown setting of lucir-dde 'momentum_': choose from"),
        ("lucir-dde", "neighbours=-1", r"neighbours must be 0 or more, and finite"),
        ("lucir-dde", "own_weight=1", r"own_weight between 0 and 1, got 10 and 1.0"),
        ("lucir-dde", "own_weight=0", r"own_weight between 0 and 1, got 10 and 0.0"),
        ("lucir-dde", "own_weight=nan", r"own_weight must be 0 or more, and finite"),
        ("podnet-dde", "neighbour_norm=no", r"neighbour_norm must be 'eval' or 'train', got 'no'"),
        ("finetune", "lr=3", r"--set lr=3: finetune has no settings"),
        ("lwff", "weight=1", r"unknown method 'lwff' \(did you mean 'lwf'\?\): choose from"),
    ],
)
def test_refuses_invalid_settings(method: str, option: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_method(method, (option,))


@pytest.mark.parametrize(
    ("method", "size", "stem", "expected"),
    [
        ("lucir", None, "auto", ("lucir", "SplitCosine", 64, "7x7", 224)),
        ("lucir", 64, "auto", ("lucir", "SplitCosine", 64, "3x3", 64)),
        ("lwf", 65, "auto", ("plain", "Linear", 64, "7x7", 65)),
        ("podnet", 224, "auto", ("pod", LSC.__name__, 64, "7x7", 224)),
        ("podnet", 224, "3x3", ("pod", LSC.__name__, 64, "3x3", 224)),
    ],
)
def test_methods_have_their_own_networks(
    method: str, size: int | None, stem: Any, expected: tuple[Any, ...]
) -> None:
    """The stem depends on the size, unless it is given."""
    made = make_architecture(LearnSettings(size=size, stem=stem), make_method(method))
    assert (made.variant, made.head, made.width, made.stem, made.size) == expected
