"""Fidelity: keep features of an image and of its compressed copy close; wraps another method.

The paper's outlook: learn to be indifferent to compression. Every new image has a copy, as the
memory would store it; the penalty is the mean of 1 - cos between the features of both. Images of
old classes are compressed already and have no pair. Costs a second pass of the network.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.data.examples import Companions, Places
from mrdc.distributed.group import world
from mrdc.methods.base import Wrapper
from mrdc.methods.lesson import Lesson
from mrdc.nn.net import Net


def apart(images: Tensor, copies: Tensor, paired: Tensor) -> Tensor:
    """Mean of 1 - cos between features (n, d) of pairs, where `paired` (n,) is 1; 0 without any.

    The mean is over the whole batch, even if several processes share it.
    """
    distances = (1 - F.cosine_similarity(images, copies, dim=1)) * paired
    total, count = world().sum(torch.stack([distances.sum(), paired.sum().to(distances)]))
    mean: Tensor = total / count.clamp(min=1)
    return mean


@dataclass
class Fidelity(Wrapper):
    """A penalty on the distance between images and their copies, in the main training stage."""

    fidelity: float = 1.0  # weight of the penalty

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_parts()

    def start_phase(self, lesson: Lesson) -> None:
        self.inner.start_phase(lesson)
        if not lesson.phase:
            return
        if lesson.companions is not None:
            raise UsageError("Fidelity cannot be combined with a method that has companions")
        new = np.array(lesson.train.labels) >= lesson.old

        def pairs(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
            return batch, new[batch].astype(np.intp)

        lesson.companions = Companions(pairs, 0, cropped=True, copies=True)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
        """The loss of `inner`, plus the penalty if companions `copies` and `paired` are given."""
        if not more:
            return self.inner.loss(model, old, x, y)
        copies, paired = more
        out = model(x)
        loss = self.inner.classification(model, out, y)
        if old is not None:
            loss = loss + self.inner.preservation(model, old, out, x, y)
        return loss + self.fidelity * apart(out.features, model.features(copies), paired)
