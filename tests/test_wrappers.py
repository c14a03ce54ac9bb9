"""Methods around methods: AANets and DDE, by hand and against slow references."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
import mrdc.prepare
from mrdc.errors import UsageError
from mrdc.feed import Examples, Resident, open_feed
from mrdc.image import Photo, Pixels
from mrdc.keeping import Keeper, Partial, Saved
from mrdc.learner import Run, run_phases
from mrdc.loop import Stop, fit
from mrdc.methods import DDE, METHODS, AANets, Lesson, Method
from mrdc.methods.aanets import level_set
from mrdc.methods.base import Wrapper, balanced
from mrdc.methods.bic import BiC
from mrdc.methods.dde import colliding, effects, fit_mix, nearest, once, without_effect
from mrdc.methods.lucir import LUCIR
from mrdc.methods.podnet import PODNet
from mrdc.nn.branches import Branches
from mrdc.nn.heads import LSC, Head, Split, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import ResNet
from mrdc.prepare import make_method, method_settings
from mrdc.settings import MemorySettings, RunSettings, TrainSettings
from tests.conftest import jpeg
from tests.helpers import lesson, nothing, small_stream

CPU = torch.device("cpu")
PLACES: list[Resident] = ["gpu", "ram", "stream"]
LN3 = math.log(3)


@pytest.fixture(autouse=True)
def small_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's generator, one thread, and networks of width 2 in runs."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    set_threads(1)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # the embedder wants two
    monkeypatch.setitem(mrdc.prepare.WIDTHS, "resnet18-narrow", 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    set_threads(threads)


def grey(level: int) -> Pixels:
    return np.full((8, 8, 3), level, np.uint8)


def greys(labels: list[int], first: int = 0) -> Examples:
    """Images of one grey each, which is also the name; every crop looks the same."""
    levels = range(first, first + len(labels))
    return Examples(tuple(Photo(str(n), partial(grey, n)) for n in levels), tuple(labels))


def who(images: Tensor) -> list[int]:
    """The greys of images."""
    return [round(float(image.float().mean())) for image in images]


def tiny(head: type[Head] = SplitCosine, classes: int = 2) -> Net:
    backbone = ResNet("lucir", 2, "3x3")
    net = Net(backbone, head(backbone.features))
    net.head.grow(classes)
    return net.eval()


def two_branches() -> Net:
    """Three classes; the branches have parted."""
    net = tiny().with_body("branches")
    net.head.grow(1)
    assert isinstance(net.backbone, Branches)
    cast(Split, net.head).scale.data.fill_(4.0)
    for p in net.backbone.plastic.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return net


def mixing(net: Net) -> Tensor:
    assert isinstance(net.backbone, Branches)
    return net.backbone.alpha


def training(net: Net, seed: int = 7) -> Callable[..., Stop]:
    """`loop.fit` as a run calls it."""

    def run(part: Examples, training: TrainSettings, loss: Any, **options: Any) -> Stop:
        feed = open_feed(part, 8, CPU, "ram", threads=1)
        return fit(net, loss, feed, training, seed=seed, **options)

    return run


@dataclass
class Answers:
    """A network that knows images by their grey."""

    given: Tensor  # features by grey
    logits: Tensor

    @property
    def classes(self) -> int:
        return self.logits.shape[1]

    def features(self, x: Tensor) -> Tensor:
        return self.given[who(x)]

    def __call__(self, x: Tensor) -> Output:
        place = who(x)
        return Output((), self.given[place], self.logits[place] / 4, self.logits[place])

    steady = __call__


def answers(features: Tensor, logits: Tensor) -> Net:
    return cast(Net, Answers(features, logits))


def output(net: Net, features: Tensor) -> Output:
    """What a network says of images with these features."""
    scores = net.head.scores(features)
    return Output((), features, scores, net.head.logits(scores))


def state_of(net: Net) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def changed(net: Net, before: dict[str, Tensor]) -> set[str]:
    return {
        name for name, value in net.state_dict().items() if not torch.equal(value, before[name])
    }


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
        ("lucir-dde", "neighbours=-1", r"neighbours must be 0 or more and own_weight between 0 and "
         r"1, got -1 and 0.5"),
        ("lucir-dde", "own_weight=1", r"own_weight between 0 and 1, got 10 and 1.0"),
        ("lucir-dde", "own_weight=0", r"own_weight between 0 and 1, got 10 and 0.0"),
        ("lucir-dde", "own_weight=nan", r"own_weight between 0 and 1, got 10 and nan"),
        ("podnet-dde", "removal=some", r"removal must be 'fixed' or 'learned', got 'some'"),
        ("podnet-dde", "neighbour_norm=no", r"neighbour_norm must be 'eval' or 'train', got 'no'"),
    ],
)  # fmt: skip
def test_refuses_settings_that_are_none(method: str, option: str, message: str) -> None:
    """Of the wrapper and of what it wraps; the message says which, and what is allowed."""
    with pytest.raises(UsageError, match=message):
        make_method(RunSettings("x", method=method, options=(option,)))


# AANets: how a phase starts


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


# AANets: the mixing weights


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


# DDE: neighbours


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


# DDE: the loss


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


# DDE: the momentum effect


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
    kept, directions = [0, 1, 3, 4, 5, 6], torch.stack([last, momentum])
    with torch.no_grad():
        along = net.head.scores(directions) + (2.0 if head is LSC else 0.0)
        torch.testing.assert_close(seen[0], 3 * net.head.scores(table[kept]))
    torch.testing.assert_close(seen[1], 3 * effects(table[kept], directions, along))
    assert seen[2].tolist() == [0, 0, 1, 1, 2, 2]
    assert seen[3].tolist() == pytest.approx([1.0, 0.3])
    assert seen[4] == len("momentum effect")  # the seed of that name
    assert method.mix_ is given
    assert method.report() == {"mix": given.tolist()}


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
