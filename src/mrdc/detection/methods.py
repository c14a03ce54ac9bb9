"""Three ways to learn from labelled and unlabelled scenes.

    supervised        labelled scenes alone
    pseudo-labels     after a fifth of a phase the detector labels the unlabelled images once,
                      and trains on both from then on
    unbiased-teacher  a slowly averaged copy labels weak views of unlabelled images, and the
                      detector learns from strong views of them (Liu et al., 2021)

A method computes the loss of a step. Fields are settings, and state kept between steps ends in
`_`. Draws come from torch's generator, which the caller seeds for each step.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchvision.models.detection import FasterRCNN

from mrdc._utils.errors import UsageError
from mrdc.data.scenes import Boxes
from mrdc.detection.album import Album
from mrdc.detection.augment import strong, weak
from mrdc.detection.evaluate import as_found, detect
from mrdc.distributed.group import world

Losses = dict[str, Tensor]
CLASSES = ("loss_classifier", "loss_objectness")  # not boxes: a score says nothing about them
STEPS, RATE = 8000, 0.0004  # steps and rate of the published teacher's average
SILENT = 0.25  # fraction of a teacher's steps without a label that calls for a warning


class Shot(NamedTuple):
    """An image (3, h, w) from 0 to 1, and its boxes (n, 5) with labels from 0, on one device."""

    image: Tensor
    boxes: Tensor


Shots = Sequence[Shot]


class Task(NamedTuple):
    """A phase, as a method sees it: its unlabelled images, steps and batch size."""

    unlabelled: Album
    steps: int
    batch_size: int


def losses(model: FasterRCNN, shots: Shots) -> Losses:
    """The four losses of a detector in training."""
    targets = [{"boxes": s.boxes[:, :4], "labels": s.boxes[:, 4].long() + 1} for s in shots]
    found: Losses = model([shot.image for shot in shots], targets)
    return found


def total(found: Losses, names: Sequence[str] | None = None) -> Tensor:
    """Sum of all losses, or of some."""
    return torch.stack([found[name] for name in names or found]).sum()


def flipped(shot: Shot) -> Shot:
    """The weak view."""
    image, corners = weak(shot.image, shot.boxes[:, :4])
    return Shot(image, torch.cat([corners, shot.boxes[:, 4:]], 1))


@dataclass(kw_only=True)
class Supervised:
    """Labelled scenes alone."""

    gamma = 0.0  # of the focal loss
    wants_unlabelled = False

    def start_phase(self, model: FasterRCNN, task: Task) -> None:
        """Prepare a phase."""

    def pools(self, model: FasterRCNN, steps: range) -> Sequence[Sequence[int]]:
        """For each of the next steps, indices of the unlabelled images to draw from."""
        return [()] * len(steps)

    def loss(
        self, model: FasterRCNN, step: int, known: Shots, places: list[int], unknown: list[Tensor]
    ) -> Tensor:
        """Loss of a step: labelled shots, and unlabelled images with their indices in the album."""
        return total(losses(model, [flipped(shot) for shot in known]))

    def answers(self, model: FasterRCNN) -> FasterRCNN:
        """The detector to evaluate and to embed with."""
        return model

    def restore(self, model: FasterRCNN, state: Mapping[str, Tensor]) -> None:
        """Continue after a phase that ended with this state."""

    def report(self) -> dict[str, Any]:
        """JSON values about the phase for people to read."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """State to resume from in the middle of a phase."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state."""


@dataclass(kw_only=True)
class PseudoLabels(Supervised):
    """Label unlabelled images once per phase, where the detector is confident."""

    threshold: float = 0.7
    burn_in: float = 0.2  # fraction of a phase before there are labels
    keep_empty: int = 0  # 1: images without labels count as background; 0: they are left out
    labels_: Tensor | None = None  # (n, 6): index of the image, box, label; by index

    wants_unlabelled = True

    def __post_init__(self) -> None:
        _within(threshold=self.threshold, burn_in=self.burn_in)

    def start_phase(self, model: FasterRCNN, task: Task) -> None:
        self.task = task
        self.by_place: dict[int, Tensor] = {}
        self._take(None)
        self.first = round(self.burn_in * task.steps)

    def pools(self, model: FasterRCNN, steps: range) -> Sequence[Sequence[int]]:
        """Nothing if burn-in has not ended before them; then the images with labels."""
        if steps.start < self.first:
            return [()] * len(steps)
        if self.labels_ is None:
            rows, album = [torch.zeros(0, 6)], self.task.unlabelled
            for place, found in enumerate(detect(model, album, self.task.batch_size)):
                boxes = torch.from_numpy(found.above(self.threshold))
                rows.append(torch.cat([torch.full((len(boxes), 1), float(place)), boxes], 1))
            self._take(torch.cat(rows))
        every = range(len(self.task.unlabelled))
        return [every if self.keep_empty else list(self.by_place)] * len(steps)

    def loss(
        self, model: FasterRCNN, step: int, known: Shots, places: list[int], unknown: list[Tensor]
    ) -> Tensor:
        pairs = zip(unknown, places, strict=True)
        guessed = [Shot(image, self._of(place).to(image.device)) for image, place in pairs]
        return total(losses(model, [flipped(shot) for shot in [*known, *guessed]]))

    def _take(self, labels: Tensor | None) -> None:
        self.labels_ = labels
        self.by_place = {}
        if labels is not None:
            places, counts = torch.unique_consecutive(labels[:, 0], return_counts=True)
            parts = torch.split(labels[:, 1:], counts.tolist())
            self.by_place = dict(zip(places.int().tolist(), parts, strict=True))

    def _of(self, place: int) -> Tensor:
        return self.by_place.get(place, torch.zeros(0, 5))

    def labels(self) -> list[Boxes]:
        """Labels by image; empty before they are made."""
        return [self._of(place).numpy() for place in range(len(self.task.unlabelled))]

    def report(self) -> dict[str, Any]:
        labels = self.labels()
        count = sum(map(len, labels))
        images = sum(len(one) > 0 for one in labels)
        found: dict[str, Any] = {"pseudo_labels": count, "images_with_labels": images}
        found["labels_per_image"] = count / max(len(labels), 1)
        if not count:
            found["warning"] = "no image got a pseudo label, so only labelled images were used"
        return found

    def state(self) -> dict[str, Tensor]:
        return {} if self.labels_ is None else {"labels_": self.labels_}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._take(state["labels_"].cpu() if "labels_" in state else None)


@dataclass(kw_only=True)
class UnbiasedTeacher(Supervised):
    """Weak views for the teacher, strong ones for the student; focal loss everywhere."""

    threshold: float = 0.7
    burn_in: float = 0.2  # fraction of a phase before there is a teacher
    weight: float = 4.0  # of the unlabelled losses
    carry: int = 0  # 1: keep the teacher in the next phase, which then has no burn-in

    gamma = 1.5
    wants_unlabelled = True

    def __post_init__(self) -> None:
        _within(threshold=self.threshold, burn_in=self.burn_in)
        self.teacher: FasterRCNN | None = None

    def restore(self, model: FasterRCNN, state: Mapping[str, Tensor]) -> None:
        weights = {k.removeprefix("teacher."): v for k, v in state.items() if k != "counts"}
        if weights:
            self.teacher = copy.deepcopy(model).eval().requires_grad_(False)
            self.teacher.load_state_dict(weights)

    def start_phase(self, model: FasterRCNN, task: Task) -> None:
        self.model, self.task = model, task
        if not self.carry:
            self.teacher = None
        burn_in = self.burn_in if self.teacher is None else 0
        self.first = min(round(burn_in * task.steps), task.steps - 1)
        self.rate = averaging_rate(task.steps - self.first)
        self.counts = [0, 0]  # labels, and images they are of
        self.silent = 0  # steps in a row without a label

    def pools(self, model: FasterRCNN, steps: range) -> Sequence[Sequence[int]]:
        """Nothing during burn-in; then all images."""
        every = range(len(self.task.unlabelled))
        return [every if step >= self.first else () for step in steps]

    def loss(
        self, model: FasterRCNN, step: int, known: Shots, places: list[int], unknown: list[Tensor]
    ) -> Tensor:
        if step >= self.first:
            self._average(model)
        shots = [flipped(shot) for shot in known]
        loss = total(losses(model, shots + [Shot(strong(s.image), s.boxes) for s in shots]))
        if self.teacher is None:
            return loss
        seen = [flipped(Shot(image, image.new_zeros(0, 5))).image for image in unknown]
        with torch.no_grad():
            answers = [as_found(one).above(self.threshold) for one in self.teacher(seen)]
        guessed = [
            Shot(strong(image), torch.from_numpy(boxes).to(image))
            for image, boxes in zip(seen, answers, strict=True)
        ]
        counts = torch.tensor([sum(len(shot.boxes) for shot in guessed), len(guessed)])
        labels, images = world().sum(counts).tolist()
        self.counts = [self.counts[0] + labels, self.counts[1] + images]
        self.silent = 0 if labels else self.silent + 1
        return loss + self.weight * total(losses(model, guessed), CLASSES)

    def _average(self, model: FasterRCNN) -> None:
        """Start the teacher as a copy of the student, then move it towards the student."""
        if self.teacher is None:
            self.teacher = copy.deepcopy(model).eval().requires_grad_(False)
            return
        ours, theirs = list(self.teacher.parameters()), list(model.parameters())
        average = get_ema_multi_avg_fn(1 - self.rate)  # type: ignore[no-untyped-call]
        average(ours, theirs, None)

    def answers(self, model: FasterRCNN) -> FasterRCNN:
        return model if self.teacher is None else self.teacher

    def labels(self) -> list[Boxes]:
        """Labels by image, from the teacher as it is now."""
        assert self.teacher is not None
        found = detect(self.teacher, self.task.unlabelled, self.task.batch_size)
        return [one.above(self.threshold) for one in found]

    def report(self) -> dict[str, Any]:
        labels, images = self.counts
        found: dict[str, Any] = {"pseudo_labels_per_image": labels / max(images, 1)}
        if self.silent >= SILENT * (self.task.steps - self.first) or not labels:
            why = f"the teacher gave no pseudo label in the last {self.silent} steps"
            found["warning"] = f"{why}: lower the threshold or train longer"
        return found

    def state(self) -> dict[str, Tensor]:
        if self.teacher is None:
            return {}
        weights = {f"teacher.{k}": v for k, v in self.teacher.state_dict().items()}
        return {"counts": torch.tensor([*self.counts, self.silent]), **weights}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            *self.counts, self.silent = state["counts"].tolist()
            self.restore(self.model, state)


def averaging_rate(steps: int) -> float:
    """Rate of the teacher's average, which forgets as much over a phase as the published one."""
    return min(0.1, max(RATE, RATE * STEPS / max(steps, 1)))


def _within(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} must be from 0 to less than 1, got {value}")


SCENE_METHODS: dict[str, type[Supervised]] = {
    "supervised": Supervised,
    "pseudo-labels": PseudoLabels,
    "unbiased-teacher": UnbiasedTeacher,
}
