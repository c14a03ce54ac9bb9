"""AANets: how a phase starts, and the mixing weights, by hand and against slow references."""

import copy
import math
from collections import Counter
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from mrdc.data.examples import Examples
from mrdc.methods import AANets, Lesson
from mrdc.methods.aanets import level_set
from mrdc.methods.lucir import LUCIR
from mrdc.nn.branches import Branches
from mrdc.nn.heads import Split
from mrdc.nn.net import Net
from mrdc.training.feed import open_feed
from mrdc.training.settings import TrainSettings
from tests.helpers import lesson, nothing
from tests.wrapping import (
    CPU,
    changed,
    greys,
    mixing,
    state_of,
    tiny,
    training,
    two_branches,
)

pytestmark = pytest.mark.usefixtures("quick")


# How a phase starts


class Notes(LUCIR):
    """Writes down what it is told."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told: list[Any] = []

    def start_phase(self, lesson: Lesson) -> None:
        self.told.append(lesson.model.body)

    def end_epoch(self, lesson: Lesson, epoch: int) -> None:
        self.told.append(epoch)

    def report(self) -> dict[str, Any]:
        return {"told": len(self.told)}


def test_the_second_phase_starts_with_two_branches() -> None:
    """Before the inner method starts; features stay as they were, bit by bit."""
    net, inner = tiny(), Notes()
    x = torch.randint(0, 256, (3, 3, 8, 8))
    before = net(x).features
    now = lesson(model=net, fresh=greys([2]), memory=greys([0, 1], 10))
    AANets(inner).start_phase(now)
    assert inner.told == ["branches"]
    assert now.model.body == "branches"
    assert torch.equal(now.model(x).features, before)


@pytest.mark.parametrize("phase", [0, 2, 3])
def test_other_phases_go_on_with_the_network_there_is(phase: int) -> None:
    """One network at first; two branches are not parted again."""
    net = two_branches() if phase else tiny()
    body, inner = net.body, Notes()
    method = AANets(inner, alpha_=torch.ones(4), velocity_=torch.ones(4))
    fresh = greys([2, 2]) if phase else nothing
    method.start_phase(now := lesson(phase=phase, model=net, fresh=fresh, memory=greys([0, 1])))
    assert now.model is net and inner.told == [body]
    assert method.velocity_ is None  # momentum ends with its phase
    assert method.alpha_ is not None
    assert len(method.balanced) == (3 if phase else 0)


def test_the_set_of_the_mixing_weights_has_all_old_and_as_many_new() -> None:
    """Three exemplars a class of two: all of them, and three a class of two new ones."""
    fresh, memory = greys([2, 2, 3, 3, 3]), greys([0, 0, 0, 1, 1, 1], 100)
    found = level_set(lesson(new=2, fresh=fresh, memory=memory))
    new, old = found.pick(range(6)), found.pick(range(6, len(found)))
    assert old == memory
    assert set(new.labels) <= {2, 3}
    pairs = zip(fresh.photos, fresh.labels, strict=True)
    labels = {photo.id: label for photo, label in pairs}
    assert [labels[photo.id] for photo in new.photos] == list(new.labels)


@pytest.mark.parametrize(
    ("held", "old", "new", "drawn"), [(5, 2, 1, 2), (7, 2, 2, 7), (9, 3, 5, 15)]
)
def test_how_many_new_images_are_drawn(held: int, old: int, new: int, drawn: int) -> None:
    """Exemplars a class on average times the new classes, rounded at the end."""
    memory, fresh = greys([n % old for n in range(held)]), greys([old] * 4)
    found = level_set(lesson(old=old, new=new, memory=memory, fresh=fresh))
    assert len(found) == drawn + held


def test_new_images_are_drawn_uniformly_and_again() -> None:
    """2000 draws of 40 images: about 50 each, so classes are equal in expectation."""
    memory, fresh = greys([0, 1]).pick([0, 1] * 1000), greys([2] * 20 + [3] * 20)
    found = level_set(lesson(new=2, memory=memory, fresh=fresh)).pick(range(2000))
    by_class, by_image = Counter(found.labels), Counter(photo.id for photo in found.photos)
    assert abs(by_class[2] - 1000) < 5 * math.sqrt(500)
    assert len(by_image) == 40
    assert all(abs(count - 50) < 5 * math.sqrt(50) for count in by_image.values())


def test_the_draw_belongs_to_the_phase_and_the_seed() -> None:
    """A run that goes on draws the same; the next phase, and another seed, draw others."""
    memory, fresh = greys([0, 1] * 10), greys([2] * 40)
    one, again, later, other = (
        level_set(lesson(phase=phase, memory=memory, fresh=fresh, seed=lambda _, s=seed: s))
        for phase, seed in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert one == again
    assert len({one.photos, later.photos, other.photos}) == 3


# The mixing weights


def mixed(method: AANets, net: Net, **given: Any) -> Lesson:
    """A lesson in which mixing weights can be learned."""
    now = lesson(
        model=net, fresh=greys([2] * 6, 60), memory=greys([0, 1] * 5, 120), fit=training(net),
        **given,
    )  # fmt: skip
    method.balanced = level_set(now)
    return now


def test_the_second_level_changes_mixing_weights_alone() -> None:
    """Every other tensor stays bit by bit, statistics too; all four weights move."""
    net = two_branches()
    before = state_of(net)
    method = AANets(LUCIR(), mixing_lr=0.1)
    method.end_epoch(mixed(method, net), 0)
    assert changed(net, before) == {"backbone.alpha"}
    assert (mixing(net) != 0.5).all()


def test_the_second_level_leaves_the_first_as_it_was() -> None:
    """In the middle of training: gradients, modes, and who learns."""
    net = two_branches().train()
    next(net.children()).eval()  # some part is not training
    net(torch.rand(4, 3, 8, 8)).features.square().sum().backward()
    named = dict(net.named_parameters())
    slopes = {name: None if p.grad is None else p.grad.clone() for name, p in named.items()}
    modes = [part.training for part in net.modules()]
    learns = {name for name, p in named.items() if p.requires_grad}
    method = AANets(LUCIR(), mixing_lr=0.1)
    method.end_epoch(mixed(method, net), 0)
    for name, slope in slopes.items():
        if name != "backbone.alpha":
            grad = named[name].grad
            assert (grad is None) == (slope is None)
            assert slope is None or grad is None or torch.equal(grad, slope)
    assert [part.training for part in net.modules()] == modes
    assert {name for name, p in named.items() if p.requires_grad} == learns
    assert "backbone.alpha" not in learns


def test_fixed_mixing_weights_stay_halves() -> None:
    """Nothing is trained for them; they are reported all the same."""
    net, method = two_branches(), AANets(Notes(), mixing="fixed")
    before = state_of(net)
    method.end_epoch(lesson(model=net), 0)  # `fit` is not to be called
    assert changed(net, before) == set()
    assert method.report() == {"told": 1, "alpha": [0.5] * 4}
    assert method.velocity_ is None


def test_one_network_has_nothing_to_mix() -> None:
    """The first phase: the inner method is told of the epoch, and that is all."""
    inner = Notes()
    method = AANets(inner)
    method.end_epoch(lesson(phase=0, model=tiny()), 5)
    assert inner.told == [5]
    assert method.report() == {"told": 1}


def test_mixing_weights_against_a_slow_loop() -> None:
    """SGD over the same batches: a tenth of the rate at 1/3 and 2/3, momentum from epoch to epoch.

    The schedule, rate and decay of the network's own training do not matter.
    """
    net, rate, decay = two_branches(), 0.2, 0.03
    slow = copy.deepcopy(net)
    method = AANets(LUCIR(), mixing_lr=rate, mixing_decay=decay)
    own = TrainSettings(epochs=3, batch_size=4, lr=5.0, weight_decay=3.0, schedule="cosine")
    now = mixed(method, net, training=own)
    feed = open_feed(method.balanced, 8, CPU, "ram", threads=1)
    alpha, velocity = torch.full((4,), 0.5), torch.zeros(4)
    for epoch in range(3):
        for x, y in feed.epoch(4, 7, epoch):
            mixing(slow).requires_grad_().data = alpha.clone()
            loss = F.cross_entropy(slow(x).logits, y)
            (slope,) = torch.autograd.grad(loss, [mixing(slow)])
            velocity = 0.9 * velocity + slope + decay * alpha
            alpha = alpha - rate * 0.1**epoch * velocity
        method.end_epoch(now, epoch)
        torch.testing.assert_close(mixing(net).detach(), alpha, rtol=1e-4, atol=1e-5)
        assert method.alpha_ is not None and method.velocity_ is not None
        assert torch.equal(method.alpha_, mixing(net))
        torch.testing.assert_close(method.velocity_, velocity, rtol=1e-4, atol=1e-5)
    assert method.report() == {"alpha": mixing(net).tolist()}


def test_what_is_kept_of_an_epoch_does_not_follow_the_next() -> None:
    """A checkpoint may be written while the weights move on."""
    net, method = two_branches(), AANets(LUCIR(), mixing_lr=0.1)
    now = mixed(method, net)
    method.end_epoch(now, 0)
    kept = method.state()
    values = {name: torch.as_tensor(value).clone() for name, value in kept.items()}
    method.end_epoch(now, 1)
    assert all(torch.equal(torch.as_tensor(kept[name]), value) for name, value in values.items())
    assert method.alpha_ is not None and not torch.equal(method.alpha_, values["alpha_"])


@pytest.mark.parametrize("better", ["stable", "plastic"])
def test_the_better_branch_gains(better: str) -> None:
    """Labels are what one branch says, and the other differs at the last level alone."""
    net = tiny(classes=3).with_body("branches")
    backbone = net.backbone
    assert isinstance(backbone, Branches)
    worse = backbone.plastic if better == "stable" else backbone.stable
    for p in worse.stages[3].parameters():
        p.data += 0.5 * torch.randn_like(p)
    cast(Split, net.head).scale.data.fill_(8.0)
    images = greys([0] * 12, 100)
    x = torch.stack([images[n][0] for n in range(12)])
    mixing(net).data.fill_(float(better == "stable"))
    labels = net(x).logits.argmax(1)
    mixing(net).data.fill_(0.5)
    before = F.cross_entropy(net(x).logits, labels)
    method = AANets(LUCIR(), mixing_lr=1e-3, mixing_decay=0.0)
    method.balanced = Examples(images.photos, tuple(labels.tolist()))
    method.end_epoch(lesson(model=net, fit=training(net)), 0)
    assert mixing(net)[:3].tolist() == [0.5] * 3
    assert (mixing(net)[3] > 0.5) == (better == "stable")
    assert F.cross_entropy(net(x).logits, labels) < before
