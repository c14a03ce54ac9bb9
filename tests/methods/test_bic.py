"""BiC: the validation images it sets aside, and the correction it fits to them."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mrdc.methods.bic
from mrdc.data.examples import Examples
from mrdc.methods.bic import BiC, correct, fit_bias, interleave, set_aside, soft_cross_entropy
from mrdc.methods.shared import balanced
from mrdc.nn.net import Output
from mrdc.training.learner import ClassLearner
from tests.helpers import lesson, says, small_run

pytestmark = pytest.mark.usefixtures("quick")


def test_a_correction_by_hand() -> None:
    """Doubled and lowered by one from the third column on; 1 and 0, or None, change nothing."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    got = correct(logits, torch.tensor([2.0, -1.0]), 2)
    assert got.tolist() == [[1.0, 2.0, 5.0, 7.0]]
    assert torch.equal(correct(logits, torch.tensor([1.0, 0.0]), 2), logits)
    assert correct(logits, None, 2) is logits


def biased(beta: float, gamma: float, count: int = 20_000) -> tuple[Tensor, Tensor]:
    """Logits whose last two of five columns need this correction, and labels."""
    logits = 2 * torch.randn(count, 5)
    truth = correct(logits, torch.tensor([beta, gamma]), 3).softmax(1)
    return logits, torch.multinomial(truth, 1)[:, 0]


@pytest.mark.parametrize(("beta", "gamma"), [(0.6, -0.5), (1.0, 0.0), (1.5, 1.0)])
def test_a_known_bias_is_recovered(beta: float, gamma: float) -> None:
    """From labels drawn by corrected logits, up to sampling error."""
    logits, labels = biased(beta, gamma)
    assert fit_bias(logits, labels, 3, 0.0).tolist() == pytest.approx([beta, gamma], abs=0.06)


def test_the_gradient_vanishes_at_the_bias_and_gamma_decays() -> None:
    """Cross-entropy + decay * gamma^2 / 2, without decay of beta; more decay, smaller gamma."""
    logits, labels = biased(0.7, -1.0, 500)
    gammas = []
    for decay in (0.0, 0.1, 1.0, 100.0):
        found = fit_bias(logits, labels, 3, decay).double().requires_grad_()
        loss = F.cross_entropy(correct(logits.double(), found, 3), labels)
        (loss + 0.5 * decay * found[1] ** 2).backward()  # type: ignore[no-untyped-call]
        assert found.grad is not None
        assert found.grad.abs().max() < 1e-4
        gammas.append(abs(found[1].item()))
    assert gammas == sorted(gammas, reverse=True)
    assert gammas[0] > 0.5 and gammas[-1] < 0.01


@pytest.mark.parametrize(
    ("images", "quota", "count"),
    [(2, 20, 1), (19, 20, 1), (20, 20, 2), (30, 20, 2), (30, 5, 1), (30, 85, 3), (1300, 85, 8)],
)
def test_a_tenth_of_the_quota_is_set_aside(images: int, quota: int, count: int) -> None:
    """At least one image, and always the same ones."""
    ids = [f"image {n}" for n in range(images)]
    aside = set_aside(ids, quota, 3, 7)
    assert len(aside) == count
    assert aside <= set(ids)
    assert aside == set_aside(ids, quota, 3, 7)
    draws = {frozenset(set_aside(ids, quota, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(draws) == 4 or images < 100  # they depend on the seed and the class


@pytest.mark.parametrize(("budget", "quota"), [("12/class", 12), ("60 originals", 10)])
def test_the_quota_is_in_originals_of_all_classes(budget: str, quota: int) -> None:
    run = small_run("bic", memory={"budget": budget, "quality": "50"})
    assert run.learner.exemplars is not None and run.learner.exemplars.quota == quota


@given(train=st.integers(0, 60), validation=st.integers(0, 12))
def test_interleaving_keeps_everything(train: int, validation: int) -> None:
    """Validation at ranks 1, 11, 21, ..., then the rest; each kind in its own order."""
    a, b = list(range(train)), list(range(100, 100 + validation))
    ranking = interleave(a, b)
    assert [item for item in ranking if item < 100] == a
    assert [item for item in ranking if item >= 100] == b
    places = [rank for rank, item in enumerate(ranking) if item >= 100]
    for number, place in enumerate(places):
        others_left = train > 1 + 9 * number
        assert place == 1 + 10 * number or (not others_left and place >= train)


def test_bic_weighs_distillation_by_the_share_of_old_classes() -> None:
    """3 of 4 classes are old: 3/4 soft and 1/4 hard; the teacher's new classes are corrected."""
    new, old, y = torch.randn(5, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 3])
    x, hard = torch.empty(5), F.cross_entropy(new, y)
    assert torch.equal(BiC().loss(says(new), None, x, y), hard)
    plain = BiC(weighting="classes")
    method = BiC(weighting="classes", bias_=torch.tensor([0.5, -1.0]), start_=2)
    corrected = torch.cat([old[:, :2], 0.5 * old[:, 2:] - 1], 1)
    for made, teacher in ((plain, old), (method, corrected)):
        expected = 0.75 * soft_cross_entropy(new, teacher, 2.0) + 0.25 * hard
        loss = made.loss(says(new), says(old), x, y)
        assert loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("weighting", "soft", "hard"),
    [("classes", 0.75, 0.25), ("phases", 2 / 3, 1 / 3), ("full", 1, 1)],
)
def test_distillation_can_be_weighed_by_phases_or_added_in_full(
    weighting: Any, soft: float, hard: float
) -> None:
    """In the third phase, with 3 old classes of 4; the first phase has cross-entropy alone."""
    new, old, y = torch.randn(5, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 3])
    method, x = BiC(weighting=weighting, phase_=2), torch.empty(5)
    parts = soft_cross_entropy(new, old, 2.0), F.cross_entropy(new, y)
    assert torch.equal(method.loss(says(new), None, x, y), parts[1])
    expected = soft * parts[0] + hard * parts[1]
    assert method.loss(says(new), says(old), x, y).item() == pytest.approx(expected.item())


def test_the_phase_is_counted() -> None:
    """From 0; it is part of the state, so a resumed run uses the same weights."""
    run = small_run(BiC())
    for phase in range(2):
        run.learn(phase)
        assert run.learner.method.state()["phase_"] == phase


def test_predictions_and_reports_use_the_correction() -> None:
    """An old class may win after all; without validation images there is a warning instead."""
    out = Output((), torch.empty(1, 2), torch.tensor([[2.0, 3.0]]), torch.empty(1, 2))
    method = BiC(bias_=torch.tensor([0.5, 0.0]), start_=1)
    assert BiC().predict(out).argmax(1).item() == 1
    assert method.predict(out).argmax(1).item() == 0
    assert method.report() == {"beta": 0.5, "gamma": 0.0}
    assert BiC().report() == {}  # the first phase needs no correction
    single = BiC()
    single.before_store(lesson(preview=lambda _: Examples()))  # classes of a single image
    assert single.bias_ is None
    assert "a class holds no validation image" in single.report()["warning"]


def test_validation_images_are_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The correction is fitted to them alone, as stored; it also corrects the next teacher."""
    trained, shown, starts = list[Examples](), list[Examples](), list[int]()
    used: list[tuple[Tensor | None, int]] = []
    method = BiC(decay=0.3)
    run = small_run(method, memory={"quality": "50"})

    def look(self: ClassLearner, part: Examples, *_: Any, **__: Any) -> None:
        trained.append(part)
        used.append((method.bias_, method.start_))

    def watch_balanced(part: Examples) -> Examples:
        shown.append(balanced(part))
        return shown[-1]

    def watch_fit(logits: Tensor, labels: Tensor, start: int, decay: float) -> Tensor:
        starts.append(start)
        assert decay == 0.3 and labels.tolist() == list(shown[-1].labels)
        expected = run.learner.model.head.scores(run.learner.features(shown[-1]))
        torch.testing.assert_close(logits, expected.detach())
        return fit_bias(logits, labels, start, decay)

    monkeypatch.setattr(ClassLearner, "fit", look)
    monkeypatch.setattr(mrdc.methods.bic, "balanced", watch_balanced)
    monkeypatch.setattr(mrdc.methods.bic, "fit_bias", watch_fit)
    found: list[Tensor | None] = []
    for phase in range(3):
        run.learn(phase)
        found.append(method.bias_)
    aside = {
        label: set_aside([p.id for p in photos], 12, run.learner.seed("validation"), label)
        for label, photos in enumerate(run.learner.stream.train.photos)
    }
    for phase, part in enumerate(trained):
        seen = Counter(part.labels)
        assert sorted(seen) == list(range(2 * phase + 2))
        assert seen[2 * phase] == seen[2 * phase + 1] == 29  # of 30
        pairs = zip(part.photos, part.labels, strict=True)
        assert not [p.id for p, label in pairs if p.id in aside[label]]
    for label in range(6):
        sources = run.memory.sources(label)
        assert sources[1] in aside[label] and sources[0] not in aside[label]
    held = run.memory.examples()
    kept = {(y, photo.id): photo.load() for y, photo in zip(held.labels, held.photos, strict=True)}
    for number, part in enumerate(shown, 2):  # from the second phase on
        counts = Counter(part.labels)
        assert sorted(counts) == list(range(2 * number)) and len(set(counts.values())) == 1
        for label, photo in zip(part.labels, part.photos, strict=True):
            assert photo.id in aside[label] and photo.load() == kept[label, photo.id]
    assert starts == [2, 4] and used == [(None, 0), (None, 0), (found[1], 2)]
    assert found[0] is None and found[1] is not None and found[2] is not None
    assert not torch.equal(found[1], found[2])
