"""LUCIR: learning a unified classifier incrementally via rebalancing (Hou et al., 2019)."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.distributed.group import world
from mrdc.methods.base import Method, Needs
from mrdc.methods.lesson import Lesson
from mrdc.methods.shared import balanced, grow_imprinted
from mrdc.nn.heads import SplitCosine
from mrdc.nn.net import Net, Output


def less_forget(new: Tensor, old: Tensor) -> Tensor:
    """Mean of 1 - cos between new and old features (n, d)."""
    return (1 - F.cosine_similarity(new, old, dim=1)).mean()


def margin_ranking(scores: Tensor, labels: Tensor, old: int, margin: float, rivals: int) -> Tensor:
    """Rank images of old classes above the new classes, by a margin.

    For cosines (n, c): the mean over images of old classes and their `rivals`
    highest new classes of max(0, margin - own + rival); 0 without such images. The mean is
    over the whole batch, even if several processes share it.
    """
    is_old = labels < old
    own = scores.gather(1, labels[:, None])
    highest = scores[:, old:].topk(min(rivals, scores.shape[1] - old), dim=1).values
    short = (margin - own + highest).clamp(min=0) * is_old[:, None]
    total, count = world().sum(torch.stack([short.sum(), is_old.sum().to(short)]))
    mean: Tensor = total / (count * highest.shape[1]).clamp(min=1)
    return mean


@dataclass(kw_only=True)
class LUCIR(Method):
    """Cosine head, less-forget constraint, margin ranking; old rows stay fixed."""

    base: float = 10.0  # lambda = base * sqrt(old classes / new classes)
    margin: float = 0.5
    rivals: int = 2
    balance: Literal["none", "new", "all"] = "none"  # rows that balanced finetuning trains
    balance_epochs: int = 20
    balance_lr: float = 0.01

    @property
    def needs(self) -> Needs:
        return Needs(variant="lucir", head=SplitCosine)

    def start_phase(self, lesson: Lesson) -> None:
        grow_imprinted(lesson)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        weight = self.base * math.sqrt(old.classes / (model.classes - old.classes))
        ranked = margin_ranking(out.scores, y, old.classes, self.margin, self.rivals)
        return weight * less_forget(out.features, old.features(x)) + ranked

    def end_phase(self, lesson: Lesson) -> None:
        """Class-balance finetuning of the rows, on equally many exemplars per class."""
        head = lesson.model.head
        if lesson.teacher is None or self.balance == "none":
            return
        assert isinstance(head, SplitCosine)
        head.old.requires_grad_(self.balance == "all")
        training = replace(
            lesson.training,
            epochs=self.balance_epochs,
            lr=self.balance_lr,
            schedule="multistep",
            milestones=(0.5,),
            gamma=0.1,
        )
        rows = [head.old, head.new]
        lesson.fit(balanced(lesson.memory), training, parameters=rows, norm="eval")
        head.old.requires_grad_(False)
