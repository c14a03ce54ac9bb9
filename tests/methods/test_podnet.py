"""PODNet: its losses, proxies and finetuning, by hand and against slow references."""

import copy
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mrdc.methods.lucir import less_forget
from mrdc.methods.podnet import PODNet, cluster, nca_official, nca_paper, pod_spatial
from mrdc.nn.heads import LSC, Split
from mrdc.training.settings import TrainSettings
from tests.helpers import (
    ROWS,
    Says,
    after_a_phase,
    examples,
    lesson,
    says,
    tiny,
    training,
)

LN2 = math.log(2)

pytestmark = pytest.mark.usefixtures("quick")


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
    """Scaled scores, all of them; the margin counts in the paper's alone, there times the scale."""
    logits, y, x = 3 * torch.randn(4, 5), torch.tensor([0, 1, 2, 4]), torch.empty(4)
    net = says(logits / 2)
    cast(Says, net).scale = 2.0
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


def test_first_proxies_are_about_one_long() -> None:
    """As published; longer ones would turn more slowly."""
    torch.manual_seed(0)
    rows = LSC(512).first_rows(20)
    assert rows.norm(dim=2).mean().item() == pytest.approx(1.0, abs=0.01)


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
