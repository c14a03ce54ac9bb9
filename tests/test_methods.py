"""Losses and stages of the methods, by hand and against slow references."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

import mrdc.learner
import mrdc.methods.bic
from mrdc.errors import TrainingError, UsageError
from mrdc.feed import Examples, open_feed
from mrdc.image import Photo
from mrdc.keeping import Keeper
from mrdc.learner import Run
from mrdc.loop import fit
from mrdc.methods import METHODS
from mrdc.methods.base import Method, balanced, imprint
from mrdc.methods.bic import BiC, correct, fit_bias, interleave, set_aside, soft_cross_entropy
from mrdc.methods.icarl import ICaRL, binary_loss
from mrdc.methods.lucir import LUCIR, less_forget, margin_ranking
from mrdc.methods.lwf import LwF, distill
from mrdc.methods.podnet import PODNet, cluster, nca_official, nca_paper, pod_spatial
from mrdc.nn.heads import LSC, Head, Linear, Split, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import ResNet, Variant
from mrdc.prepare import architecture, make_method, method_settings, pick_device
from mrdc.settings import MemorySettings, RunSettings, TrainSettings
from tests.conftest import pixels
from tests.helpers import lesson, small_stream

LN2, LN3 = math.log(2), math.log(3)


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's generator, and one thread for small work."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    set_threads(1)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # the embedder wants two
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    set_threads(threads)


class Says:
    """A network that always says the same."""

    def __init__(
        self, scores: Tensor, features: Tensor | None = None, maps: tuple[Tensor, ...] = ()
    ):
        self.scores = scores
        self.given = torch.eye(2)[:1] if features is None else features
        self.maps = maps
        self.head = LSC(2)
        self.scale = 1.0

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    def features(self, x: Tensor) -> Tensor:
        return self.given

    def compiles(self, x: Tensor) -> bool:
        return False

    def __call__(self, x: Tensor) -> Output:
        return Output(self.maps, self.given, self.scores, self.scale * self.scores)


def says(scores: Tensor, features: Tensor | None = None, maps: tuple[Tensor, ...] = ()) -> Net:
    return cast(Net, Says(scores, features, maps))


def tiny(variant: Variant, head: type[Head]) -> Net:
    backbone = ResNet(variant, 2, "3x3")
    return Net(backbone, head(backbone.features)).eval()


def photo(name: str, seed: int) -> Photo:
    return Photo(name, partial(pixels, seed, 8, 8))


def examples(labels: list[int]) -> Examples:
    """Small images with these labels; a name is a place."""
    return Examples(tuple(photo(str(n), n) for n in range(len(labels))), tuple(labels))


ROWS = st.integers(1, 5).flatmap(
    lambda n: st.integers(2, 6).flatmap(
        lambda c: arrays(np.float32, (n, c), elements=st.floats(-8, 8, width=32))
    )
)


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


def test_balanced_takes_as_many_of_each_as_the_smallest_has() -> None:
    """The first of every class, in their order."""
    picked = balanced(examples([2, 0, 2, 1, 2, 0, 1]))
    assert picked.labels == (2, 0, 2, 1, 0, 1)
    assert [p.id for p in picked.photos] == ["0", "1", "2", "3", "5", "6"]


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_balanced_is_balanced_and_a_part(labels: list[int]) -> None:
    """No class has more than another, none is lost, and no image comes twice."""
    picked = balanced(examples(labels))
    counts = Counter(picked.labels)
    assert set(counts) == set(labels)
    assert set(counts.values()) == {min(Counter(labels).values())}
    places = [int(p.id) for p in picked.photos]
    assert places == sorted(set(places))
    assert [labels[place] for place in places] == list(picked.labels)


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


def training(model: Net, seen: list[TrainSettings]) -> Callable[..., None]:
    """Trains as a run does; notes with what settings."""

    def run(part: Examples, training: TrainSettings, loss: Any, **options: Any) -> None:
        seen.append(training)
        counts = Counter(part.labels)
        assert len(set(counts.values())) == 1, counts
        feed = open_feed(part, 8, torch.device("cpu"), "ram", threads=1)
        fit(model, loss, feed, training, seed=0, **options)

    return run


def after_a_phase(variant: Variant, head: type[Split]) -> tuple[Net, Net]:
    """A network of three classes and its teacher of two."""
    net = tiny(variant, head)
    net.head.grow(2)
    teacher = net.frozen()
    net.head.grow(1)
    return net, teacher


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


# BiC


def test_no_correction_is_no_correction() -> None:
    """Beta 1 and gamma 0, or none at all."""
    logits = torch.randn(3, 5)
    assert torch.equal(correct(logits, torch.tensor([1.0, 0.0]), 2), logits)
    assert correct(logits, None, 2) is logits


def test_a_correction_by_hand() -> None:
    """Twice, and one less, from the third column on."""
    got = correct(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([2.0, -1.0]), 2)
    assert got.tolist() == [[1.0, 2.0, 5.0, 7.0]]


def penalised(bias: Tensor, logits: Tensor, labels: Tensor, start: int, decay: float) -> Tensor:
    """What stage 2 minimises."""
    return F.cross_entropy(correct(logits, bias, start), labels) + 0.5 * decay * bias[1] ** 2


def biased(beta: float, gamma: float, count: int = 20_000) -> tuple[Tensor, Tensor]:
    """Logits whose last two of five columns want this correction, and labels."""
    logits = 2 * torch.randn(count, 5)
    truth = correct(logits, torch.tensor([beta, gamma]), 3).softmax(1)
    return logits, torch.multinomial(truth, 1)[:, 0]


@pytest.mark.parametrize(("beta", "gamma"), [(0.6, -0.5), (1.0, 0.0), (1.5, 1.0)])
def test_the_bias_is_found_again(beta: float, gamma: float) -> None:
    """From labels drawn by corrected logits, up to what the sample allows."""
    logits, labels = biased(beta, gamma)
    assert fit_bias(logits, labels, 3, 0.0).tolist() == pytest.approx([beta, gamma], abs=0.06)


@pytest.mark.parametrize("decay", [0.0, 0.1, 2.0])
def test_the_bias_is_where_the_gradient_vanishes(decay: float) -> None:
    """A minimum, with the decay of gamma and none of beta."""
    logits, labels = biased(0.4, -0.8, 500)
    found = fit_bias(logits, labels, 3, decay).double().requires_grad_()
    penalised(found, logits.double(), labels, 3, decay).backward()  # type: ignore[no-untyped-call]
    assert found.grad is not None
    assert found.grad.abs().max() < 1e-4


def test_gamma_decays() -> None:
    """The more the decay, the nearer it is to 0."""
    logits, labels = biased(0.7, -1.0, 500)
    gammas = [abs(fit_bias(logits, labels, 3, decay)[1].item()) for decay in (0, 0.1, 1, 100)]
    assert gammas == sorted(gammas, reverse=True)
    assert gammas[0] > 0.5 and gammas[-1] < 0.01


@pytest.mark.parametrize(
    ("images", "count"),
    [(2, 1), (9, 1), (19, 1), (20, 2), (30, 3), (99, 9), (100, 10), (119, 10), (1300, 10)],
)
def test_a_tenth_is_set_aside(images: int, count: int) -> None:
    """At least one, at most ten, always the same ones, wherever they stand."""
    ids = [f"image {n}" for n in range(images)]
    aside = set_aside(ids, 3, 7)
    assert len(aside) == count
    assert aside <= set(ids)
    assert aside == set_aside(ids, 3, 7)


def test_other_classes_and_seeds_set_aside_others() -> None:
    """The draw belongs to both."""
    ids = [str(n) for n in range(100)]
    draws = {frozenset(set_aside(ids, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(draws) == 4


@given(train=st.integers(0, 60), validation=st.integers(0, 12))
def test_interleaving_loses_nothing(train: int, validation: int) -> None:
    """Validation at ranks 1, 11, 21, ..., then what is left; each in its own order."""
    a, b = list(range(train)), list(range(100, 100 + validation))
    ranking = interleave(a, b)
    assert [item for item in ranking if item < 100] == a
    assert [item for item in ranking if item >= 100] == b
    places = [rank for rank, item in enumerate(ranking) if item >= 100]
    for number, place in enumerate(places):
        others_left = train > 1 + 9 * number
        assert place == 1 + 10 * number or (not others_left and place >= train)


def test_interleaving_by_hand() -> None:
    """Twenty kept of thirty hold two for validation, one kept none."""
    ranking = interleave(list(range(27)), [91, 92, 93])
    assert ranking.index(91) == 1 and ranking.index(92) == 11 and ranking.index(93) == 21
    assert sum(item > 90 for item in ranking[:20]) == 2
    assert ranking[0] == 0


def test_bic_weighs_distillation_by_the_share_of_old_classes() -> None:
    """3 old of 4: 3/4 of the soft cross-entropy, 1/4 of the hard one."""
    new, old, y = torch.randn(5, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 3])
    x = torch.empty(5)
    hard, soft = F.cross_entropy(new, y), soft_cross_entropy(new, old, 2.0)
    assert torch.equal(BiC().loss(says(new), None, x, y), hard)
    loss = BiC().loss(says(new), says(old), x, y)
    assert loss.item() == pytest.approx((0.75 * soft + 0.25 * hard).item())


def test_a_corrected_teacher_teaches_corrected_answers() -> None:
    """With last phase's numbers, on the classes that were new then; older columns are raw."""
    new, old, y = torch.randn(5, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 3])
    method = BiC(bias_=torch.tensor([0.5, -1.0]), start_=2)
    teacher = torch.cat([old[:, :2], 0.5 * old[:, 2:] - 1], 1)
    expected = 0.75 * soft_cross_entropy(new, teacher, 2.0) + 0.25 * F.cross_entropy(new, y)
    loss = method.loss(says(new), says(old), torch.empty(5), y)
    assert loss.item() == pytest.approx(expected.item())


def test_bic_predicts_with_the_newest_logits_corrected() -> None:
    """So that an old class may win after all."""
    out = Output((), torch.empty(1, 2), torch.tensor([[2.0, 3.0]]), torch.empty(1, 2))
    assert BiC().predict(out).argmax(1).item() == 1
    assert BiC(bias_=torch.tensor([0.5, 0.0]), start_=1).predict(out).argmax(1).item() == 0


def small_run(method: str, *options: str, **given: Any) -> Run:
    memory = MemorySettings(budget="12/class", quality="original", candidates=(50,))
    chosen = RunSettings(
        "photos", method=method, options=options, network="resnet18-narrow", size=8, device="cpu",
        threads=2, memory=memory, train=TrainSettings(epochs=1, batch_size=16),
    )  # fmt: skip
    return Run(replace(chosen, **given), small_stream(2, 2, 2, images=30), Keeper())


def test_validation_images_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no phase, neither new nor from the memory; of old classes the memory holds both kinds."""
    trained: list[Examples] = []
    fitted: list[Tensor] = []
    real = fit_bias

    def watch(logits: Tensor, labels: Tensor, start: int, decay: float) -> Tensor:
        fitted.append(labels)
        return real(logits, labels, start, decay)

    monkeypatch.setattr(Run, "_fit", lambda self, part, *_, **__: trained.append(part))
    monkeypatch.setattr(mrdc.methods.bic, "fit_bias", watch)
    run = small_run("bic")
    for phase in range(3):
        run.learn(phase)
    assert len(trained) == 3
    aside = {
        label: set_aside([p.id for p in photos], run.seed("validation"), label)
        for label, photos in enumerate(run.stream.train.photos)
    }
    for phase, part in enumerate(trained):
        seen = Counter(part.labels)
        assert sorted(seen) == list(range(2 * phase + 2))
        assert seen[2 * phase] == seen[2 * phase + 1] == 27  # of 30
        pairs = zip(part.photos, part.labels, strict=True)
        assert not [p.id for p, label in pairs if p.id in aside[label]]
    memory = run.exemplars.memory if run.exemplars else None
    assert memory is not None
    for label in range(6):
        sources = memory.sources(label)
        assert sources[1] in aside[label]
        assert sources[0] not in aside[label]
    counts = [Counter(labels.tolist()) for labels in fitted]  # from the second phase on
    assert [sorted(count) for count in counts] == [list(range(4)), list(range(6))]
    assert all(len(set(count.values())) == 1 for count in counts)


def test_the_teacher_is_corrected_from_the_second_increment_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what the phase before it found, on that phase's classes."""
    used: list[tuple[list[float] | None, int]] = []

    def look(self: Run, *_: Any, **__: Any) -> None:
        assert isinstance(self.method, BiC)
        bias = self.method.bias_
        used.append((None if bias is None else bias.tolist(), self.method.start_))

    monkeypatch.setattr(Run, "_fit", look)
    found: list[list[float] | None] = []
    run = small_run("bic")
    for phase in range(3):
        run.learn(phase)
        assert isinstance(run.method, BiC)
        found.append(None if run.method.bias_ is None else run.method.bias_.tolist())
    assert [start for _, start in used] == [0, 0, 2]
    assert [bias for bias, _ in used] == [None, None, found[1]]
    assert found[0] is None
    assert found[1] is not None and found[1] != found[2]


# PODNet


def test_pod_by_hand() -> None:
    """A map (3, 4) of one row: squares 9 and 16; sums 25 over the width, 9 and 16 over the height.

    Of the map (1, 0): 1, and 1 and 0. The distance is between the two as unit rows.
    """
    new, old = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[-1.0, 0.0]]]])
    a, b = torch.tensor([25.0, 9.0, 16.0]), torch.tensor([1.0, 1.0, 0.0])
    expected = (a / a.norm() - b / b.norm()).norm().item()
    assert pod_spatial((new,), (old,)).item() == pytest.approx(expected)


def slow_pod(new: Tensor, old: Tensor) -> float:
    """One map, image by image."""
    distances = []
    for a, b in zip(new.double(), old.double(), strict=True):
        rows = []
        for image in (a, b):
            channels, height, width = image.shape
            sums = [
                sum(float(image[c, h, w]) ** 2 for w in range(width))
                for c in range(channels)
                for h in range(height)
            ] + [
                sum(float(image[c, h, w]) ** 2 for h in range(height))
                for c in range(channels)
                for w in range(width)
            ]
            length = math.sqrt(sum(s * s for s in sums))
            rows.append([s / length for s in sums])
        distances.append(math.dist(rows[0], rows[1]))
    return float(np.mean(distances))


def test_pod_against_a_loop() -> None:
    """The mean over maps of several sizes."""
    shapes = [(3, 2, 4, 5), (3, 4, 2, 3), (3, 5, 1, 1)]
    new, old = (tuple(torch.randn(shape) for shape in shapes) for _ in range(2))
    expected = sum(slow_pod(a, b) for a, b in zip(new, old, strict=True)) / 3
    assert pod_spatial(new, old).item() == pytest.approx(expected, rel=1e-5)


def test_pod_of_equal_maps_is_zero_with_finite_gradients() -> None:
    """The start of a phase; NaN would end it."""
    maps = tuple(torch.randn(2, 3, 4, 4, requires_grad=True) for _ in range(4))
    loss = pod_spatial(maps, tuple(m.detach() for m in maps))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert all(m.grad is not None and bool((m.grad == 0).all()) for m in maps)


def test_pod_sums_in_fp32() -> None:
    """Squares of 300 summed over 112 are beyond fp16, and bf16 would round them."""
    maps = torch.full((1, 1, 112, 112), 300.0)
    for kind in (torch.float16, torch.bfloat16):
        assert pod_spatial((maps.to(kind),), (maps,)).item() == pytest.approx(0, abs=1e-3)


def published_nca(scores: Tensor, labels: Tensor, scale: float, margin: float) -> float:
    """The steps of the published code, row by row."""
    losses = []
    for row, label in zip(scores.double().tolist(), labels.tolist(), strict=True):
        logits = [scale * (score - margin) for score in row]
        logits = [logit - max(logits) for logit in logits]
        others = [0.0 if c == label else logit for c, logit in enumerate(logits)]
        losses.append(math.log(sum(map(math.exp, others))) - logits[label])
    return float(np.mean(losses))


@pytest.mark.parametrize("margin", [0.0, 0.6, 5.0])
def test_official_nca_is_what_the_published_steps_come_to(margin: float) -> None:
    """For every margin, since it cancels."""
    scores, labels = -2 * torch.rand(6, 9), torch.randint(0, 9, (6,))
    expected = published_nca(scores, labels, 15.0, margin)
    assert nca_official(15 * scores, labels).item() == pytest.approx(expected, rel=1e-5)


def test_official_nca_by_hand() -> None:
    """u = (ln 2, 0), own class 1: M - u_y = ln 2, and the others add 1 to the 1."""
    assert nca_official(torch.tensor([[LN2, 0.0]]), torch.tensor([1])).item() == pytest.approx(
        2 * LN2
    )


@given(ROWS, st.integers(0, 5))
def test_official_nca_is_cross_entropy_or_little_more(rows: Any, place: int) -> None:
    """Equal where the own class wins; else at most ln 2 above."""
    logits = torch.from_numpy(rows).double()
    labels = torch.full((len(logits),), min(place, logits.shape[1] - 1))
    for row, label in zip(logits, labels, strict=True):
        pair = row[None], label[None]
        more = (nca_official(*pair) - F.cross_entropy(*pair)).item()
        assert -1e-9 <= more <= LN2 + 1e-9
        if row.argmax() == label:
            assert more == pytest.approx(0, abs=1e-9)


def test_the_papers_nca_by_hand() -> None:
    """-(1 - 0.6) + ln(e^2 + e^0.5): the own class is left out of the sum."""
    loss = nca_paper(torch.tensor([[2.0, 1.0, 0.5]]), torch.tensor([1]), 0.6)
    expected = -(1 - 0.6) + math.log(math.exp(2) + math.exp(0.5))
    assert loss.item() == pytest.approx(expected)


def test_the_papers_nca_stops_at_zero_image_by_image() -> None:
    """A good answer cannot pay for a bad one, and has no gradient."""
    logits = torch.tensor([[9.0, 0.0], [0.0, 1.0]], requires_grad=True)
    loss = nca_paper(logits, torch.tensor([0, 0]), 0.6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx((0 + 1.6) / 2)
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]


@given(ROWS, st.integers(0, 5), st.floats(LN2, 10))
def test_the_papers_nca_asks_for_more_of_wrong_answers(
    rows: Any, place: int, margin: float
) -> None:
    """Where another class wins, and the margin is ln 2 or more, it is above the official one."""
    logits = torch.from_numpy(rows).double()
    labels = torch.full((len(logits),), min(place, logits.shape[1] - 1))
    for row, label in zip(logits, labels, strict=True):
        if row[label] < row.max():
            pair = row[None], label[None]
            assert nca_paper(*pair, margin) >= nca_official(*pair) - 1e-9


def test_the_papers_nca_is_not_always_above_the_official_one() -> None:
    """It is 0 for a sure answer, where the other still asks for a little."""
    sure = torch.tensor([[10.0, 0.0, 0.0]]), torch.tensor([0])
    assert nca_paper(*sure, 0.6) == 0
    assert nca_official(*sure) > 0


def test_podnet_can_learn_by_three_losses() -> None:
    """The margin counts in the paper's alone, there times the scale."""
    logits, y, x = 3 * torch.randn(4, 5), torch.tensor([0, 1, 2, 4]), torch.empty(4)
    net = says(logits)
    cast(LSC, net.head).scale.data.fill_(2.0)
    losses = {nca: [PODNet(nca=nca, margin=m).loss(net, None, x, y).item() for m in (0.1, 0.9)]
              for nca in ("official", "paper", "ce")}  # fmt: skip
    assert losses["official"] == [nca_official(logits, y).item()] * 2
    assert losses["ce"] == [F.cross_entropy(logits, y).item()] * 2
    assert losses["paper"] == [nca_paper(logits, y, 2 * m).item() for m in (0.1, 0.9)]
    assert losses["paper"][0] < losses["paper"][1]


@pytest.mark.parametrize(("spatial", "flat"), [(8.0, 0.0), (0.0, 10.0), (3.0, 1.0)])
def test_podnet_weighs_what_it_keeps_by_all_classes_over_the_new(
    spatial: float, flat: float
) -> None:
    """sqrt(60 / 10) for 50 + 10: here the new ones count among those seen."""
    maps = tuple(torch.randn(2, 3, 4, 4) for _ in range(4))
    others = tuple(torch.randn(2, 3, 4, 4) for _ in range(4))
    a, b = torch.randn(2, 6), torch.randn(2, 6)
    logits, y = torch.randn(2, 60), torch.tensor([3, 55])
    method = PODNet(spatial=spatial, flat=flat, nca="ce")
    teacher = says(torch.zeros(2, 50), b, others)
    loss = method.loss(says(logits, a, maps), teacher, torch.empty(2), y)
    kept = math.sqrt(6) * (spatial * pod_spatial(maps, others) + flat * less_forget(a, b))
    assert loss.item() == pytest.approx((F.cross_entropy(logits, y) + kept).item(), rel=1e-5)
    assert (PODNet().spatial, PODNet().flat) == (8.0, 10.0)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_few_images_are_their_own_centres(count: int) -> None:
    """Unit features, repeated until there are ten."""
    features = torch.randn(count, 4)
    centres = cluster(features, 0)
    expected = torch.stack([F.normalize(features, dim=1)[n % count] for n in range(10)])
    torch.testing.assert_close(centres, expected)


def test_centres_are_means_of_what_is_nearest() -> None:
    """Of unit features, not made unit again; ten of them; the same for the same seed."""
    features = torch.randn(80, 4)
    centres = cluster(features, 5)
    assert centres.shape == (10, 4)
    rows = F.normalize(features, dim=1)
    nearest = torch.cdist(rows, centres).argmin(1)
    for number in range(10):
        torch.testing.assert_close(centres[number], rows[nearest == number].mean(0))
    assert torch.equal(centres, cluster(features, 5))
    assert (centres.norm(dim=1) < 1).any()


def test_centres_do_not_depend_on_threads() -> None:
    """Bit for bit, for a class as large as ImageNet's."""
    limits = pytest.importorskip("threadpoolctl").threadpool_limits
    features = torch.randn(1300, 64).abs()
    centres = []
    for threads in (1, 2):
        with limits(threads):
            centres.append(cluster(features, 0))
    assert torch.equal(*centres)


def test_new_proxies_are_centres_as_long_as_old_proxies() -> None:
    """Centres of each new class times the mean length of the old proxies."""
    net = tiny("pod", LSC)
    net.head.grow(2)
    assert isinstance(net.head, LSC)
    old, length = net.head.rows.detach().clone(), net.head.mean_norm().item()
    features, fresh = torch.randn(5, 16), examples([3, 2, 3, 2, 2])
    now = lesson(new=2, model=net, fresh=fresh, features=lambda _: features)
    PODNet().start_phase(now)
    for place, label in enumerate((2, 3)):
        own = F.normalize(features[torch.tensor(fresh.labels) == label], dim=1)
        torch.testing.assert_close(net.head.new[place, : len(own)], length * own)
    assert torch.equal(net.head.old, old)


@pytest.mark.parametrize("norm", ["train", "eval"])
def test_podnet_finetunes_all_proxies_and_nothing_else(norm: Any) -> None:
    """Old ones too; batch statistics drift where batch norms train; stored afterwards."""
    net, teacher = after_a_phase("pod", LSC)
    before, order = copy.deepcopy(net.state_dict()), list[int]()
    seen: list[TrainSettings] = []
    now = lesson(
        model=net, teacher=teacher, fit=training(net, seen), memory=examples([0, 0, 0, 1, 1]),
        preview=lambda: examples([2, 2, 2, 2]), store=lambda: order.append(len(seen)),
    )  # fmt: skip
    method = PODNet(finetune_epochs=2, finetune_norm=norm)
    now.loss = lambda x, y: method.loss(net, teacher, x, y)
    method.end_phase(now)
    changed = {n for n, value in net.state_dict().items() if not torch.equal(value, before[n])}
    assert {n for n in changed if "running" not in n and "num_batches" not in n} == {
        "head.old", "head.new",
    }  # fmt: skip
    assert any("running_mean" in n for n in changed) == (norm == "train")
    assert not cast(Split, net.head).old.requires_grad
    assert order == [1]
    assert seen == [replace(now.training, epochs=2, lr=0.01, milestones=())]


def test_podnet_finetunes_neither_at_first_nor_for_no_epochs() -> None:
    """It only stores."""
    net, teacher = after_a_phase("pod", LSC)
    stored: list[int] = []
    for method, old in ((PODNet(), None), (PODNet(finetune_epochs=0), teacher)):
        now = lesson(model=net, teacher=old, store=lambda: stored.append(1))
        method.end_phase(now)
    assert stored == [1, 1]


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

    monkeypatch.setattr(mrdc.learner, "compiled", lambda net: net)
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

    monkeypatch.setattr(mrdc.learner, "compiled", lambda net: net)
    monkeypatch.setattr(Run, "_fit", look)
    run = small_run("tpcil", compile="yes", precision="bf16")
    run.learn(0)
    run.learn(1)
    first, then, (count,) = sizes
    batch = run.settings.train.batch_size
    assert (first, then) == ({batch}, {batch, batch + count}) and count > 0


# Settings


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
