"""DDE: neighbours, the loss, the momentum effect, by hand and against slow references."""

import copy
import math
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mrdc.methods.dde
import mrdc.training.prepare
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.methods import DDE, Lesson, Method
from mrdc.methods.base import balanced
from mrdc.methods.dde import colliding, effects, fit_mix, nearest, once, without_effect
from mrdc.methods.lucir import LUCIR
from mrdc.methods.podnet import PODNet
from mrdc.nn.heads import LSC, Head, Split, SplitCosine
from mrdc.nn.net import Net
from mrdc.training.feed import Resident, open_feed
from tests.conftest import jpeg
from tests.helpers import lesson
from tests.wrapping import (
    CPU,
    LN3,
    PLACES,
    answers,
    changed,
    greys,
    output,
    state_of,
    tiny,
    training,
    who,
)

pytestmark = pytest.mark.usefixtures("quick")


# Neighbours


def slow_nearest(rows: Tensor, candidates: int, count: int) -> list[list[int]]:
    """Row by row, by angle."""
    found = []
    for place, row in enumerate(rows.double()):
        others = [n for n in range(candidates) if n != place]
        cosines = {n: float(F.cosine_similarity(row, rows[n].double(), dim=0)) for n in others}
        found.append(sorted(others, key=lambda n: -cosines[n])[:count])
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999), rows=st.integers(2, 9), candidates=st.integers(2, 9),
    count=st.integers(1, 9), chunk=st.integers(1, 10),
)  # fmt: skip
def test_neighbours_against_a_loop(
    seed: int, rows: int, candidates: int, count: int, chunk: int
) -> None:
    """The nearest first, whatever the lengths; not itself, among candidates, chunk by chunk.

    Fails as long as `nearest` cannot read a chunk that begins after the last candidate.
    """
    candidates = min(candidates, rows)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 3, generator=generator)
    features *= 10 * torch.rand(rows, 1, generator=generator) + 0.1
    with patch.object(mrdc.methods.dde, "CHUNK", chunk):
        found = nearest(features, candidates, count)
    expected = slow_nearest(features, candidates, min(count, candidates - 1))
    assert found.tolist() == expected
    assert found.dtype == np.intp


def test_neighbours_of_more_images_than_a_chunk_has() -> None:
    """Three candidates, chunks of two rows: the last chunk has none of them.

    Fault in `nearest`: arange(4, 3) is refused. So it is in a phase of 2,600 new images and
    2,000 exemplars.
    """
    features = torch.randn(6, 4)
    with patch.object(mrdc.methods.dde, "CHUNK", 2):
        assert nearest(features, 3, 1).tolist() == slow_nearest(features, 3, 1)


def test_an_image_is_no_neighbour_of_itself_even_among_copies() -> None:
    """Its copy is; exemplars, the last row here, are nobody's."""
    features = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    found = nearest(features, 3, 1)
    assert [found[n].tolist() for n in (0, 1, 3)] == [[1], [0], [2]]


def test_fewer_candidates_give_fewer_neighbours() -> None:
    """Three candidates have two others each; one has none."""
    features = torch.randn(5, 4)
    assert nearest(features, 3, 10).shape == (5, 2)
    assert nearest(features, 1, 10).shape == (5, 0)


def neighbourly(phase: int = 1, fresh: int = 8, **options: Any) -> tuple[DDE, Lesson, Tensor]:
    """A phase about to start: new images, three exemplars, their features."""
    table = torch.randn(fresh + 3, 16)
    train = greys([2] * fresh + [0, 1, 1])
    now = lesson(
        phase=phase, model=tiny(), train=train, fresh=train.pick(range(fresh)),
        features=lambda part: table[[int(photo.id) for photo in part.photos]],
    )  # fmt: skip
    method = DDE(LUCIR(), **options)
    method.start_phase(now)
    return method, now, table


@pytest.mark.parametrize("resident", PLACES)
@pytest.mark.parametrize("batch_size", [2, 4, 5])
def test_a_batch_brings_the_neighbours_of_each_of_its_images(
    resident: Resident, batch_size: int
) -> None:
    """Image after image, the nearest first, from wherever images are kept; each image once."""
    _, now, table = neighbourly(neighbours=3)
    feed = open_feed(now.train, 8, CPU, resident, threads=2, companions=now.companions)
    expected = slow_nearest(table, 8, 3)
    seen = []
    for x, y, near, links in feed.epoch(batch_size, 0, 0):
        seen += who(x)
        assert y.tolist() == [now.train.labels[n] for n in who(x)]
        assert near.shape == (len(x) * min(3, math.ceil(8 / len(x))), 3, 8, 8)
        assert who(near[links]) == [n for own in who(x) for n in expected[own]]
        assert set(who(near)) == {n for own in who(x) for n in expected[own]}
    assert sorted(seen) == list(range(11))


def test_batch_norms_that_learn_count_how_often_a_neighbour_is_seen() -> None:
    """As in the published code: every neighbour of every image, though one may come twice."""
    _, now, table = neighbourly(neighbours=7, neighbour_norm="train")
    feed = open_feed(now.train, 8, CPU, "ram", threads=1, companions=now.companions)
    expected = slow_nearest(table, 8, 7)
    for x, _, near, links in feed.epoch(4, 0, 0):
        assert links.tolist() == list(range(7 * len(x)))
        assert who(near) == [n for own in who(x) for n in expected[own]]


@given(
    n=st.integers(1, 9), k=st.integers(1, 5), candidates=st.integers(6, 30), seed=st.integers(0, 99)
)
def test_neighbours_are_fetched_once(n: int, k: int, candidates: int, seed: int) -> None:
    """Whatever the batch, as many images for every batch of its size, and all that are needed."""
    near = np.random.default_rng(seed).integers(candidates, size=(n, k))
    places, links = once(near, candidates)
    assert (places[links] == near.ravel()).all()
    assert set(places.tolist()) == set(near.ravel().tolist())
    assert len(places) == min(n * k, n * math.ceil(candidates / n))


@pytest.mark.parametrize("resident", PLACES)
def test_a_neighbour_looks_as_it_does_in_its_own_batch(resident: Resident) -> None:
    """The same crop all through an epoch."""
    _, now, _ = neighbourly(neighbours=2)
    photos = tuple(Photo(str(n), partial(jpeg, n, 95, 12, 12)) for n in range(11))
    feed = open_feed(
        Examples(photos, now.train.labels), 8, CPU, resident, threads=1, companions=now.companions
    )
    own: dict[bytes, int] = {}
    theirs = set()
    for x, _, near, _ in feed.epoch(4, 0, 0):
        own |= {image.numpy().tobytes(): 1 for image in x}
        theirs |= {image.numpy().tobytes() for image in near}
    assert len(own) == 11
    assert theirs <= own.keys()


@pytest.mark.parametrize(("phase", "neighbours"), [(0, 10), (1, 0)])
def test_no_neighbours_without_need(phase: int, neighbours: int) -> None:
    """Neither in the first phase nor where none are asked for."""
    _, now, _ = neighbourly(phase, neighbours=neighbours)
    assert now.companions is None


def test_a_lone_new_image_has_no_neighbours() -> None:
    """The loss is then that of the inner method."""
    method, now, table = neighbourly(fresh=1)
    feed = open_feed(now.train, 8, CPU, "ram", threads=1, companions=now.companions)
    net, old = answers(table, torch.randn(4, 3)), answers(torch.randn(4, 16), torch.zeros(4, 2))
    (batch,) = feed.epoch(4, 0, 0)
    assert len(batch[2]) == 0
    assert torch.equal(method.loss(net, old, *batch), LUCIR().loss(net, old, *batch[:2]))


# The loss


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 999), images=st.integers(1, 5), near=st.integers(1, 4),
    weight=st.floats(0.05, 0.95),
)  # fmt: skip
def test_the_colliding_loss_against_plain_probabilities(
    seed: int, images: int, near: int, weight: float
) -> None:
    """In float64, number by number."""
    generator = torch.Generator().manual_seed(seed)
    own = 3 * torch.randn(images, 4, generator=generator)
    others = 3 * torch.randn(images, near, 4, generator=generator)
    labels = torch.randint(0, 4, (images,), generator=generator)
    losses = []
    for n, label in enumerate(labels.tolist()):
        mine = own[n].double().softmax(0)[label].item()
        theirs = [others[n, k].double().softmax(0)[label].item() for k in range(near)]
        losses.append(-math.log(weight * mine + (1 - weight) * sum(theirs) / near))
    found = colliding(own, others, labels, weight).item()
    assert found == pytest.approx(sum(losses) / images, rel=1e-5, abs=1e-6)


def test_the_colliding_loss_by_hand() -> None:
    """Own 3/4, neighbours 1/4 and 1/2: at weight 0.2, p = 0.2 * 3/4 + 0.8 * 3/8 = 0.45."""
    own = torch.tensor([[LN3, 0.0]])
    near = torch.tensor([[[0.0, LN3], [1.0, 1.0]]])
    loss = colliding(own, near, torch.tensor([0]), 0.2)
    assert loss.item() == pytest.approx(-math.log(0.45))


@pytest.mark.parametrize("weight", [0.1, 0.5])
def test_neighbours_like_the_image_leave_cross_entropy(weight: float) -> None:
    """However many there are, and whatever they weigh."""
    own, labels = torch.randn(5, 4), torch.randint(0, 4, (5,))
    loss = colliding(own, own[:, None].expand(-1, 3, -1), labels, weight)
    assert loss.item() == pytest.approx(F.cross_entropy(own, labels).item(), rel=1e-5)


def test_neighbours_get_no_gradient_and_scale_that_of_the_image() -> None:
    """(softmax - one-hot) * weight * own p / mixed p, over the images."""
    own, near = torch.randn(3, 4, requires_grad=True), torch.randn(3, 2, 4, requires_grad=True)
    labels, weight = torch.tensor([0, 3, 1]), 0.3
    colliding(own, near, labels, weight).backward()  # type: ignore[no-untyped-call]
    assert near.grad is None
    mine, theirs = own.detach().softmax(1), near.detach().softmax(2).mean(1)
    places = labels[:, None]
    share = weight * mine.gather(1, places)
    mixed_p = share + (1 - weight) * theirs.gather(1, places)
    expected = (mine - F.one_hot(labels, 4)) * share / mixed_p / 3
    assert own.grad is not None
    torch.testing.assert_close(own.grad, expected)


@pytest.mark.parametrize(("mine", "theirs"), [(-1e4, -1e4), (-1e4, 1e4), (1e4, -1e4), (1e4, 1e4)])
def test_the_colliding_loss_is_finite(mine: float, theirs: float) -> None:
    """For answers that are sure, and wrong, too; so are its gradients."""
    own = torch.tensor([[mine, 0.0]], requires_grad=True)
    near = torch.tensor([[[theirs, 0.0]] * 2])
    loss = colliding(own, near, torch.tensor([0]), 0.5)
    loss.backward()  # type: ignore[no-untyped-call]
    expected = {0: 0.0, 1: math.log(2), 2: 1e4}[(mine < 0) + (theirs < 0)]
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert own.grad is not None and own.grad.isfinite().all()


@pytest.mark.parametrize("norm", ["eval", "train"])
@pytest.mark.parametrize("inner", [LUCIR(), LUCIR(base=3.0, margin=0.2)])
def test_each_image_is_judged_with_its_own_neighbours(inner: LUCIR, norm: Any) -> None:
    """What the inner method keeps of the old network is added; its loss of labels is replaced."""
    logits = 4 * torch.randn(9, 3)
    net = answers(torch.randn(9, 16), logits)
    old = answers(torch.randn(9, 16), torch.zeros(9, 2))
    batch, near = [0, 5, 6], [[1, 2], [3, 4], [7, 8]]
    x = torch.stack([greys([0] * 9)[n][0] for n in batch])
    more = torch.stack([greys([0] * 9)[n][0] for row in near for n in row])
    y = torch.tensor([2, 0, 1])
    method = DDE(inner, own_weight=0.3, neighbour_norm=norm)
    loss = method.loss(net, old, x, y, more, torch.arange(6))
    terms = []
    for place, label, row in zip(batch, y.tolist(), near, strict=True):
        theirs = sum(logits[n].softmax(0)[label].item() for n in row) / 2
        terms.append(-math.log(0.3 * logits[place].softmax(0)[label].item() + 0.7 * theirs))
    kept = inner.preservation(net, old, net(x), x, y)
    assert loss.item() == pytest.approx(sum(terms) / 3 + kept.item(), rel=1e-5)
    links = torch.tensor([3, 1, 4, 2, 0, 5])  # wherever the neighbours stand
    again = method.loss(net, old, x, y, more[links.argsort()], links)
    assert again.item() == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("inner", [LUCIR(), PODNet(), PODNet(nca="ce")])
def test_without_neighbours_the_loss_is_the_inner_one(inner: Method) -> None:
    """In later stages, and in the first phase, where no momentum is kept either."""
    net = tiny(inner.head, 3)
    old = tiny(inner.head, 2)
    x, y = torch.randint(0, 256, (4, 3, 8, 8)), torch.tensor([0, 1, 2, 2])
    method = DDE(inner, momentum_=torch.zeros(16))
    assert torch.equal(method.loss(net, None, x, y), inner.loss(net, None, x, y))
    assert method.momentum_ is not None and (method.momentum_ == 0).all()
    assert torch.equal(method.loss(net, old, x, y), inner.loss(net, old, x, y))
    assert (method.momentum_ != 0).any()


def test_the_first_phase_is_the_inner_methods_alone() -> None:
    """Whatever its loss is."""
    inner = SimpleNamespace(loss=lambda *batch: batch)
    batch: tuple[Any, ...] = ("net", None, "x", "y")
    found: Any = DDE(cast(Method, inner)).loss(*batch)
    assert found == batch


def tracked(net: Net) -> Tensor:
    """Batches that the first batch norm has seen."""
    found: Tensor = net.state_dict()["backbone.bn1.num_batches_tracked"]
    return found


def test_neighbours_move_no_statistic() -> None:
    """Batch norms see the batch alone, and answer for neighbours as in evaluation."""
    net, old = tiny(classes=3), tiny()
    other = copy.deepcopy(net)
    x, y, near = torch.rand(3, 3, 8, 8) * 255, torch.tensor([0, 1, 2]), torch.rand(6, 3, 8, 8) * 255
    method = DDE(LUCIR(), momentum_=torch.zeros(16))
    net.train()
    other.train()(x)
    loss = method.loss(net, old, x, y, near, torch.arange(6))
    assert changed(net, state_of(other)) == set()
    assert all(part.training for part in net.modules())
    answers = other.eval()(near).logits.view(3, 2, 3)
    again = copy.deepcopy(net)(x)
    expected = colliding(again.logits, answers, y, 0.5) + LUCIR().preservation(
        net, old, again, x, y
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_neighbours_may_move_the_statistics() -> None:
    """As published: read in training mode, as many at a time as the batch has, after it."""
    net, old = tiny(classes=3).train(), tiny()
    other = copy.deepcopy(net)
    x, y, near = torch.rand(3, 3, 8, 8) * 255, torch.tensor([0, 1, 2]), torch.rand(6, 3, 8, 8) * 255
    method = DDE(LUCIR(), neighbour_norm="train")
    loss = method.loss(net, old, x, y, near, torch.arange(6))
    out = other(x)
    answers = torch.cat([other(near[:3]).logits, other(near[3:]).logits]).view(3, 2, 3)
    assert changed(net, state_of(other)) == set()
    assert tracked(net) == 3
    expected = colliding(out.logits, answers, y, 0.5) + LUCIR().preservation(net, old, out, x, y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


# The momentum effect


def test_momentum_by_hand() -> None:
    """0.9 times itself plus the mean feature of the batch, without gradients."""
    table = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 10.0]], requires_grad=True)
    net, old = answers(table, torch.zeros(3, 3)), answers(torch.ones(3, 2), torch.zeros(3, 2))
    method = DDE(LUCIR(), momentum_=torch.zeros(2))
    images = greys([0, 1, 2])
    expected = [[2.0, 1.0], [0.9 * 2.0, 0.9 + 10.0], [0.81 * 2.0 + 1.0, 0.9 * 10.9]]
    for batch, after in zip(([0, 1], [2], [0]), expected, strict=True):
        x = torch.stack([images[n][0] for n in batch])
        method.loss(net, old, x, torch.tensor(batch))
        assert method.momentum_ is not None and not method.momentum_.requires_grad
        assert method.momentum_.tolist() == pytest.approx(after)


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_momentum_starts_anew_with_every_phase(phase: int) -> None:
    """From zeros."""
    method, now, _ = neighbourly(phase)
    method.momentum_ = torch.ones(16)
    method.start_phase(now)
    assert method.momentum_.tolist() == [0.0] * 16


def test_momentum_goes_on_in_balanced_finetuning() -> None:
    """Batch by batch of the balanced exemplars, where the features stay."""
    net, old = tiny(classes=3), tiny()
    method = DDE(LUCIR(balance="all", balance_epochs=2), momentum_=torch.ones(16), strength=0.25)
    memory = greys([0, 0, 0, 1, 1, 2, 2, 2], 50)
    now = lesson(model=net, teacher=old, memory=memory, fit=training(net))
    now.loss = lambda *batch: method.loss(net, old, *batch)
    momentum = torch.ones(16)
    feed = open_feed(balanced(memory), 8, CPU, "ram", threads=1)
    for epoch in range(2):
        for x, _ in feed.epoch(4, 7, epoch):
            momentum = 0.9 * momentum + net.features(x).detach().mean(0)
    method.end_phase(now)
    assert method.momentum_ is not None and method.directions_ is not None
    torch.testing.assert_close(method.momentum_, momentum, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.directions_, momentum.expand(2, -1), rtol=1e-4, atol=1e-5)
    assert method.mix_ is not None and method.mix_.tolist() == [1.0, 0.25]
    with torch.no_grad():
        now_says = net.head.scores(method.directions_)  # with the rows as they are finetuned
    assert method.answers_ is not None and torch.equal(method.answers_, now_says)


def test_effects_by_hand() -> None:
    """Features at 0 and 45 degrees to the first direction; lengths do not matter."""
    features = torch.tensor([[2.0, 0.0], [3.0, 3.0]])
    directions = torch.tensor([[5.0, 0.0], [0.0, 0.5]])
    found = effects(features, directions, torch.tensor([[1.0, 10.0], [4.0, -2.0]]))
    half = math.sqrt(0.5)
    expected = [[[1.0, 10.0], [half, 10 * half]], [[0.0, 0.0], [4 * half, -2 * half]]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_taking_away_effects_by_hand() -> None:
    """A quarter of the last phase's and three of this one's, twice: 10 - 2 * (1/4 + 3/4 * 3)."""
    effect = torch.tensor([[[1.0, 0.0]], [[3.0, 4.0]]])
    left = without_effect(torch.tensor([[10.0, 1.0]]), effect, torch.tensor([0.75, 2.0]))
    assert left.tolist() == [[10 - 2 * 2.5, 1 - 2 * 3.0]]


def after_a_phase(head: type[Head], **options: Any) -> tuple[Net, DDE, Tensor]:
    """A method that has finished its second phase, with some momentum."""
    net, momentum = tiny(head, 3), torch.randn(16)
    method = DDE(PODNet() if head is LSC else LUCIR(), momentum_=momentum, **options)
    method.end_phase(lesson(model=net))
    return net, method, momentum


@pytest.mark.parametrize(("head", "constant"), [(SplitCosine, 0.0), (LSC, 2.0)])
def test_answers_without_the_momentum_effect(head: type[Head], constant: float) -> None:
    """u(f) - strength * cos(f, h) * u(h), class by class; a constant of all scores is no effect."""
    net, method, momentum = after_a_phase(head, strength=0.7)
    features = torch.randn(4, 16)
    with torch.no_grad():
        found = method.predict(output(net, features))
        scores, along = net.head.scores(features), net.head.scores(momentum[None])[0]
    for n in range(4):
        cosine = float(features[n] @ momentum / (features[n].norm() * momentum.norm()))
        for c in range(3):
            expected = float(scores[n, c]) - 0.7 * cosine * (float(along[c]) + constant)
            assert found[n, c].item() == pytest.approx(expected, abs=1e-5)


def test_a_feature_at_right_angles_to_all_classes_has_no_effect() -> None:
    """The score -2 of proxies at right angles is a constant, whatever head says it."""
    net = tiny(LSC, 2)
    rows, momentum = torch.zeros(2, 10, 16), torch.zeros(16)
    rows[:, :, 0], momentum[1] = 1.0, 1.0
    net.head.new.data = rows
    method = DDE(PODNet(), momentum_=momentum)
    method.end_phase(lesson(model=net))
    assert method.answers_ is not None
    torch.testing.assert_close(method.answers_, torch.zeros(2, 2))


@pytest.mark.parametrize("head", [SplitCosine, LSC])
def test_a_strength_of_nothing_leaves_the_scores(head: type[Head]) -> None:
    """Bit by bit."""
    net, method, _ = after_a_phase(head, strength=0.0)
    out = output(net, torch.randn(4, 16))
    assert torch.equal(method.predict(out), out.scores)


def test_the_first_phase_has_no_effect_to_remove() -> None:
    """Scores are those of the inner method, and nothing is reported."""
    net, stored = tiny(), list[int]()
    method = DDE(LUCIR(), momentum_=torch.zeros(16))
    method.end_phase(lesson(phase=0, model=net, store=lambda: stored.append(1)))
    out = output(net, torch.randn(4, 16))
    assert method.predict(out) is out.scores
    assert method.report() == {}
    assert method.state().keys() == {"momentum_"}
    assert stored == [1]


def test_directions_are_those_of_the_last_phase_and_of_this() -> None:
    """In the second phase both are its own; answers are always those of the present head."""
    net, method, first = after_a_phase(SplitCosine)
    assert method.directions_ is not None and torch.equal(method.directions_, first.expand(2, -1))
    second = torch.randn(16)
    method.momentum_ = second
    net.head.grow(1)
    method.end_phase(lesson(phase=2, model=net))
    assert torch.equal(method.directions_, torch.stack([first, second]))
    assert method.answers_ is not None
    assert torch.equal(method.answers_, net.head.scores(method.directions_))
    second += 1  # the momentum of another phase
    assert not torch.equal(method.directions_[1], second)


def hard_mix(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, effects and labels that want 80 % of this phase's effect, and more of it."""
    scores, effect = 2 * torch.randn(count, 5), torch.randn(2, count, 5)
    truth = without_effect(scores, effect, torch.tensor([0.8, 0.7])).softmax(1)
    return scores, effect, torch.multinomial(truth, 1)[:, 0]


def test_the_mix_of_least_cross_entropy_is_found() -> None:
    """As L-BFGS finds it, in float64."""
    scores, effect, labels = hard_mix(60 * 128)
    start = torch.tensor([1.0, 0.5])
    found = fit_mix(scores, effect, labels, start, 0)
    best = start.double().requires_grad_()
    optimiser = torch.optim.LBFGS([best], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(without_effect(scores.double(), effect.double(), best), labels)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    assert best.tolist() == pytest.approx([0.8, 0.7], abs=0.1)
    assert found.tolist() == pytest.approx(best.tolist(), abs=0.02)
    assert start.tolist() == [1.0, 0.5] and not found.requires_grad


def test_the_mix_takes_small_steps_and_then_smaller_ones() -> None:
    """One batch an epoch along a constant slope: ten steps of 0.002, ten of 0.0002."""
    effect = torch.stack([torch.zeros(4, 2), 1e-3 * torch.tensor([[1.0, 0.0]] * 4)])
    labels = torch.ones(4, dtype=torch.long)
    found = fit_mix(torch.zeros(4, 2), effect, labels, torch.tensor([1.0, 0.5]), 0)
    assert (found - torch.tensor([1.0, 0.5])).tolist() == pytest.approx([0.022] * 2, abs=1e-3)


def test_equal_effects_cannot_be_told_apart() -> None:
    """In the second phase the share of this phase's stays as it is."""
    scores, effect, labels = hard_mix(64)
    found = fit_mix(scores, effect[:1].expand(2, -1, -1), labels, torch.tensor([1.0, 0.5]), 0)
    assert found[0] == 1.0 and found[1] != 0.5


def test_the_mix_is_drawn_by_its_seed() -> None:
    """The same again; another order of the images gives another."""
    given = (*hard_mix(300), torch.tensor([1.0, 0.5]))
    assert torch.equal(fit_mix(*given, 0), fit_mix(*given, 0))
    assert not torch.equal(fit_mix(*given, 0), fit_mix(*given, 1))


@pytest.mark.parametrize("head", [SplitCosine, LSC])
def test_a_learned_removal_sees_scaled_answers_of_balanced_exemplars(head: type[Head]) -> None:
    """As many of every class, after storing, and logits where scores would be compared."""
    net, momentum, table = tiny(head, 3), torch.randn(16), torch.randn(8, 16)
    cast(Split, net.head).scale.data.fill_(3.0)
    inner: Method = PODNet() if head is LSC else LUCIR()
    method = DDE(inner, removal="learned", strength=0.3, momentum_=momentum)
    method.directions_ = torch.randn(2, 16)
    last = method.directions_[1]
    now = lesson(phase=2, model=net, features=lambda part: table[[int(p.id) for p in part.photos]])

    def store(instead: Any = None) -> None:
        now.memory = greys([0, 0, 0, 1, 1, 2, 2, 2])

    now.store = store
    given = torch.tensor([0.9, 0.1])
    with patch.object(mrdc.methods.dde, "fit_mix", return_value=given) as called:
        method.end_phase(now)
    seen = called.call_args.args
    kept, directions = [0, 1, 2, 3, 3, 4, 5, 6, 7], torch.stack([last, momentum])
    with torch.no_grad():
        along = net.head.scores(directions) + (2.0 if head is LSC else 0.0)
        torch.testing.assert_close(seen[0], 3 * net.head.scores(table[kept]))
    torch.testing.assert_close(seen[1], 3 * effects(table[kept], directions, along))
    assert seen[2].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert seen[3].tolist() == pytest.approx([1.0, 0.3])
    assert seen[4] == len("momentum effect")  # the seed of that name
    assert method.mix_ is given
    assert method.report() == {"mix": given.tolist()}
