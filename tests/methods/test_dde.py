"""DDE: neighbours, the loss and the momentum effect, by hand and against slow references."""

import copy
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import mrdc.methods.dde
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.methods import DDE, LUCIR, Lesson, Method, PODNet, TrainSettings
from mrdc.methods.dde import colliding, nearest, once
from mrdc.methods.shared import balanced
from mrdc.nn.heads import LSC, Head, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.training.feed import Resident, open_feed
from tests.helpers import CPU, changed, lesson, small_run, small_stream, state_of, tiny, training
from tests.training.feeds import varied

pytestmark = pytest.mark.usefixtures("quick")


def greys(labels: list[int], first: int = 0) -> Examples:
    """Images of one grey each, which is also the name; every crop looks the same."""
    levels = range(first, first + len(labels))
    photos = (Photo(str(n), partial(np.full, (8, 8, 3), n, np.uint8)) for n in levels)
    return Examples(tuple(photos), tuple(labels))


def who(images: Tensor) -> list[int]:
    """The grey levels of images."""
    return [round(float(image.float().mean())) for image in images]


# Neighbours


def slow_nearest(rows: Tensor, candidates: int, count: int) -> list[list[int]]:
    """Nearest rows by angle, one row at a time."""
    found = []
    for place, row in enumerate(rows.double()):
        angles = F.cosine_similarity(row[None], rows[:candidates].double()).neg().tolist()
        others = [n for n in range(candidates) if n != place]
        found.append(sorted(others, key=angles.__getitem__)[:count])
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(2, 9),
    candidates=st.integers(1, 9),
    count=st.integers(1, 9),
    chunk=st.integers(1, 10),
)
@example(seed=0, rows=6, candidates=3, count=1, chunk=2)  # the last chunk has no candidate
def test_neighbours_against_a_loop(
    seed: int, rows: int, candidates: int, count: int, chunk: int
) -> None:
    """The nearest first, whatever the lengths, chunk by chunk; fewer of few candidates."""
    candidates = min(candidates, rows)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 3, generator=generator)
    features *= 10 * torch.rand(rows, 1, generator=generator) + 0.1
    with patch.object(mrdc.methods.dde, "CHUNK", chunk):
        found = nearest(features, candidates, count)
    assert found.tolist() == slow_nearest(features, candidates, min(count, candidates - 1))
    assert found.dtype == np.intp


def test_an_image_is_no_neighbour_of_itself_even_among_copies() -> None:
    """Its copy is; exemplars, the last row here, are never neighbours."""
    features = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    found = nearest(features, 3, 1)
    assert [found[n].tolist() for n in (0, 1, 3)] == [[1], [0], [2]]


@given(st.integers(1, 9), st.integers(1, 5), st.integers(6, 30), st.integers(0, 99))
def test_neighbours_are_fetched_once(n: int, k: int, candidates: int, seed: int) -> None:
    """All that are needed, and equally many for every batch of one size."""
    near = np.random.default_rng(seed).integers(candidates, size=(n, k))
    places, links = once(near, candidates)
    assert (places[links] == near.ravel()).all()
    assert set(places.tolist()) == set(near.ravel().tolist())
    assert len(places) == min(n * k, n * math.ceil(candidates / n))


def neighbourly(phase: int = 1, fresh: int = 8, **options: Any) -> tuple[DDE, Lesson, Tensor]:
    """A phase that has just started: new images, three exemplars, their features."""
    table = torch.randn(fresh + 3, 16)
    train = greys([2] * fresh + [0, 1, 1])
    now = lesson(
        phase=phase,
        model=tiny(classes=2),
        train=train,
        fresh=train.pick(range(fresh)),
        features=lambda part: table[[int(photo.id) for photo in part.photos]],
    )
    method = DDE(LUCIR(), momentum_=torch.ones(16), **options)
    method.start_phase(now)
    return method, now, table


@pytest.mark.parametrize("resident", ["gpu", "ram", "stream"])
@pytest.mark.parametrize(("batch_size", "norm"), [(2, "eval"), (5, "eval"), (5, "train")])
def test_a_batch_brings_the_neighbours_of_its_images(
    resident: Resident, batch_size: int, norm: Any
) -> None:
    """The nearest first, image after image; batch norms that learn see one every time."""
    _, now, table = neighbourly(neighbours=3, neighbour_norm=norm, matching="phase")
    assert now.companions is not None and now.companions.cropped
    feed = open_feed(now.train, 8, CPU, resident, threads=2, companions=now.companions)
    expected = slow_nearest(table, 8, 3)
    seen = []
    for x, y, near, links in feed.epoch(batch_size, 0, 0):
        seen += who(x)
        assert y.tolist() == [now.train.labels[n] for n in who(x)]
        assert who(near[links]) == [n for own in who(x) for n in expected[own]]
        if norm == "train":
            assert links.tolist() == list(range(3 * len(x)))
            continue
        assert near.shape == (len(x) * min(3, math.ceil(8 / len(x))), 3, 8, 8)
        assert set(who(near)) == {n for own in who(x) for n in expected[own]}
    assert sorted(seen) == list(range(11))


@pytest.mark.parametrize("resident", ["gpu", "ram", "stream"])
def test_neighbours_are_matched_anew_on_the_views_of_every_epoch(resident: Resident) -> None:
    """In the features of the old network, of the very crops that are trained on."""
    train = varied(11)
    old = tiny(classes=2)
    now = lesson(model=tiny(classes=2), teacher=old, train=train, fresh=train.pick(range(8)))
    companions = DDE(LUCIR(), neighbours=3)._companions(now)
    feed = open_feed(train, 8, CPU, resident, threads=2, companions=companions)
    found = []
    for epoch in (0, 1):
        batches = list(feed.epoch(4, 0, epoch))
        x, y = (torch.cat(part) for part in list(zip(*batches, strict=True))[:2])
        views = x[y.argsort()].float()
        expected = slow_nearest(old.features(views).detach(), 8, 3)
        for _, labels, near, links in batches:
            wanted = [n for own in labels.tolist() for n in expected[own]]
            torch.testing.assert_close(near[links].float(), views[wanted], rtol=0, atol=1e-3)
        found.append(expected)
    assert found[0] != found[1]


@pytest.mark.parametrize(("phase", "neighbours"), [(0, 10), (1, 0), (2, 10)])
def test_a_phase_starts_with_no_momentum_and_neighbours_if_needed(
    phase: int, neighbours: int
) -> None:
    """There are no neighbours in the first phase, nor if their number is 0."""
    method, now, _ = neighbourly(phase, neighbours=neighbours)
    assert (now.companions is None) == (phase == 0 or neighbours == 0)
    assert method.momentum_ is not None and method.momentum_.tolist() == [0.0] * 16


# The loss


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 4), st.floats(0.05, 0.95))
def test_the_colliding_loss_against_plain_probabilities(
    seed: int, images: int, near: int, weight: float
) -> None:
    """In float64, number by number; neighbours equal to the image leave cross-entropy."""
    generator = torch.Generator().manual_seed(seed)
    own = 3 * torch.randn(images, 4, generator=generator)
    others = 3 * torch.randn(images, near, 4, generator=generator)
    labels = torch.randint(0, 4, (images,), generator=generator)
    mine, theirs = own.double().softmax(1), others.double().softmax(2).mean(1)
    mixed = (weight * mine + (1 - weight) * theirs)[range(images), labels]
    found = colliding(own, others, labels, weight).item()
    assert found == pytest.approx(-mixed.log().mean().item(), rel=1e-5, abs=1e-6)
    same = colliding(own, own[:, None].expand(-1, near, -1), labels, weight)
    assert same.item() == pytest.approx(F.cross_entropy(own, labels).item(), rel=1e-5, abs=1e-6)


def test_neighbours_get_no_gradient_and_scale_that_of_the_image() -> None:
    """(softmax - one-hot) * weight * own p / mixed p, averaged over images."""
    own, near = torch.randn(3, 4, requires_grad=True), torch.randn(3, 2, 4, requires_grad=True)
    labels, weight = torch.tensor([0, 3, 1]), 0.3
    colliding(own, near, labels, weight).backward()  # type: ignore[no-untyped-call]
    assert near.grad is None
    mine, theirs = own.detach().softmax(1), near.detach().softmax(2).mean(1)
    p, q = (probabilities.gather(1, labels[:, None]) for probabilities in (mine, theirs))
    expected = (mine - F.one_hot(labels, 4)) * weight * p / (weight * p + (1 - weight) * q) / 3
    assert own.grad is not None
    torch.testing.assert_close(own.grad, expected)


@pytest.mark.parametrize(("mine", "theirs"), [(-1e4, -1e4), (-1e4, 1e4), (1e4, -1e4), (1e4, 1e4)])
def test_the_colliding_loss_is_finite(mine: float, theirs: float) -> None:
    """Even for certain and wrong predictions, and so are its gradients."""
    own = torch.tensor([[mine, 0.0]], requires_grad=True)
    near = torch.tensor([[[theirs, 0.0]] * 2])
    loss = colliding(own, near, torch.tensor([0]), 0.5)
    expected = {0: 0.0, 1: math.log(2), 2: 1e4}[(mine < 0) + (theirs < 0)]
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert torch.autograd.grad(loss, own)[0].isfinite().all()


@pytest.mark.parametrize("inner", [LUCIR(), PODNet(), PODNet(nca="ce")])
def test_without_neighbours_the_loss_is_the_inner_one(inner: Method) -> None:
    """In later stages, and in the first phase, where no momentum is kept either."""
    net, old = (tiny(head=inner.needs.head, classes=classes) for classes in (3, 2))
    x, y = torch.randint(0, 256, (4, 3, 8, 8)), torch.tensor([0, 1, 2, 2])
    method = DDE(inner, momentum_=torch.zeros(16))
    assert torch.equal(method.loss(net, None, x, y), inner.loss(net, None, x, y))
    assert method.momentum_ is not None and (method.momentum_ == 0).all()
    assert torch.equal(method.loss(net, old, x, y), inner.loss(net, old, x, y))
    assert (method.momentum_ != 0).any()
    alone = torch.empty(0, 3, 8, 8), torch.empty(0, dtype=torch.long)  # of a single new image
    assert torch.equal(method.loss(net, old, x, y, *alone), inner.loss(net, old, x, y))


@pytest.mark.parametrize(("norm", "links"), [("eval", [3, 1, 4, 1, 0, 5]), ("train", range(6))])
def test_each_image_is_mixed_with_its_own_neighbours(norm: Any, links: Sequence[int]) -> None:
    """Read as in evaluation without moving any batch norm, in any order, some of them shared; or,
    as published, in batches after the images. What the inner method preserves is kept."""
    net, old = tiny(classes=3).train(), tiny(classes=2)
    other, inner = copy.deepcopy(net), LUCIR(base=3.0, margin=0.2)
    x, y, near = torch.rand(3, 3, 8, 8) * 255, torch.tensor([2, 0, 1]), torch.rand(6, 3, 8, 8) * 255
    method = DDE(inner, own_weight=0.3, neighbour_norm=norm)
    loss = method.loss(net, old, x, y, near, torch.tensor(links))
    out = other(x)
    if norm == "eval":
        logits = copy.deepcopy(other).eval()(near).logits
    else:
        logits = torch.cat([other(near[:3]).logits, other(near[3:]).logits])
    assert changed(net, state_of(other)) == set()
    tracked = net.state_dict()["backbone.bn1.num_batches_tracked"]
    assert tracked == (1 if norm == "eval" else 3)
    assert all(part.training for part in net.modules())
    mixed = torch.stack([logits[[links[2 * n], links[2 * n + 1]]] for n in range(3)])
    expected = colliding(out.logits, mixed, y, 0.3) + inner.preservation(net, old, out, x, y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


# The momentum effect


def test_momentum_continues_in_balanced_finetuning() -> None:
    """0.9 times itself plus the mean feature of every batch; scores are of the finetuned rows."""
    net, old = tiny(classes=3), tiny(classes=2)
    method = DDE(LUCIR(balance="all", balance_epochs=2), momentum_=torch.ones(16))
    memory = greys([0, 0, 0, 1, 1, 2, 2, 2], 50)
    fit = training(net, lambda *batch: method.loss(net, old, *batch), [])
    now = lesson(model=net, teacher=old, memory=memory, fit=fit)
    momentum = torch.ones(16)
    feed = open_feed(balanced(memory), 8, CPU, "ram", threads=1)
    for epoch in range(2):
        for x, _ in feed.epoch(4, 7, epoch):
            momentum = 0.9 * momentum + net.features(x).detach().mean(0)
    method.end_phase(now)
    assert method.momentum_ is not None and method.direction_ is not None
    assert not method.momentum_.requires_grad
    torch.testing.assert_close(method.momentum_, momentum, rtol=1e-4, atol=1e-5)
    assert torch.equal(method.direction_, method.momentum_)
    with torch.no_grad():
        now_says = net.head.scores(method.direction_[None])[0]
    assert method.scores_ is not None and torch.equal(method.scores_, now_says)


def output(net: Net, features: Tensor) -> Output:
    """The output of a network for images with these features."""
    scores = net.head.scores(features)
    return Output((), features, scores, net.head.logits(scores))


@pytest.mark.parametrize(("head", "constant"), [(SplitCosine, 0.0), (LSC, 2.0)])
def test_scores_without_the_momentum_effect(head: type[Head], constant: float) -> None:
    """u(f) - strength * cos(f, h) * u(h), by class; a constant in all scores is no effect."""
    net, features, momentum = tiny(head=head, classes=3), torch.randn(4, 16), torch.randn(16)
    method = DDE(PODNet() if head is LSC else LUCIR(), momentum_=momentum, strength=0.7)
    method.end_phase(lesson(model=net))
    with torch.no_grad():
        out = output(net, features)
        found = method.predict(out)
        along = net.head.scores(momentum[None])[0]
    cosine = F.cosine_similarity(features, momentum[None])
    expected = out.scores - 0.7 * cosine[:, None] * (along + constant)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    method.strength = 0.0
    assert torch.equal(method.predict(out), out.scores)


def test_the_direction_is_that_of_the_last_phase() -> None:
    """None after the first phase; a copy later, which further momentum does not change."""
    net = tiny(classes=2)
    method = DDE(LUCIR(), momentum_=torch.zeros(16))
    method.end_phase(lesson(phase=0, model=net))
    out = output(net, torch.randn(4, 16))
    assert method.predict(out) is out.scores
    assert method.state().keys() == {"momentum_"} and method.report() == {}
    for phase in (1, 2):
        method.momentum_ = momentum = torch.randn(16)
        net.head.grow(1)
        method.end_phase(lesson(phase=phase, model=net))
        assert method.direction_ is not None and torch.equal(method.direction_, momentum)
        assert method.scores_ is not None and method.scores_.shape == (2 + phase,)
        momentum += 1
        assert not torch.equal(method.direction_, momentum)


def test_neighbours_come_with_every_batch_of_a_run() -> None:
    """For each image that is trained on, from the second phase on."""
    run = small_run(
        DDE(LUCIR(), neighbours=2),
        stream=small_stream(2, 1, 1),
        memory={"budget": "3/class"},
        train=TrainSettings(epochs=1, batch_size=6),
    )
    with patch.object(mrdc.methods.dde, "colliding", wraps=colliding) as called:
        run.learn(0, 1, 2)
    seen = Counter[tuple[int, int]]()
    for call in called.call_args_list:
        images, neighbours, classes = call.args[1].shape
        seen[neighbours, classes] += images
    _, second, third = (result.trained_images for result in run.results)
    assert seen == {(2, 3): second, (2, 4): third} and third > second > 6
