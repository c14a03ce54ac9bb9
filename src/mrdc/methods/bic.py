"""BiC (Wu et al., 2019): distillation, then a linear correction of the newest logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mrdc.data.examples import Examples
from mrdc.methods.base import Method
from mrdc.methods.lesson import Lesson
from mrdc.methods.shared import balanced
from mrdc.nn.net import Net, Output

EVERY = 10  # one image in ten is kept for validation


def set_aside(ids: list[str], quota: int, seed: int, label: int) -> set[str]:
    """Random validation images of a class: a tenth of its quota, at least one, never all."""
    count = min(max(min(quota, len(ids)) // EVERY, 1), len(ids) - 1)
    chosen = np.random.default_rng((seed, label)).permutation(len(ids))[:count]
    return {ids[index] for index in chosen}


def interleave(train: list[int], validation: list[int]) -> list[int]:
    """Put a validation image at ranks 1, 11, 21, ..., so that any cut keeps about one in ten."""
    ranking: list[int] = []
    rest = iter(validation)
    for item in train:
        if len(ranking) % EVERY == 1:
            ranking += [next(rest)] if len(ranking) // EVERY < len(validation) else []
        ranking.append(item)
    return [*ranking, *rest]


def soft_cross_entropy(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Cross-entropy against the old network's softmax over the old classes, batch mean."""
    answers = F.log_softmax(new[:, : old.shape[1]] / temperature, dim=1)
    return -(F.softmax(old / temperature, dim=1) * answers).sum(1).mean()


def correct(logits: Tensor, bias: Tensor | None, start: int) -> Tensor:
    """Scale the newest logits, from column `start` on, by bias[0] and add bias[1]."""
    if bias is None:
        return logits
    return torch.cat([logits[:, :start], bias[0] * logits[:, start:] + bias[1]], dim=1)


def fit_bias(logits: Tensor, labels: Tensor, start: int, decay: float) -> Tensor:
    """Minimise cross-entropy plus decay * gamma^2 / 2 over (beta, gamma), by L-BFGS."""
    logits = logits.double()
    bias = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(correct(logits, bias, start), labels) + decay * bias[1] ** 2 / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return bias.detach().float()


@dataclass(kw_only=True)
class BiC(Method):
    """A tenth of the exemplars of every class is set aside to fit the correction.

    Their number is a tenth of the originals that fit; with compression a class may hold more.
    """

    temperature: float = 2.0
    # Share of distillation in the loss: earlier phases among all, as in the released code; old
    # classes among all; or "full", where cross-entropy and distillation are added unscaled.
    weighting: Literal["phases", "classes", "full"] = "phases"
    decay: float = 0.1  # of gamma
    bias_: Tensor | None = None  # beta and gamma of the newest classes
    start_: int = 0  # the first of those
    phase_: int = 0
    seed_: int = 0
    quota_: int = 0

    def start_phase(self, lesson: Lesson) -> None:
        super().start_phase(lesson)
        self.phase_ = lesson.phase
        self.seed_, self.quota_ = lesson.seed("validation"), lesson.quota
        lesson.train = lesson.train.pick(np.flatnonzero(~self._validation(lesson, lesson.train)))

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x).logits
        loss = F.cross_entropy(logits, y)
        if old is None:
            return loss
        teacher = correct(old(x).logits, self.bias_, self.start_)
        distillation = soft_cross_entropy(logits, teacher, self.temperature)
        if self.weighting == "full":
            return loss + distillation
        by_phases = self.phase_ / (self.phase_ + 1)
        share = by_phases if self.weighting == "phases" else old.classes / model.classes
        return share * distillation + (1 - share) * loss

    def before_store(self, lesson: Lesson) -> None:
        """Fit beta and gamma to the validation images, unless a class has none.

        New classes are seen as the memory will hold them, compressed like the old ones.
        """
        self.bias_, self.start_ = None, lesson.old
        if not lesson.old:
            return
        held = lesson.memory + lesson.preview()
        aside = held.pick(np.flatnonzero(self._validation(lesson, held)))
        if len(set(aside.labels)) < lesson.old + lesson.new:
            return
        equal = balanced(aside)
        features, head = lesson.features(equal), lesson.model.head
        weight = next(head.parameters())
        with torch.no_grad():
            logits = head.scores(features.to(weight.device)).cpu()
        labels = torch.tensor(equal.labels)
        self.bias_ = fit_bias(logits, labels, lesson.old, self.decay).to(weight)

    def predict(self, out: Output) -> Tensor:
        return correct(out.scores, self.bias_, self.start_)

    def arrange(self, ids: list[str], ranking: Sequence[int], label: int) -> Sequence[int]:
        aside = set_aside(ids, self.quota_, self.seed_, label)
        train = [index for index in ranking if ids[index] not in aside]
        return interleave(train, [index for index in ranking if ids[index] in aside])

    def report(self) -> dict[str, Any]:
        if self.bias_ is None:
            why = "a class holds no validation image, so the newest logits are not corrected"
            return {"warning": why} if self.start_ else {}
        beta, gamma = self.bias_.tolist()
        return {"beta": beta, "gamma": gamma}

    @property
    def first_phase(self) -> str:
        return f"{super().first_phase}-but-a-tenth-of-{self.quota_}"

    def _validation(self, lesson: Lesson, examples: Examples) -> NDArray[np.bool_]:
        """Mask of the validation images."""
        aside = {
            (label, name)
            for label, photos in enumerate(lesson.images.photos)
            for name in set_aside([photo.id for photo in photos], self.quota_, self.seed_, label)
        }
        pairs = zip(examples.labels, examples.photos, strict=True)
        return np.array([(label, photo.id) in aside for label, photo in pairs], bool)
