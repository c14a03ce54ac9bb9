"""PODNet: its losses, proxies and finetuning, by hand and against slow references."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from mrdc.data.examples import Examples
from mrdc.methods import TrainSettings
from mrdc.methods.lucir import less_forget
from mrdc.methods.podnet import PODNet, cluster, nca_official, nca_paper, pod_spatial
from mrdc.methods.shared import balanced
from mrdc.nn.heads import LSC, Split
from mrdc.nn.net import Net
from tests.helpers import (
    Says,
    after_a_phase,
    changed,
    examples,
    lesson,
    says,
    state_of,
    tiny,
    training,
)

LN2 = math.log(2)
ROWS = st.integers(1, 5).flatmap(
    lambda n: st.integers(2, 6).flatmap(
        lambda c: arrays(np.float32, (n, c), elements=st.floats(-8, 8, width=32))
    )
)

pytestmark = pytest.mark.usefixtures("quick")


def slow_row(image: Tensor) -> list[float]:
    """Squares of a map (c, h, w) summed over each side, one number at a time, as a unit row."""
    channels, height, width = image.shape
    squares = (image.double() ** 2).tolist()
    c, h, w = range(channels), range(height), range(width)
    sums = [sum(squares[i][j][k] for k in w) for i in c for j in h]
    sums += [sum(squares[i][j][k] for j in h) for i in c for k in w]
    length = math.sqrt(sum(s * s for s in sums))
    return [s / length for s in sums]


def test_pod_against_a_loop() -> None:
    """The mean over images, then over maps of several sizes."""
    shapes = [(3, 2, 4, 5), (3, 4, 2, 3), (3, 5, 1, 1)]
    new, old = (tuple(torch.randn(shape) for shape in shapes) for _ in range(2))
    means = [
        np.mean([math.dist(slow_row(a), slow_row(b)) for a, b in zip(*maps, strict=True)])
        for maps in zip(new, old, strict=True)
    ]
    assert pod_spatial(new, old).item() == pytest.approx(np.mean(means), rel=1e-5)


def test_pod_of_equal_maps_is_zero_with_finite_gradients() -> None:
    """As at the start of a phase, where NaN would end training."""
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
def test_official_nca_against_the_published_steps(margin: float) -> None:
    """Equal for every margin, since it cancels; for u = (ln 2, 0) and class 1 it is 2 ln 2."""
    scores, labels = -2 * torch.rand(6, 9), torch.randint(0, 9, (6,))
    expected = published_nca(scores, labels, 15.0, margin)
    assert nca_official(15 * scores, labels).item() == pytest.approx(expected, rel=1e-5)
    by_hand = nca_official(torch.tensor([[LN2, 0.0]]), torch.tensor([1]))
    assert by_hand.item() == pytest.approx(2 * LN2)


@given(ROWS, st.integers(0, 5), st.floats(LN2, 10))
def test_official_nca_lies_between_cross_entropy_and_the_papers(
    rows: Any, place: int, margin: float
) -> None:
    """At most ln 2 above cross-entropy, 0 if the own class wins; the paper's is larger still."""
    logits = torch.from_numpy(rows).double()
    labels = torch.full((len(logits),), min(place, logits.shape[1] - 1))
    for row, label in zip(logits, labels, strict=True):
        pair = row[None], label[None]
        more = (nca_official(*pair) - F.cross_entropy(*pair)).item()
        assert -1e-9 <= more <= LN2 + 1e-9
        if row.argmax() == label:
            assert more == pytest.approx(0, abs=1e-9)
        if row[label] < row.max():
            assert nca_paper(*pair, margin) >= nca_official(*pair) - 1e-9


def test_the_papers_nca_by_hand() -> None:
    """The own class is left out of the sum; it stops at 0, image by image, with no gradient."""
    loss = nca_paper(torch.tensor([[2.0, 1.0, 0.5]]), torch.tensor([1]), 0.6)
    expected = -(1 - 0.6) + math.log(math.exp(2) + math.exp(0.5))
    assert loss.item() == pytest.approx(expected)
    logits, labels = torch.tensor([[9.0, 0.0], [0.0, 1.0]], requires_grad=True), torch.zeros(2)
    loss = nca_paper(logits, labels.long(), 0.6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx((0 + 1.6) / 2)
    assert logits.grad is not None and logits.grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]
    assert nca_official(logits[:1], labels[:1].long()) > 0


def test_podnet_has_three_losses() -> None:
    """All use scaled scores; the margin matters only in the paper's, times the scale."""
    logits, y, x = 3 * torch.randn(4, 5), torch.tensor([0, 1, 2, 4]), torch.empty(4)
    net = says(logits / 2)
    cast(Says, net).scale = 2.0
    cast(LSC, net.head).scale.data.fill_(2.0)
    kinds: Any = ("official", "paper", "ce")
    losses = {
        nca: [PODNet(nca=nca, margin=m).loss(net, None, x, y).item() for m in (0.1, 0.9)]
        for nca in kinds
    }
    assert losses["official"] == [nca_official(logits, y).item()] * 2
    assert losses["ce"] == [F.cross_entropy(logits, y).item()] * 2
    assert losses["paper"] == [nca_paper(logits, y, 2 * m).item() for m in (0.1, 0.9)]
    assert losses["paper"][0] < losses["paper"][1]


@pytest.mark.parametrize(("spatial", "flat"), [(8.0, 0.0), (0.0, 10.0), (3.0, 1.0)])
def test_podnet_weighs_distillation_by_all_classes_over_the_new(
    spatial: float, flat: float
) -> None:
    """sqrt(60 / 10) for 50 + 10: the new classes count as seen."""
    maps = tuple(torch.randn(2, 3, 4, 4) for _ in range(4))
    others = tuple(torch.randn(2, 3, 4, 4) for _ in range(4))
    a, b = torch.randn(2, 6, requires_grad=True), torch.randn(2, 6)
    logits, y = torch.randn(2, 60), torch.tensor([3, 55])
    method = PODNet(spatial=spatial, flat=flat, nca="ce")
    teacher = says(torch.zeros(2, 50), b, others)
    loss = method.loss(says(logits, a, maps), teacher, torch.empty(2), y)
    kept = math.sqrt(6) * (spatial * pod_spatial(maps, others) + flat * less_forget(a, b))
    assert loss.item() == pytest.approx((F.cross_entropy(logits, y) + kept).item(), rel=1e-5)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_few_images_are_their_own_centres(count: int) -> None:
    """Unit features, repeated until there are ten."""
    features = torch.randn(count, 4)
    centres = cluster(features, 0)
    expected = torch.stack([F.normalize(features, dim=1)[n % count] for n in range(10)])
    torch.testing.assert_close(centres, expected)


def test_centres_are_means_of_the_nearest_features() -> None:
    """Ten means of unit features, not normalised again; the same for the same seed."""
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


def test_lengths_of_proxies() -> None:
    """The first about 1, as published; new ones, centres of their class, as long as the old."""
    assert LSC(512).first_rows(20).norm(dim=2).mean().item() == pytest.approx(1.0, abs=0.01)
    net = tiny("pod", LSC, 2)
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
def test_finetuning_trains_all_proxies_and_nothing_else(norm: Any) -> None:
    """On equally many exemplars, new ones as they would be stored; "train" moves statistics."""
    net, teacher = after_a_phase("pod", LSC)
    before, seen = state_of(net), list[tuple[Examples, TrainSettings]]()
    memory, new = examples([0, 0, 0, 1, 1]), examples([2, 2, 2, 2])
    method = PODNet(finetune_epochs=2, finetune_norm=norm)
    fit = training(net, lambda x, y: method.loss(net, teacher, x, y), seen)
    now = lesson(model=net, teacher=teacher, fit=fit, memory=memory, preview=lambda _: new)
    method.before_store(now)
    names = changed(net, before)
    rows = {n for n in names if "running" not in n and "num_batches" not in n}
    assert rows == {"head.old", "head.new"}
    assert any("running_mean" in n for n in names) == (norm == "train")
    assert not cast(Split, net.head).old.requires_grad
    expected = replace(now.training, epochs=2, lr=0.01, milestones=())
    assert seen == [(balanced(memory + new), expected)]

    PODNet().before_store(lesson(model=net))  # in the first phase `fit` would raise
    PODNet(finetune_epochs=0).before_store(lesson(model=net, teacher=teacher))


def finetuned(asked: bool) -> Tensor:
    """Proxies after finetuning, with or without asking the teacher."""
    torch.manual_seed(0)
    net, teacher = after_a_phase("pod", LSC)
    method, nobody = PODNet(finetune_epochs=2), cast(Net, SimpleNamespace(classes=2))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        if not asked:
            return method.loss(net, nobody, x, y)
        out = net(x)
        moving = out._replace(features=out.features.requires_grad_())
        kept = method.preservation(net, teacher, moving, x, y)
        assert kept > 0
        return method.classification(net, out, y) + kept

    memory, new, fit = examples([0, 0, 1, 1]), examples([2, 2]), training(net, loss, [])
    now = lesson(model=net, teacher=teacher, fit=fit, memory=memory, preview=lambda _: new)
    method.before_store(now)
    return cast(Split, net.head).rows.detach()


def test_finetuning_does_not_ask_the_teacher() -> None:
    """Distillation has no gradients for the proxies."""
    assert torch.equal(finetuned(True), finetuned(False))
