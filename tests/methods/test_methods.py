"""Losses and stages of LwF and iCaRL; what all methods share, and what a run offers them."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mrdc.training.learner
from mrdc.data.crops import centre_crop
from mrdc.data.examples import Examples, from_images
from mrdc.methods import (
    LUCIR,
    METHODS,
    AANets,
    BiC,
    ICaRL,
    LwF,
    Method,
    PODNet,
    Relaxed,
    TrainSettings,
)
from mrdc.methods.base import names_first_phase
from mrdc.methods.bic import soft_cross_entropy
from mrdc.methods.icarl import binary_loss
from mrdc.methods.lwf import distill
from mrdc.methods.options import make_method, method_settings
from mrdc.methods.shared import balanced
from mrdc.nn.heads import Linear, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.training.learner import ClassLearner
from tests.helpers import (
    KilledError,
    Remembers,
    examples,
    lesson,
    says,
    small_run,
    small_stream,
    tiny,
)

LN2, LN3 = math.log(2), math.log(3)

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
    plain = {
        METHODS[name]().first_phase for name in ("finetune", "replay", "joint", "lwf", "icarl")
    }
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


def test_plain_replay_preserves_nothing() -> None:
    """Cross-entropy over all classes, whatever the old network says."""
    net, old = tiny("plain", Linear, 3), tiny("plain", Linear, 2)
    x, y = torch.rand(6, 3, 16, 16), torch.tensor([0, 1, 2, 2, 2, 2])
    expected = F.cross_entropy(net(x).logits, y)
    assert METHODS["replay"]().loss(net, old, x, y) == expected
    assert METHODS["lwf"]().loss(net, old, x, y) > expected


def test_cosine_replay_is_lucir_without_preservation() -> None:
    """It trains like `lucir-relaxed` beside a memory of all images, from LUCIR's first phase."""
    net, old = tiny("lucir", SplitCosine, 3), tiny("lucir", SplitCosine, 2)
    x, y = torch.rand(6, 3, 16, 16), torch.tensor([0, 1, 2, 2, 2, 2])
    relaxed = Relaxed(LUCIR())
    relaxed.missing = 0.0
    assert METHODS["replay-cosine"]().loss(net, old, x, y) == relaxed.loss(net, old, x, y)
    assert METHODS["replay-cosine"]().first_phase == relaxed.first_phase
    results = [
        small_run(method, memory={"budget": "60/class"}, train=TrainSettings(epochs=2)).run()
        for method in ("replay-cosine", "lucir-relaxed")
    ]
    one, other = ([phase.tasks for phase in phases] for phases in results)
    assert one == other


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
