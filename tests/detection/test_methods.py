"""Pseudo labels and teachers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN

from mrdc._utils.errors import UsageError
from mrdc.detection.album import Album
from mrdc.detection.evaluate import Found
from mrdc.detection.learner import make_scene_method
from mrdc.detection.methods import (
    PseudoLabels,
    Shot,
    Supervised,
    Task,
    UnbiasedTeacher,
    averaging_rate,
)
from tests.scenes import CPU, rows, scenes, shots, small, tiny

pytestmark = pytest.mark.usefixtures("seeded")


def task(steps: int = 10, count: int = 4) -> Task:
    return Task(Album(scenes(range(50, 50 + count)).photos, CPU, 1), steps, 2)


def stepped(method: Supervised, model: FasterRCNN, step: int, **given_: Any) -> Tensor:
    """The loss of a step with the first two images of the pool, if it has any."""
    (pool,) = method.pools(model, range(step, step + 1))
    places = list(pool)[:2]
    images = given_.get("unknown", [shot.image for shot in shots(2)])
    torch.manual_seed(11)
    return method.loss(model, step, shots(), places, images[: len(places)])


def test_perfect_pseudo_labels_teach_like_labels() -> None:
    """The loss of pseudo-labelled images is that of labelled ones."""
    model = tiny().train()
    method = PseudoLabels(burn_in=0.0)
    method.start_phase(model, task())
    given_ = shots(2)
    known = [torch.cat([torch.tensor([float(n)]), shot.boxes[0]]) for n, shot in enumerate(given_)]
    method.load_state({"labels_": torch.stack(known)})
    supervised = Supervised()
    torch.manual_seed(11)
    expected = supervised.loss(model, 0, shots() + given_, [], [])
    assert stepped(method, model, 5).item() == pytest.approx(expected.item())


def test_labels_are_made_once_and_only_after_burning_in() -> None:
    """Scores must be strictly above the threshold."""
    model = tiny().train()
    method = PseudoLabels(burn_in=0.5, threshold=0.0)
    method.start_phase(model, task())
    stepped(method, model, 4)
    assert method.labels_ is None
    stepped(method, model, 5)
    first = method.labels_
    assert first is not None and len(first) > 0 and model.training
    stepped(method, model, 6)
    assert method.labels_ is first
    method.start_phase(model, task())
    assert method.labels_ is None
    found = Found(np.zeros((2, 5), np.float32), rows([0.7, 0.71]))
    assert len(found.above(0.7)) == 1


@pytest.mark.parametrize(("keep", "count"), [(0, 3), (1, 5)])
def test_images_without_labels_are_left_out_or_background(
    keep: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def note(model: FasterRCNN, given_: list[Shot]) -> dict[str, Tensor]:
        seen.append(len(given_))
        return {"loss": torch.zeros(())}

    monkeypatch.setattr("mrdc.detection.methods.losses", note)
    method = PseudoLabels(burn_in=0.0, keep_empty=keep)
    method.start_phase(tiny(), task())
    method.load_state({"labels_": torch.zeros(0, 6)})
    stepped(method, tiny(), 0)
    assert seen == [count]
    assert "no image got a pseudo label" in method.report()["warning"]


def test_labels_are_found_by_their_image() -> None:
    """Only the second and fourth images have labels, and only they are drawn."""
    method = PseudoLabels(burn_in=0.0)
    method.start_phase(tiny(), task())
    given_ = torch.tensor([[1.0, 0, 0, 9, 9, 2], [1, 5, 5, 9, 9, 0], [3, 1, 2, 3, 4, 1]])
    method.load_state({"labels_": given_})
    assert method.pools(tiny(), range(1)) == [[1, 3]]
    counts = [len(boxes) for boxes in method.labels()]
    assert counts[:4] == [0, 2, 0, 1] and sum(counts) == 3
    np.testing.assert_array_equal(method.labels()[3], [[1, 2, 3, 4, 1]])


def test_the_teacher_starts_as_the_student_and_follows_slowly() -> None:
    """After k steps it equals the closed form of the moving average."""
    model = tiny().train()
    method = UnbiasedTeacher(burn_in=0.2)
    method.start_phase(model, task())
    stepped(method, model, 1)
    assert method.teacher is None and method.answers(model) is model
    stepped(method, model, 2)
    teacher = method.answers(model)
    name = "roi_heads.box_predictor.cls_score.weight"
    start = model.state_dict()[name].clone()
    assert torch.equal(teacher.state_dict()[name], start) and not teacher.training
    with torch.no_grad():
        model.state_dict()[name].add_(1.0)
    for step in range(3, 6):
        stepped(method, model, step)
    moved = teacher.state_dict()[name] - start
    torch.testing.assert_close(moved, torch.full_like(moved, 1 - (1 - method.rate) ** 3))
    assert not any(p.requires_grad for p in teacher.parameters())


def test_the_rate_of_the_average() -> None:
    """0.0004 over the published 8,000 steps, faster in shorter phases, within bounds."""
    assert averaging_rate(8000) == pytest.approx(0.0004)
    assert averaging_rate(800) == pytest.approx(0.004)
    assert averaging_rate(4) == pytest.approx(0.1)
    assert averaging_rate(10**6) == pytest.approx(0.0004)


def test_guessed_boxes_teach_classes_but_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times objectness and classes of unlabelled images; no box regression."""
    values = {"loss_classifier": 1.0, "loss_box_reg": 10.0}
    values |= {"loss_objectness": 100.0, "loss_rpn_box_reg": 1000.0}
    calls: list[int] = []

    def fake(model: FasterRCNN, given_: list[Shot]) -> dict[str, Tensor]:
        calls.append(len(given_))
        return {name: torch.tensor(value) for name, value in values.items()}

    monkeypatch.setattr("mrdc.detection.methods.losses", fake)
    method = UnbiasedTeacher(burn_in=0.0)
    model = tiny().train()
    method.start_phase(model, task())
    assert stepped(method, model, 0).item() == 1111 + 4 * 101
    assert calls == [6, 2]  # weak and strong views of three; two unlabelled


def test_there_is_always_a_teacher_in_the_end() -> None:
    """Even if burn-in, rounded, takes all steps of a phase."""
    for steps in (1, 4):
        model = tiny().train()
        method = UnbiasedTeacher(burn_in=0.9)
        method.start_phase(model, task(steps))
        stepped(method, model, steps - 1)
        assert method.answers(model) is method.teacher and len(method.labels()) == 4


def test_state_survives_a_checkpoint() -> None:
    """Pseudo labels, and the teacher with its counts."""
    for method in (PseudoLabels(burn_in=0.0, threshold=0.0), UnbiasedTeacher(burn_in=0.0)):
        model = tiny().train()
        method.start_phase(model, task())
        stepped(method, model, 0)
        other = type(method)(burn_in=0.0)
        other.start_phase(model, task())
        other.load_state({name: value.clone() for name, value in method.state().items()})
        assert other.state().keys() == method.state().keys() and method.state()
        for name, value in method.state().items():
            assert torch.equal(value, other.state()[name])


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("pseudo-labels", "threshold=1.5", "threshold must be from 0 to less than 1, got 1.5"),
        ("unbiased-teacher", "thresold=0.5", "unknown setting of unbiased-teacher 'thresold'"),
        ("unbiased-teacher", "weight=much", "weight takes a number"),
        ("supervised", "threshold=0.5", "--set threshold=0.5: supervised has no settings"),
    ],
)
def test_refuses_invalid_settings(method: str, option: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_scene_method(small(method, options=(option,)))
