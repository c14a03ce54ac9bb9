"""iCaRL (Rebuffi et al., 2017): classify by the nearest mean of exemplars.

Trained like LwF, as in the tables that the paper compares with; `bce` is the original loss.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from mrdc.methods.lesson import Lesson
from mrdc.methods.lwf import LwF
from mrdc.methods.shared import imprint
from mrdc.nn.net import Net, Output


def binary_loss(logits: Tensor, labels: Tensor, old: Tensor | None) -> Tensor:
    """Sigmoid cross-entropy; the targets of old classes are the old network's sigmoids.

    Averaged over images and summed over classes, which suits the usual learning rates.
    """
    targets = F.one_hot(labels, logits.shape[1]).to(logits)
    if old is not None:
        targets[:, : old.shape[1]] = old.sigmoid()
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(labels)


@dataclass(kw_only=True)
class ICaRL(LwF):
    """LwF's network, with the class means of the exemplars as classifier."""

    objective: Literal["kd", "bce"] = "kd"
    class_means_: Tensor | None = None  # unit rows, (classes, d)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        if self.objective == "kd":
            return super().loss(model, old, x, y)
        return binary_loss(model(x).logits, y, None if old is None else old(x).logits)

    def end_phase(self, lesson: Lesson) -> None:
        features = lesson.features(lesson.memory)
        labels = features.new_tensor(lesson.memory.labels)
        self.class_means_ = imprint(features, labels, 0, lesson.old + lesson.new)

    def predict(self, out: Output) -> Tensor:
        """Minus half the squared distances to the class means, up to a constant."""
        assert self.class_means_ is not None
        return F.normalize(out.features, dim=1) @ self.class_means_.to(out.features.device).T

    @property
    def first_phase(self) -> str:
        loss = "cross-entropy" if self.objective == "kd" else "bce"
        return f"{self.needs.variant}-{self.needs.head.__name__}-{loss}"
