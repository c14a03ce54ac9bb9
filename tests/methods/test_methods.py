"""Losses and stages of the methods, by hand and against slow references."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mrdc.methods.bic
import mrdc.training.classes
from mrdc._utils.errors import TrainingError, UsageError
from mrdc.data.crops import centre_crop
from mrdc.data.examples import Examples, from_images
from mrdc.methods import METHODS
from mrdc.methods.aanets import AANets
from mrdc.methods.base import Method, balanced, imprint, names_first_phase
from mrdc.methods.bic import BiC, soft_cross_entropy
from mrdc.methods.icarl import ICaRL, binary_loss
from mrdc.methods.lucir import LUCIR, less_forget, margin_ranking
from mrdc.methods.lwf import LwF, distill
from mrdc.methods.podnet import PODNet
from mrdc.nn.heads import LSC, Linear, Split, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.training.classes import Run
from mrdc.training.fit import Stop
from mrdc.training.prepare import architecture, make_method, method_settings, pick_device
from mrdc.training.resume import Keeper, Partial
from mrdc.training.settings import RunSettings, TrainSettings
from tests.helpers import (
    Says,
    after_a_phase,
    examples,
    lesson,
    says,
    small_run,
    small_stream,
    tiny,
    training,
)

LN2, LN3 = math.log(2), math.log(3)

pytestmark = pytest.mark.usefixtures("quick")


# Distillation


def test_distillation_by_hand() -> None:
    """Answers (3/4, 1/4) at temperature 2 against (1/2, 1/2); equal ones add 0; the mean of both.

    KL = 3/4 ln 3/2 + 1/4 ln 1/2; the column of a new class is left out.
    """
    old = torch.tensor([[2 * LN3, 0.0], [5.0, 1.0]])
    new = torch.tensor([[0.0, 0.0, 9.0], [7.0, 3.0, -4.0]])
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert distill(new, old, 2.0).item() == pytest.approx(expected, abs=1e-6)


def test_soft_cross_entropy_by_hand() -> None:
    """Entropy of (3/4, 1/4) where both agree, ln 2 against (1/2, 1/2); no square of T."""
    old = torch.tensor([[2 * LN3, 0.0]])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for new, expected in (([2 * LN3, 0.0, 5.0], entropy), ([1.0, 1.0, 5.0], LN2)):
        assert soft_cross_entropy(torch.tensor([new]), old, 2.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [distill, soft_cross_entropy])
def test_a_pupil_like_its_teacher_has_nothing_to_learn(
    loss: Callable[[Tensor, Tensor, float], Tensor],
) -> None:
    """The gradient is 0 where the old logits are equal, whatever the new ones are."""
    old = torch.randn(4, 3)
    new = torch.cat([old, torch.randn(4, 2)], 1).requires_grad_()
    loss(new, old, 2.0).backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.abs().max() < 1e-6


def test_lwf_adds_a_quarter_of_t_squared_times_the_distance() -> None:
    """Cross-entropy over all classes + 4 * 0.25 * KL; alone in the first phase."""
    old, new, labels = torch.randn(4, 3), torch.randn(4, 5), torch.tensor([0, 2, 3, 4])
    plain = F.cross_entropy(new, labels)
    x = torch.empty(4)
    assert LwF().loss(says(new), None, x, labels).item() == pytest.approx(plain.item())
    kept = F.kl_div((new[:, :3] / 2).log_softmax(1), (old / 2).softmax(1), reduction="sum") / 4
    loss = LwF().loss(says(new), says(old), x, labels)
    assert loss.item() == pytest.approx((plain + kept).item(), rel=1e-5)
    stronger = LwF(weight=0.5).loss(says(new), says(old), x, labels)
    assert stronger.item() == pytest.approx((plain + 2 * kept).item(), rel=1e-5)


# iCaRL


def test_binary_loss_by_hand() -> None:
    """Sums over the classes, means over the images: ln 4/3 + ln 2, and ln 4 + ln 2."""
    logits = torch.tensor([[LN3, 0.0], [LN3, 0.0]])
    expected = (math.log(4 / 3) + LN2 + math.log(4) + LN2) / 2
    assert binary_loss(logits, torch.tensor([0, 1]), None).item() == pytest.approx(expected)


def test_old_classes_learn_the_old_sigmoids_not_the_labels() -> None:
    """Of an old class's image, too: target 1/4 instead of 1, against 3/4."""
    logits, old = torch.tensor([[LN3, 0.0]]), torch.tensor([[-LN3]])
    expected = -(0.25 * math.log(0.75) + 0.75 * math.log(0.25)) + LN2
    assert binary_loss(logits, torch.tensor([0]), old).item() == pytest.approx(expected)


def test_icarl_can_learn_by_either_loss() -> None:
    """As LwF by default, by sigmoids on demand."""
    new, old, y = torch.randn(3, 4), torch.randn(3, 2), torch.tensor([0, 2, 3])
    x = torch.empty(3)
    for teacher in (None, says(old)):
        lwf = LwF().loss(says(new), teacher, x, y)
        assert torch.equal(ICaRL().loss(says(new), teacher, x, y), lwf)
        bce = ICaRL(objective="bce").loss(says(new), teacher, x, y)
        assert torch.equal(bce, binary_loss(new, y, None if teacher is None else old))


@settings(max_examples=50)
@given(seed=st.integers(0, 999), images=st.integers(3, 20))
def test_nearest_mean_against_a_loop(seed: int, images: int) -> None:
    """Class means of unit features, made unit rows; the nearest wins."""
    rng = torch.Generator().manual_seed(seed)
    held, seen = torch.randn(images, 4, generator=rng), torch.randn(9, 4, generator=rng)
    labels = [n % 3 for n in range(images)]
    stored: list[str] = []
    method = ICaRL()
    method.end_phase(
        lesson(
            memory=examples(labels), features=lambda _: held, store=lambda: stored.append("stored")
        )
    )
    assert stored == ["stored"]
    means = []
    for label in range(3):
        rows = [held[n] / held[n].norm() for n in range(images) if labels[n] == label]
        mean = torch.stack(rows).mean(0)
        means.append(mean / mean.norm())
    answers = method.predict(Output((), seen, torch.zeros(9, 3), torch.zeros(9, 3))).argmax(1)
    for feature, answer in zip(seen, answers.tolist(), strict=True):
        distances = [float((feature / feature.norm() - mean).norm()) for mean in means]
        assert distances[answer] == pytest.approx(min(distances), abs=1e-6)


def test_class_means_see_what_the_memory_has_after_storing() -> None:
    """The means are of the exemplars that were just chosen."""
    now = lesson(old=0, new=1, memory=examples([]), features=lambda e: torch.eye(2)[: len(e)])

    def store() -> None:
        now.memory = examples([0, 0])

    now.store = cast(Any, store)
    method = ICaRL()
    method.end_phase(now)
    assert method.class_means_ is not None
    torch.testing.assert_close(method.class_means_, torch.full((1, 2), math.sqrt(0.5)))


# What several methods share


def test_imprinted_rows_are_directions_of_mean_unit_features() -> None:
    """(3, 0) and (0, 1) make (1, 1) / sqrt 2, however long the first is; other classes apart."""
    features = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, -5.0]])
    rows = imprint(features, torch.tensor([4, 4, 5]), 4, 2)
    half = math.sqrt(0.5)
    torch.testing.assert_close(rows, torch.tensor([[half, half], [0.0, -1.0]]))


def test_balanced_takes_as_many_of_each_as_there_are_on_average() -> None:
    """The first of every class, in their order; some again of a class that has fewer."""
    picked = balanced(examples([2, 0, 2, 1, 2, 0, 2]))
    assert picked.labels == (2, 0, 2, 1, 1, 0)
    assert [p.id for p in picked.photos] == ["0", "1", "2", "3", "3", "5"]


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_balanced_is_balanced_and_a_part(labels: list[int]) -> None:
    """No class has more than another, none is lost, and no image comes twice without need."""
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
def test_a_method_hands_over_what_it_has_learned(method: str) -> None:
    """Fields that end in _ go to another object of its kind; settings do not."""
    kind = METHODS[method]
    first, second = kind(), kind()
    learned = {name for name in vars(first) if name.endswith("_")}
    for name in learned:
        setattr(first, name, 3 if isinstance(getattr(first, name), int) else torch.ones(2))
    second.load_state(first.state())
    assert first.state().keys() == learned
    for name in learned:
        assert torch.equal(
            torch.as_tensor(getattr(second, name)), torch.as_tensor(first.state()[name])
        )


def test_first_phases_are_shared_only_where_they_are_the_same() -> None:
    """Plain cross-entropy on all images, with the same network; every other is on its own."""
    plain = {METHODS[name]().first_phase for name in ("finetune", "joint", "lwf", "icarl")}
    others: list[Method] = [
        BiC(), LUCIR(), ICaRL(objective="bce"), PODNet(), PODNet(nca="ce"), PODNet(nca="paper"),
        PODNet(nca="paper", margin=0.3),
    ]  # fmt: skip
    names = [method.first_phase for method in others]
    assert len(plain) == 1
    assert len({*names, *plain}) == len(names) + 1
    assert LUCIR(margin=0.1, base=5.0, balance="all").first_phase == LUCIR().first_phase
    assert LwF(temperature=3.0).first_phase == LwF().first_phase
    assert all(names_first_phase(make()) for make in METHODS.values())


def test_a_method_of_ones_own_shares_a_first_phase_once_it_names_it() -> None:
    """Another loss would else get the network that plain cross-entropy has trained."""

    class Smooth(LUCIR):
        def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
            return F.cross_entropy(out.logits, y, label_smoothing=0.1)

    class Named(Smooth):
        @property
        def first_phase(self) -> str:
            return "smooth"

    assert not names_first_phase(Smooth())
    assert not names_first_phase(AANets(Smooth()))
    assert names_first_phase(AANets(Named()))


# LUCIR


def test_less_forget_by_hand() -> None:
    """1 - 0.6 and 1 - (-1), whatever the lengths: 1.2 on average; 0 where nothing turned."""
    old = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert less_forget(torch.tensor([[3.0, 4.0], [0.0, -7.0]]), old).item() == pytest.approx(1.2)
    new = (3 * old).requires_grad_()
    less_forget(new, old).backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.abs().max() < 1e-6


def test_margin_ranking_by_hand() -> None:
    """Own 0.6 against rivals 0.5 and 0.2, own 0.9 against 0.3 and 0.1; the new image is left out.

    (0.5 - 0.6 + 0.5) + (0.5 - 0.6 + 0.2) + 0 + 0, over two images and two rivals.
    """
    scores = torch.tensor(
        [[0.6, 0.0, 0.5, -0.3, 0.2], [0.0, 0.9, 0.3, 0.1, -0.2], [0.0, 0.0, 0.1, 0.9, 0.8]]
    )
    loss = margin_ranking(scores, torch.tensor([0, 1, 2]), 2, 0.5, 2)
    assert loss.item() == pytest.approx(0.5 / 4)


def test_margin_ranking_without_old_images_is_zero() -> None:
    """And has a gradient, of zeros."""
    scores = torch.randn(3, 5, requires_grad=True)
    loss = margin_ranking(scores, torch.tensor([2, 3, 4]), 2, 0.5, 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert scores.grad is not None and (scores.grad == 0).all()


def test_margin_ranking_with_one_new_class_has_one_rival() -> None:
    """0.5 - 0.2 + 0.1, not halved for the rival that is not there."""
    scores = torch.tensor([[0.2, 0.9, 0.1]])
    assert margin_ranking(scores, torch.tensor([0]), 2, 0.5, 2).item() == pytest.approx(0.4)


@settings(max_examples=60)
@given(seed=st.integers(0, 999), old=st.integers(1, 5), rivals=st.integers(1, 4))
def test_margin_ranking_against_a_loop(seed: int, old: int, rivals: int) -> None:
    """Image by image and rival by rival."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 7, generator=rng) * 2 - 1
    labels = torch.randint(0, 7, (6,), generator=rng)
    terms = [
        max(0.0, 0.3 - row[label] + rival)
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
        if label < old
        for rival in sorted(row[old:], reverse=True)[:rivals]
    ]
    expected = sum(terms) / max(len(terms), 1)
    assert margin_ranking(scores, labels, old, 0.3, rivals).item() == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(50, 10, 22.36), (60, 10, 24.49), (70, 10, 26.46), (80, 10, 28.28), (90, 10, 30.0),
     (50, 2, 50.0)],
)  # fmt: skip
def test_lambda_of_fifty_classes_and_ten_a_phase(old: int, new: int, expected: float) -> None:
    """Features at a right angle forget by 1; beyond cross-entropy that is all of the loss."""
    logits, labels = torch.zeros(1, old + new), torch.tensor([old])
    teacher = says(torch.zeros(1, old), torch.tensor([[0.0, 1.0]]))
    loss = LUCIR().loss(says(logits, torch.tensor([[1.0, 0.0]])), teacher, torch.empty(1), labels)
    assert loss.item() - math.log(old + new) == pytest.approx(expected, abs=0.01)


def test_lucir_in_the_first_phase_is_cross_entropy() -> None:
    """There is nobody to forget."""
    logits, labels = torch.randn(3, 4), torch.tensor([0, 1, 3])
    loss = LUCIR().loss(says(logits), None, torch.empty(3), labels)
    assert torch.equal(loss, F.cross_entropy(logits, labels))


def test_lucir_ranks_old_images_by_their_scores() -> None:
    """Where features are kept, the loss is cross-entropy of logits and the ranking of cosines."""
    scores, labels = torch.rand(4, 5), torch.tensor([0, 1, 3, 4])
    net, teacher = says(scores), says(torch.zeros(4, 3))
    cast(Says, net).scale = 4.0
    loss = LUCIR(margin=0.4, rivals=1).loss(net, teacher, torch.empty(4), labels)
    ranked = margin_ranking(scores, labels, 3, 0.4, 1)
    assert ranked > 0
    assert loss.item() == pytest.approx((F.cross_entropy(4 * scores, labels) + ranked).item())


def test_new_rows_are_imprinted_as_long_as_the_old_ones_on_average() -> None:
    """Old lengths 1 and 3: the new row has length 2 and the direction of its class."""
    net = tiny("lucir", SplitCosine)
    old = torch.zeros(2, 16)
    old[0, 0], old[1, 1] = 1.0, 3.0
    net.head.grow(2, old)
    features = torch.randn(3, 16)
    fresh = examples([2, 2, 2])
    now = lesson(model=net, fresh=fresh, features=lambda e: {fresh: features}[e])
    LUCIR().start_phase(now)
    assert isinstance(net.head, SplitCosine)
    assert net.head.new.norm().item() == pytest.approx(2.0)
    mean = F.normalize(features, dim=1).mean(0)
    assert F.cosine_similarity(net.head.new[0], mean, dim=0).item() == pytest.approx(1.0)
    assert torch.equal(net.head.old, old)


@pytest.mark.parametrize(("balance", "old_too"), [("new", False), ("all", True)])
def test_balanced_finetuning_trains_rows_alone(balance: Any, old_too: bool) -> None:
    """New rows, or old ones too: no weight, scale or statistic of the network besides."""
    net, teacher = after_a_phase("lucir", SplitCosine)
    before, order = copy.deepcopy(net.state_dict()), list[int]()
    seen: list[TrainSettings] = []
    now = lesson(model=net, teacher=teacher, fit=training(net, seen))
    now.loss = lambda x, y: method.loss(net, teacher, x, y)

    def store() -> None:
        now.memory = examples([0, 0, 0, 1, 1, 2, 2, 2])
        order.append(len(seen))

    now.store = cast(Any, store)
    method = LUCIR(balance=balance, balance_epochs=2, balance_lr=0.5)
    method.end_phase(now)
    changed = {n for n, value in net.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {"head.new", *(["head.old"] if old_too else [])}
    assert not cast(Split, net.head).old.requires_grad
    assert order == [0]  # stored first
    expected = replace(now.training, epochs=2, lr=0.5, milestones=(0.5,), gamma=0.1)
    assert seen == [expected]


@pytest.mark.parametrize(("balance", "phase"), [("none", 1), ("all", 0)])
def test_no_finetuning_without_need(balance: Any, phase: int) -> None:
    """Neither where it is not asked for nor in the first phase."""
    net, teacher = after_a_phase("lucir", SplitCosine)
    stored: list[int] = []
    now = lesson(
        phase=phase, model=net, teacher=teacher if phase else None, store=lambda: stored.append(1)
    )
    LUCIR(balance=balance).end_phase(now)  # `fit` is not to be called
    assert stored == [1]


def test_the_published_finetuning_lowers_its_rate_once() -> None:
    """20 epochs from 0.01, a tenth from epoch 10 on."""
    net, teacher = after_a_phase("lucir", SplitCosine)
    seen: list[TrainSettings] = []
    note = lambda part, training, loss, **options: seen.append(training)  # noqa: E731
    now = lesson(model=net, teacher=teacher, memory=examples([0, 1, 2]), fit=note)
    LUCIR(balance="new").end_phase(now)
    assert (seen[0].epochs, seen[0].lr, seen[0].schedule) == (20, 0.01, "multistep")
    assert (seen[0].milestones, seen[0].gamma) == ((0.5,), 0.1)


@pytest.mark.parametrize(
    ("method", "variant", "head", "where"),
    [(LUCIR(balance="new"), "lucir", SplitCosine, [0, 1, 2]),
     (PODNet(), "pod", LSC, [0, 0, 1, 1, 2, 2])],
)  # fmt: skip
def test_finetuning_minimises_the_whole_loss_on_all_classes(
    method: Method, variant: Any, head: type[Split], where: list[int]
) -> None:
    """What is to be kept of the old network counts, too; of PODNet's new classes, what would be
    stored.
    """
    net, teacher = after_a_phase(variant, head)
    seen: list[tuple[Any, list[int]]] = []
    note = lambda part, training, loss, **_: seen.append((loss, list(part.labels)))  # noqa: E731
    memory = examples([0, 1, 2] if isinstance(method, LUCIR) else [0, 0, 1, 1])
    now = lesson(
        model=net, teacher=teacher, memory=memory, fit=note, preview=lambda: examples([2, 2]),
    )  # fmt: skip
    method.end_phase(now)
    assert seen == [(now.loss, where)]


# What a run gives to methods


def test_a_phase_has_the_memory_and_the_network_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New images and all that is held; the teacher answers as the network did, whole."""
    x, before = torch.randint(0, 256, (4, 3, 8, 8)), list[Tensor]()
    trained: list[list[tuple[int, str]]] = []

    def look(self: Run, part: Examples, *_: Any, **__: Any) -> None:
        trained.append([(y, p.id) for y, p in zip(part.labels, part.photos, strict=True)])
        if before:
            assert self.teacher is not None
            torch.testing.assert_close(self.teacher(x).logits, before[-1], rtol=1e-3, atol=1e-3)
        for weight in self.model.parameters():
            weight.data.mul_(1.2)

    monkeypatch.setattr(Run, "_fit", look)
    run = small_run("lwf")
    held: list[tuple[int, str]] = []
    for phase in range(3):
        run.learn(phase)
        labels = run.stream.phases[phase]
        fresh = [(y, p.id) for y in labels for p in run.stream.train.photos[y]]
        assert trained[-1] == fresh + held
        assert run.exemplars is not None
        memory = run.exemplars.memory
        held = [(y, name) for y in memory.labels for name in memory.sources(y)]
        with torch.inference_mode():
            before.append(run.model(x).logits.clone())
    assert len(before) == 3 and before[-1].shape[1] == 6


def test_a_run_is_judged_by_the_test_images_of_all_classes_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As evaluation sees them, in the order of their classes."""
    monkeypatch.setattr(Run, "_fit", lambda *_, **__: None)
    run = small_run("finetune")
    for phase in range(2):
        run.learn(phase)
    images, labels = (torch.cat(parts) for parts in zip(*run.views, strict=True))
    test = from_images(run.stream.test.pick(range(4)))
    assert labels.tolist() == list(test.labels)
    expected = [centre_crop(test[n][0], 8) for n in range(len(test))]
    assert torch.equal(images, torch.stack(expected))


@pytest.mark.parametrize(("method", "clamp"), [("podnet", 5.0), ("lucir", None)])
def test_gradients_are_clamped_for_podnet(
    method: str, clamp: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To [-5, 5], in every stage; for nobody else."""
    seen: list[float | None] = []

    def note(*_: Any, clamp: float | None, **__: Any) -> Stop:
        seen.append(clamp)
        return Stop(0, [])

    monkeypatch.setattr(mrdc.training.classes, "fit", note)
    run = small_run(method)
    for phase in range(2):
        run.learn(phase)
    assert seen == [clamp] * (3 if method == "podnet" else 2)


# The two ends


def test_joint_starts_anew_with_all_images_seen() -> None:
    """A new network for every class so far, and everything to train on."""
    fresh_net, images = tiny("plain", Linear), small_stream(2, 2, 2, images=2).train.pick(range(3))
    now = lesson(model=tiny("plain", Linear), images=images, build=lambda: fresh_net)
    METHODS["joint"]().start_phase(now)
    assert now.model is fresh_net
    assert fresh_net.classes == 3
    assert now.train.labels == (0, 0, 1, 1, 2, 2)


def test_finetune_sees_new_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps none."""
    parts: list[tuple[int, ...]] = []
    monkeypatch.setattr(Run, "_fit", lambda self, part, *_, **__: parts.append(part.labels))
    run = small_run("finetune")
    for phase in range(2):
        run.learn(phase)
    assert [set(labels) for labels in parts] == [{0, 1}, {2, 3}]
    assert run.exemplars is None


@pytest.mark.parametrize(
    "method",
    [
        "lwf",
        "joint",
    ],
)
def test_what_is_compiled_is_the_network_that_learns(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every phase, also where a phase starts with a new network; the teacher likewise."""
    pairs: list[tuple[Any, Any]] = []

    def look(self: Run, *_: Any, **__: Any) -> None:
        for net in (self.model, self.teacher):
            if net is not None:
                assert net.compiled is not None
                pairs.append((net, net.compiled[1]))

    monkeypatch.setattr(mrdc.training.classes, "compiled", lambda net: net)
    monkeypatch.setattr(Run, "_fit", look)
    run = small_run(method, compile="yes", precision="bf16")
    for phase in range(3):
        run.learn(phase)
    assert len(pairs) == 5
    assert all(net is compiled for net, compiled in pairs)


def test_companions_are_compiled_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In phases that have some, though the network was compiled in one that has none."""
    sizes: list[set[int]] = []

    def look(self: Run, *_: Any, companions: Any = None, **__: Any) -> None:
        assert self.model.compiled is not None
        sizes.append(set(self.model.compiled[0]))
        if companions is not None:
            sizes.append({companions.count})

    monkeypatch.setattr(mrdc.training.classes, "compiled", lambda net: net)
    monkeypatch.setattr(Run, "_fit", look)
    run = small_run("tpcil", compile="yes", precision="bf16")
    run.learn(0)
    run.learn(1)
    first, then, (count,) = sizes
    batch = run.settings.train.batch_size
    assert (first, then) == ({batch}, {batch, batch + count}) and count > 0


# Settings


@pytest.mark.parametrize(
    ("method", "published"),
    [
        ("lwf", {"temperature": 2.0, "weight": 0.25}),
        ("icarl", {"temperature": 2.0, "weight": 0.25, "objective": "kd"}),
        ("bic", {"temperature": 2.0, "decay": 0.1}),
        ("lucir", {"base": 10.0, "margin": 0.5, "rivals": 2, "balance": "none",
                   "balance_epochs": 20, "balance_lr": 0.01}),
        ("podnet", {"nca": "official", "margin": 0.6, "spatial": 8.0, "flat": 10.0,
                    "finetune_epochs": 20, "finetune_lr": 0.01, "finetune_norm": "train"}),
    ],
)  # fmt: skip
def test_settings_are_those_published(method: str, published: dict[str, Any]) -> None:
    """All that a method has, unless told otherwise; around LUCIR, DDE keeps half as much."""
    assert method_settings(METHODS[method]()) == published
    assert method_settings(METHODS["lucir-dde"]())["base"] == 5.0


def test_settings_of_a_method_are_read_as_their_fields_are() -> None:
    """Whole numbers, numbers and names; spaces do not matter."""
    options = ("margin=0.4", " rivals = 3", "balance=new", "base=5")
    method = make_method(RunSettings("x", method="lucir", options=options))
    assert method == LUCIR(margin=0.4, rivals=3, balance="new", base=5.0)
    assert make_method(RunSettings("x", method="lucir")) == LUCIR()


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_every_method_can_be_given(method: str) -> None:
    """As it is printed."""
    fields = method_settings(METHODS[method]())
    options = tuple(f"{name}={value}" for name, value in fields.items())
    made = make_method(RunSettings("x", method=method, options=options))
    assert made == METHODS[method]()


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("lucir", "margin", r"--set margin: write it as name=value"),
        ("lucir", "margins=1", r"unknown setting of lucir 'margins': choose .*mean 'margin'\?"),
        ("lucir", "margin=wide", r"--set margin=wide: margin takes a number"),
        ("lucir", "rivals=2.5", r"--set rivals=2.5: rivals takes a whole number"),
        ("lucir", "balance=some", r"balance must be 'none', 'new' or 'all', got 'some'"),
        ("icarl", "objective=mse", r"objective must be 'kd' or 'bce', got 'mse'"),
        ("icarl", "class_means_=1", r"unknown setting of icarl 'class_means_'"),
        ("podnet", "nca=best", r"nca must be 'official', 'paper' or 'ce', got 'best'"),
        ("podnet", "finetune_norm=no", r"finetune_norm must be 'train' or 'eval', got 'no'"),
        ("bic", "seed_=3", r"unknown setting of bic 'seed_': choose from temperature, decay"),
        ("lwff", "weight=1", r"unknown method 'lwff': choose from .*did you mean 'lwf'\?"),
    ],
)  # fmt: skip
def test_refuses_settings_that_are_none(method: str, option: str, message: str) -> None:
    """The message says which, and what is allowed."""
    with pytest.raises(UsageError, match=message):
        make_method(RunSettings("x", method=method, options=(option,)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_refuses_a_device_that_is_not_there() -> None:
    """And says what to do."""
    with pytest.raises(UsageError, match="there is no CUDA device here; use --device cpu"):
        pick_device("cuda")
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("method", "size", "stem", "expected"),
    [
        ("lucir", None, "auto", ("lucir", "SplitCosine", 64, "7x7", 224)),
        ("lucir", 64, "auto", ("lucir", "SplitCosine", 64, "3x3", 64)),
        ("lwf", 65, "auto", ("plain", "Linear", 64, "7x7", 65)),
        ("podnet", 224, "auto", ("pod", "LSC", 64, "3x3", 224)),
        ("podnet", 224, "7x7", ("pod", "LSC", 64, "7x7", 224)),
    ],
)
def test_methods_have_their_own_networks(
    method: str, size: int | None, stem: Any, expected: tuple[Any, ...]
) -> None:
    """The stem by method and size, unless it is given."""
    chosen = RunSettings("x", method=method, size=size, stem=stem)
    made = architecture(chosen, make_method(chosen))
    assert (made.variant, made.head, made.width, made.stem, made.size) == expected


def test_training_that_goes_astray_is_an_error() -> None:
    """It names phase, epoch and the setting to change."""
    run = small_run("finetune", train=TrainSettings(epochs=2, lr=1e30, milestones=()))
    with pytest.raises(
        TrainingError, match=r"loss is nan in phase 0, epoch 2: lower --train\.lr \(now 1e\+30\)"
    ):
        run.learn(0)


class Stopped(Keeper):
    """Keeps the first partial that it is given, and hands it out to others."""

    def __init__(self, partial: Partial | None = None):
        self.partial = partial

    def save_partial(self, partial: Callable[[], Partial]) -> None:
        self.partial = self.partial or partial()

    def load_partial(self, phase: int) -> Partial | None:
        return self.partial


def test_time_before_a_stop_is_in_the_seconds_and_in_their_parts() -> None:
    """Those of a phase that is gone on with."""
    training = TrainSettings(epochs=2, batch_size=16)
    first, second = (small_run("lucir", train=training) for _ in range(2))
    first.keeper = Stopped()
    first.learn(0)
    partial = first.keeper.partial
    assert partial is not None and 0 < partial.checkpoint.about["parts"]["train"] < 1000
    partial.checkpoint.about |= {"elapsed": 1000.0, "parts": {"train": 999.0, "write": 1.0}}
    second.keeper = Stopped(partial)
    second.learn(0)
    (result,) = second.results
    assert result["parts"]["train"] > 999 and result["parts"]["write"] >= 1
    assert sum(result["parts"].values()) <= result["seconds"]
