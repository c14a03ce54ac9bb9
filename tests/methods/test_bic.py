"""BiC: the images it sets aside, and the correction that it fits to them."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mrdc.methods.bic
import mrdc.training.classes
from mrdc.data.examples import Examples
from mrdc.data.images import ImageSet
from mrdc.methods.base import Lesson, balanced
from mrdc.methods.bic import BiC, correct, fit_bias, interleave, set_aside, soft_cross_entropy
from mrdc.nn.heads import Linear
from mrdc.nn.net import Output
from mrdc.training.classes import Run
from mrdc.training.feed import from_memory
from mrdc.training.settings import MemorySettings
from tests.helpers import examples, lesson, says, small_run, tiny

pytestmark = pytest.mark.usefixtures("quick")


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
    ("images", "quota", "count"),
    [(2, 20, 1), (9, 20, 1), (19, 20, 1), (20, 20, 2), (30, 20, 2), (30, 5, 1), (30, 85, 3),
     (1300, 20, 2), (1300, 85, 8)],
)  # fmt: skip
def test_a_tenth_of_the_quota_is_set_aside(images: int, quota: int, count: int) -> None:
    """At least one, always the same ones, wherever they stand."""
    ids = [f"image {n}" for n in range(images)]
    aside = set_aside(ids, quota, 3, 7)
    assert len(aside) == count
    assert aside <= set(ids)
    assert aside == set_aside(ids, quota, 3, 7)


@pytest.mark.parametrize(("budget", "quota"), [("12/class", 12), ("60 originals", 10)])
def test_the_quota_is_in_originals_of_all_classes(budget: str, quota: int) -> None:
    run = small_run("bic", memory=MemorySettings(budget=budget, quality="50"))
    assert run.exemplars is not None and run.exemplars.quota == quota


def test_other_classes_and_seeds_set_aside_others() -> None:
    """The draw belongs to both."""
    ids = [str(n) for n in range(100)]
    draws = {frozenset(set_aside(ids, 20, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))}
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
        label: set_aside([p.id for p in photos], 12, run.seed("validation"), label)
        for label, photos in enumerate(run.stream.train.photos)
    }
    for phase, part in enumerate(trained):
        seen = Counter(part.labels)
        assert sorted(seen) == list(range(2 * phase + 2))
        assert seen[2 * phase] == seen[2 * phase + 1] == 29  # of 30
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


def test_the_correction_is_of_the_newest_logits_on_validation_images_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of each class where one class has two, before the new ones are stored."""
    aside = ({"0", "2"}, {"3"}, {"1"})
    seen: list[tuple[int, str]] = []
    fitted: list[tuple[Tensor, list[int], int, float]] = []
    order: list[str] = []
    net, features = tiny("plain", Linear), torch.randn(3, 16)
    net.head.grow(3)

    def look(part: Examples) -> Tensor:
        seen.extend((y, photo.id) for y, photo in zip(part.labels, part.photos, strict=True))
        return features[: len(part)]

    def preview() -> Examples:
        order.append("preview")
        return examples([2, 2])

    def fit(logits: Tensor, labels: Tensor, start: int, decay: float) -> Tensor:
        fitted.append((logits, labels.tolist(), start, decay))
        return torch.tensor([0.5, -1.0])

    monkeypatch.setattr(mrdc.methods.bic, "set_aside", lambda *args: aside[args[-1]])
    monkeypatch.setattr(mrdc.methods.bic, "fit_bias", fit)
    now = lesson(
        model=net, features=look, preview=preview, memory=examples([0, 0, 0, 1]),
        images=ImageSet(("a", "b", "c"), ([], [], []), ([], [], [])),
        store=lambda: order.append("store"),
    )  # fmt: skip
    method = BiC(decay=0.3)
    method.end_phase(now)
    assert seen == [(0, "0"), (1, "3"), (2, "1")]
    ((logits, labels, start, decay),) = fitted
    assert (labels, start, decay) == ([0, 1, 2], 2, 0.3)
    assert torch.equal(logits, net.head.scores(features))
    assert order == ["preview", "store"]
    assert method.report() == {"beta": 0.5, "gamma": -1.0} and method.start_ == 2


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


def test_with_nothing_set_aside_the_first_phase_is_that_of_lwf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weight by weight: what BiC's first phase lacks are the images, and nothing else."""
    nets: list[dict[str, Tensor]] = []
    for method, aside in (("lwf", set_aside), ("bic", lambda *_: set()), ("bic", set_aside)):
        monkeypatch.setattr(mrdc.methods.bic, "set_aside", aside)
        run = small_run(method)
        run.learn(0)
        nets.append(run.model.state_dict())
    lwf, whole, less = nets
    assert all(torch.equal(lwf[name], whole[name]) for name in lwf)
    assert not torch.equal(lwf["head.weight"], less["head.weight"])


def test_classes_of_one_image_go_without_a_correction() -> None:
    """There is none to set aside."""
    lesson = SimpleNamespace(memory=Examples(), preview=Examples, old=2, new=1,
                             images=ImageSet((), (), ()))  # fmt: skip
    assert BiC()._correction(cast(Lesson, lesson)) is None
    assert "no validation image" in BiC(start_=2).report()["warning"]
    assert BiC().report() == {}  # the first phase needs none


def test_the_correction_is_reported() -> None:
    assert BiC(bias_=torch.tensor([0.5, -1.0]), start_=2).report() == {"beta": 0.5, "gamma": -1.0}


def test_the_correction_sees_new_classes_as_they_will_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compressed like the old ones, and as many of each."""
    seen: list[Examples] = []
    real = balanced

    def watch(examples: Examples) -> Examples:
        seen.append(examples)
        return real(examples)

    monkeypatch.setattr(Run, "_fit", lambda *_, **__: None)
    monkeypatch.setattr(mrdc.methods.bic, "balanced", watch)
    run = small_run("bic", memory=MemorySettings(budget="12/class", quality="50"))
    for phase in range(2):
        run.learn(phase)
    assert run.exemplars is not None
    held = from_memory(run.exemplars.memory)
    kept = {(y, photo.id): photo.load() for y, photo in zip(held.labels, held.photos, strict=True)}
    (aside,) = seen
    assert set(aside.labels) == {0, 1, 2, 3}
    for photo, label in zip(aside.photos, aside.labels, strict=True):
        assert photo.load() == kept[label, photo.id]
