"""Losses and stages of LwF, iCaRL, LUCIR and the bounds; services and settings of all methods."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mrdc.training.learner
from mrdc._utils.errors import UsageError
from mrdc.data.crops import centre_crop
from mrdc.data.examples import Examples, from_images
from mrdc.methods import DDE, LUCIR, METHODS, AANets, BiC, ICaRL, LwF, Method, PODNet, TrainSettings
from mrdc.methods.base import names_first_phase
from mrdc.methods.bic import soft_cross_entropy
from mrdc.methods.icarl import binary_loss
from mrdc.methods.lucir import less_forget, margin_ranking
from mrdc.methods.lwf import distill
from mrdc.methods.options import make_method, method_settings, with_options
from mrdc.methods.shared import balanced
from mrdc.nn.heads import LSC, Linear, Split, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.training.architecture import make_architecture
from mrdc.training.learner import ClassLearner
from mrdc.training.settings import LearnSettings
from tests.helpers import (
    KilledError,
    Remembers,
    Says,
    after_a_phase,
    changed,
    examples,
    lesson,
    says,
    small_run,
    small_stream,
    state_of,
    tiny,
    training,
)

LN2, LN3 = math.log(2), math.log(3)
Seen = list[tuple[Examples, TrainSettings]]

pytestmark = pytest.mark.usefixtures("quick")


# Distillation


def test_soft_cross_entropy_by_hand() -> None:
    """Entropy of (3/4, 1/4) if both agree, ln 2 against (1/2, 1/2); not scaled by T squared."""
    old = torch.tensor([[2 * LN3, 0.0]])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for new, expected in (([2 * LN3, 0.0, 5.0], entropy), ([1.0, 1.0, 5.0], LN2)):
        assert soft_cross_entropy(torch.tensor([new]), old, 2.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [distill, soft_cross_entropy])
def test_a_student_like_its_teacher_gets_no_gradient(
    loss: Callable[[Tensor, Tensor, float], Tensor],
) -> None:
    """If the old logits are equal, whatever the new ones are."""
    old = torch.randn(4, 3)
    new = torch.cat([old, torch.randn(4, 2)], 1).requires_grad_()
    assert torch.autograd.grad(loss(new, old, 2.0), new)[0].abs().max() < 1e-6


def test_lwf_adds_a_quarter_of_t_squared_times_the_distance() -> None:
    """Cross-entropy over all classes + 4 * 0.25 * KL; no KL in the first phase."""
    old, new, labels = torch.randn(4, 3), torch.randn(4, 5), torch.tensor([0, 2, 3, 4])
    plain = F.cross_entropy(new, labels)
    x = torch.empty(4)
    assert LwF().loss(says(new), None, x, labels).item() == pytest.approx(plain.item())
    kept = F.kl_div((new[:, :3] / 2).log_softmax(1), (old / 2).softmax(1), reduction="sum") / 4
    for method, factor in ((LwF(), 1), (LwF(weight=0.5), 2)):
        loss = method.loss(says(new), says(old), x, labels)
        assert loss.item() == pytest.approx((plain + factor * kept).item(), rel=1e-5)


# iCaRL


def test_binary_loss_by_hand() -> None:
    """Sums over classes, means over images; old classes learn the old sigmoids."""
    logits = torch.tensor([[LN3, 0.0], [LN3, 0.0]])
    expected = (math.log(4 / 3) + LN2 + math.log(4) + LN2) / 2
    assert binary_loss(logits, torch.tensor([0, 1]), None).item() == pytest.approx(expected)
    expected = -(0.25 * math.log(0.75) + 0.75 * math.log(0.25)) + LN2
    found = binary_loss(logits[:1], torch.tensor([0]), torch.tensor([[-LN3]]))
    assert found.item() == pytest.approx(expected)


def test_icarl_has_two_losses() -> None:
    """LwF's by default, or the original one of sigmoids."""
    new, old, y = torch.randn(3, 4), torch.randn(3, 2), torch.tensor([0, 2, 3])
    x = torch.empty(3)
    for teacher in (None, says(old)):
        lwf = LwF().loss(says(new), teacher, x, y)
        assert torch.equal(ICaRL().loss(says(new), teacher, x, y), lwf)
        bce = ICaRL(objective="bce").loss(says(new), teacher, x, y)
        assert torch.equal(bce, binary_loss(new, y, None if teacher is None else old))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 999), images=st.integers(3, 20))
def test_nearest_mean_by_distances(seed: int, images: int) -> None:
    """Class means of unit features of the memory, as unit rows; the nearest wins."""
    rng = torch.Generator().manual_seed(seed)
    held, seen = torch.randn(images, 4, generator=rng), torch.randn(9, 4, generator=rng)
    labels = [n % 3 for n in range(images)]
    method, memory = ICaRL(), examples(labels)
    method.end_phase(lesson(memory=memory, features=lambda part: {memory: held}[part]))
    unit = F.normalize(held, dim=1)
    means = F.normalize(torch.stack([unit[label::3].mean(0) for label in range(3)]), dim=1)
    answers = method.predict(Output((), seen, torch.zeros(9, 3), torch.zeros(9, 3))).argmax(1)
    distances = torch.cdist(F.normalize(seen, dim=1), means)
    nearest = distances[range(9), answers]
    torch.testing.assert_close(nearest, distances.amin(1), rtol=0, atol=1e-6)


# Shared steps


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_balanced_keeps_every_class_and_repeats_evenly(labels: list[int]) -> None:
    """All classes have the same number, and no image is repeated without need."""
    picked = balanced(examples(labels))
    before, counts = Counter(labels), Counter(picked.labels)
    assert set(counts) == set(labels)
    assert set(counts.values()) == {round(len(labels) / len(before))}
    places = [int(p.id) for p in picked.photos]
    assert places == sorted(places)
    assert [labels[place] for place in places] == list(picked.labels)
    for place, times in Counter(places).items():
        shown = counts[labels[place]] / before[labels[place]]
        assert times in (math.floor(shown), math.ceil(shown))


@pytest.mark.parametrize("method", METHODS)
def test_state_and_settings_of_every_method(method: str) -> None:
    """Fields that end in _ are state and pass to another object; the others can be set."""
    kind = METHODS[method]
    first, second = kind(), kind()
    learned = {name for name in vars(first) if name.endswith("_")}
    for name in learned:
        setattr(first, name, 3 if isinstance(getattr(first, name), int) else torch.ones(2))
    second.load_state(first.state())
    assert learned <= first.state().keys()
    for name in learned:
        mine, theirs = (torch.as_tensor(getattr(one, name)) for one in (first, second))
        assert torch.equal(mine, theirs)
    assert not learned & method_settings(kind()).keys()
    options = [f"{name}={value}" for name, value in method_settings(kind()).items()]
    assert make_method(method, options) == kind()


def test_first_phases_are_shared_only_if_they_are_equal() -> None:
    """Plain cross-entropy on all images with the same network, whatever the later settings."""
    plain = {METHODS[name]().first_phase for name in ("finetune", "joint", "lwf", "icarl")}
    others: list[Method] = [BiC(), LUCIR(), ICaRL(objective="bce"), PODNet(), PODNet(nca="ce")]
    others += [PODNet(nca="paper"), PODNet(nca="paper", margin=0.3)]
    names = [method.first_phase for method in others]
    assert len(plain) == 1 and len({*names, *plain}) == len(names) + 1
    assert LUCIR(margin=0.1, base=5.0, balance="all").first_phase == LUCIR().first_phase
    assert LwF(temperature=3.0).first_phase == LwF().first_phase
    assert all(names_first_phase(make()) for make in METHODS.values())


def test_a_method_from_elsewhere_shares_a_first_phase_once_it_names_it() -> None:
    """Otherwise another loss would get the network trained with plain cross-entropy."""

    class Smooth(LUCIR):
        def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
            return F.cross_entropy(out.logits, y, label_smoothing=0.1)

    class Named(Smooth):
        first_phase = "smooth"

    assert not names_first_phase(Smooth()) and not names_first_phase(AANets(Smooth()))
    assert names_first_phase(AANets(Named()))


# LUCIR


def test_less_forget_by_hand() -> None:
    """1 - 0.6 and 1 - (-1), whatever the lengths: 1.2 on average; 0 without rotation."""
    old = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert less_forget(torch.tensor([[3.0, 4.0], [0.0, -7.0]]), old).item() == pytest.approx(1.2)
    new = (3 * old).requires_grad_()
    assert torch.autograd.grad(less_forget(new, old), new)[0].abs().max() < 1e-6


@settings(max_examples=60)
@given(seed=st.integers(0, 999), old=st.integers(0, 6), rivals=st.integers(1, 4))
def test_margin_ranking_against_a_loop(seed: int, old: int, rivals: int) -> None:
    """Image by image and rival by rival; without old images it is 0, as are its gradients."""
    rng = torch.Generator().manual_seed(seed)
    scores = (torch.rand(6, 7, generator=rng) * 2 - 1).requires_grad_()
    labels = torch.randint(0, 7, (6,), generator=rng)
    terms = [
        max(0.0, 0.3 - row[label] + rival)
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
        if label < old
        for rival in sorted(row[old:], reverse=True)[:rivals]
    ]
    found = margin_ranking(scores, labels, old, 0.3, rivals)
    assert found.item() == pytest.approx(sum(terms) / max(len(terms), 1), abs=1e-6)
    assert terms or (torch.autograd.grad(found, scores)[0] == 0).all()


@pytest.mark.parametrize(("old", "new", "expected"), [(50, 10, 22.36), (90, 10, 30), (50, 2, 50)])
def test_lambda_by_hand(old: int, new: int, expected: float) -> None:
    """Features at a right angle forget by 1; beyond cross-entropy that is the whole loss."""
    logits, labels = torch.zeros(1, old + new), torch.tensor([old])
    teacher = says(torch.zeros(1, old), torch.tensor([[0.0, 1.0]]))
    loss = LUCIR().loss(says(logits, torch.tensor([[1.0, 0.0]])), teacher, torch.empty(1), labels)
    assert loss.item() - math.log(old + new) == pytest.approx(expected, abs=0.01)


def test_lucir_ranks_old_images_by_cosines() -> None:
    """Cross-entropy of logits plus the ranking of scores, which the first phase lacks."""
    scores, labels = torch.rand(4, 5), torch.tensor([0, 1, 3, 4])
    net, teacher, x = says(scores), says(torch.zeros(4, 3)), torch.empty(4)
    cast(Says, net).scale = 4.0
    plain = F.cross_entropy(4 * scores, labels)
    assert torch.equal(LUCIR().loss(net, None, x, labels), plain)
    ranked = margin_ranking(scores, labels, 3, 0.4, 1)
    assert ranked > 0
    loss = LUCIR(margin=0.4, rivals=1).loss(net, teacher, x, labels)
    assert loss.item() == pytest.approx((plain + ranked).item())


def test_new_rows_are_directions_of_mean_unit_features() -> None:
    """As long as the old rows on average: 1 and 3 give 2, whatever the features' lengths."""
    net, old = tiny(), torch.zeros(2, 16)
    old[0, 0], old[1, 1] = 1.0, 3.0
    net.head.grow(2, old)
    fresh, features = examples([2, 2, 3]), torch.zeros(3, 16)
    features[0, 0], features[1, 1], features[2, 1] = 3.0, 1.0, -5.0
    LUCIR().start_phase(lesson(model=net, new=2, fresh=fresh, features={fresh: features}.get))
    assert isinstance(net.head, SplitCosine)
    expected = torch.zeros(2, 16)
    expected[0, :2], expected[1, 1] = math.sqrt(2), -2.0
    torch.testing.assert_close(net.head.new.detach(), expected)
    assert torch.equal(net.head.old, old)


@pytest.mark.parametrize(("balance", "old_too"), [("new", False), ("all", True)])
def test_balanced_finetuning_trains_rows_alone(balance: Any, old_too: bool) -> None:
    """New rows, or all rows, on the balanced memory; no other weight, scale or statistic.

    Neither by default nor in the first phase.
    """
    net, teacher = after_a_phase("lucir", SplitCosine)
    before, seen, memory = state_of(net), Seen(), examples([0, 0, 0, 1, 1, 2, 2, 2])
    method = LUCIR(balance=balance, balance_epochs=2, balance_lr=0.5)
    loss = lambda x, y: method.loss(net, teacher, x, y)  # noqa: E731
    now = lesson(model=net, teacher=teacher, memory=memory, fit=training(net, loss, seen))
    method.end_phase(now)
    assert changed(net, before) == {"head.new", *(["head.old"] if old_too else [])}
    assert not cast(Split, net.head).old.requires_grad
    expected = replace(now.training, epochs=2, lr=0.5, milestones=(0.5,), gamma=0.1)
    assert seen == [(balanced(memory), expected)]
    LUCIR().end_phase(lesson(model=net, teacher=teacher))  # `fit` would raise
    LUCIR(balance=balance).end_phase(lesson(phase=0, model=net))


# Services of a run


def test_a_phase_has_the_memory_and_the_network_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All new images and all that is held; the teacher answers as the network did."""
    x, before = torch.randint(0, 256, (4, 3, 8, 8)), list[Tensor]()
    trained: list[list[tuple[int, str]]] = []

    def look(self: ClassLearner, part: Examples, *_: Any, **__: Any) -> None:
        trained.append([(y, p.id) for y, p in zip(part.labels, part.photos, strict=True)])
        if before:
            assert self.teacher is not None
            torch.testing.assert_close(self.teacher(x).logits, before[-1], rtol=1e-3, atol=1e-3)
        for weight in self.model.parameters():
            weight.data.mul_(1.2)

    monkeypatch.setattr(ClassLearner, "fit", look)
    run = small_run("lwf")
    stream = run.learner.stream
    held: list[tuple[int, str]] = []
    for phase in range(3):
        run.learn(phase)
        labels = stream.phases[phase]
        fresh = [(y, p.id) for y in labels for p in stream.train.photos[y]]
        assert trained[-1] == fresh + held
        held = [(y, name) for y in run.memory.labels for name in run.memory.sources(y)]
        with torch.inference_mode():
            before.append(run.learner.model(x).logits.clone())
    assert len(before) == 3 and before[-1].shape[1] == 6


def test_bounds_and_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finetune trains on new images, joint on all with a new network; tests see all classes."""
    parts: list[tuple[int, ...]] = []
    monkeypatch.setattr(ClassLearner, "fit", lambda self, part, *_, **__: parts.append(part.labels))
    run = small_run("finetune").learn(0, 1)
    assert [set(labels) for labels in parts] == [{0, 1}, {2, 3}]
    assert run.learner.exemplars is None
    images, labels = (torch.cat(part) for part in zip(*run.learner.views, strict=True))
    test = from_images(run.learner.stream.test.pick(range(4)))
    assert labels.tolist() == list(test.labels)
    expected = [centre_crop(test[n][0], 8) for n in range(len(test))]
    assert torch.equal(images, torch.stack(expected))
    fresh_net, known = tiny("plain", Linear), small_stream(2, 2, 2, images=2).train.pick(range(3))
    now = lesson(model=tiny("plain", Linear), images=known, build=lambda: fresh_net)
    METHODS["joint"]().start_phase(now)
    assert now.model is fresh_net and fresh_net.classes == 3
    assert now.train.labels == (0, 0, 1, 1, 2, 2)


def test_gradients_are_clamped_for_podnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """To [-5, 5] in every stage; not for other methods."""
    seen: list[float | None] = []
    note = lambda *_, clamp, **__: seen.append(clamp)  # noqa: E731
    monkeypatch.setattr(mrdc.training.learner, "fit", note)
    for method in ("podnet", "lucir"):
        small_run(method, stream=small_stream(2, 2)).learn(0, 1)
    assert seen == [5.0] * 3 + [None] * 2


@pytest.mark.parametrize("method", ["lwf", "joint", "tpcil"])
def test_the_networks_that_learn_are_compiled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every phase, even with a new network, along with its teacher and for its companions."""
    seen: list[tuple[int, bool]] = []

    def look(self: ClassLearner, *_: Any, companions: Any = None, **__: Any) -> None:
        nets = [net for net in (self.model, self.teacher) if net is not None]
        assert all(net.compiled is not None and net.compiled[1] is net for net in nets)
        more = {16 + companions.count} if companions else set()
        assert self.model.compiled is not None and self.model.compiled[0] == {16} | more
        seen.append((len(nets), bool(more)))

    monkeypatch.setattr(mrdc.training.learner, "compiled", lambda net, stages: net)
    monkeypatch.setattr(ClassLearner, "fit", look)
    small_run(method, compile="yes", precision="bf16").learn(0, 1, 2)
    assert seen == [(1, False), *[(2, method == "tpcil")] * 2]


def test_time_before_a_stop_counts() -> None:
    """It is included in the seconds of the phase and of its parts."""
    train = TrainSettings(epochs=2, batch_size=16)
    keeper = Remembers(stop=(0, 1))
    with pytest.raises(KilledError):
        small_run("lucir", keeper=keeper, train=train).learn(0)
    partial = keeper.partial
    assert partial is not None and 0 < partial.checkpoint.about["parts"]["train"] < 1000
    partial.checkpoint.about |= {"elapsed": 1000.0, "parts": {"train": 999.0, "write": 1.0}}
    (result,) = small_run("lucir", keeper=keeper, train=train).learn(0).results
    assert result.parts["train"] > 999 and result.parts["write"] >= 1
    assert sum(result.parts.values()) <= result.seconds


# Settings


@pytest.mark.parametrize(
    ("method", "published"),
    [
        ("lwf", "temperature=2.0 weight=0.25"),
        ("icarl", "temperature=2.0 weight=0.25 objective=kd"),
        ("bic", "temperature=2.0 weighting=classes decay=0.1"),
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
        ("lucir", "margins=1", r"unknown setting of lucir 'margins': choose .*mean 'margin'\?"),
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
        ("lwff", "weight=1", r"unknown method 'lwff': choose from .*did you mean 'lwf'\?"),
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
        ("podnet", 224, "auto", ("pod", LSC.__name__, 64, "3x3", 224)),
        ("podnet", 224, "7x7", ("pod", LSC.__name__, 64, "7x7", 224)),
    ],
)
def test_methods_have_their_own_networks(
    method: str, size: int | None, stem: Any, expected: tuple[Any, ...]
) -> None:
    """The stem depends on method and size, unless it is given."""
    made = make_architecture(LearnSettings(size=size, stem=stem), make_method(method))
    assert (made.variant, made.head, made.width, made.stem, made.size) == expected
