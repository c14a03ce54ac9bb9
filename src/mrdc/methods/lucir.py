"""LUCIR: learning a unified classifier incrementally via rebalancing (Hou et al., 2019)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.methods.base import Lesson, Method, balanced, grow_imprinted
from mrdc.nn.heads import Head, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import Variant


def less_forget(new: Tensor, old: Tensor) -> Tensor:
    """Mean of 1 - cos between new and old features (n, d)."""
    return (1 - F.cosine_similarity(new, old, dim=1)).mean()


def margin_ranking(scores: Tensor, labels: Tensor, old: int, margin: float, rivals: int) -> Tensor:
    """Old-class images should score higher in their class than in the new classes, by a margin.

    For cosines (n, c): the mean over images of old classes and their `rivals`
    highest new classes of max(0, margin - own + rival); 0 without such images.
    """
    is_old = labels < old
    own = scores.gather(1, labels[:, None])
    highest = scores[:, old:].topk(min(rivals, scores.shape[1] - old), dim=1).values
    short = (margin - own + highest).clamp(min=0) * is_old[:, None]
    return short.sum() / (is_old.sum() * highest.shape[1]).clamp(min=1)


@dataclass(kw_only=True)
class LUCIR(Method):
    """Cosine head, less-forget constraint, margin ranking; old rows stay as they are."""

    variant: ClassVar[Variant] = "lucir"
    head: ClassVar[type[Head]] = SplitCosine

    base: float = 10.0  # lambda = base * sqrt(old classes / new classes)
    margin: float = 0.5
    rivals: int = 2
    balance: Literal["none", "new", "all"] = "none"  # rows that balanced finetuning trains
    balance_epochs: int = 20
    balance_lr: float = 0.01

    def __post_init__(self) -> None:
        if self.balance not in ("none", "new", "all"):
            raise UsageError(f"balance must be 'none', 'new' or 'all', got {self.balance!r}")

    def start_phase(self, lesson: Lesson) -> None:
        grow_imprinted(lesson)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        weight = self.base * math.sqrt(old.classes / (model.classes - old.classes))
        ranked = margin_ranking(out.scores, y, old.classes, self.margin, self.rivals)
        return weight * less_forget(out.features, old.features(x)) + ranked

    def store(self, lesson: Lesson) -> None:
        """Fill the memory."""
        lesson.store()

    def end_phase(self, lesson: Lesson) -> None:
        self.store(lesson)
        if lesson.teacher is not None and self.balance != "none":
            self._balance(lesson)

    def _balance(self, lesson: Lesson) -> None:
        """Class-balance finetuning: rows only, on equally many exemplars of every class."""
        head = lesson.model.head
        assert isinstance(head, SplitCosine)
        head.old.requires_grad_(self.balance == "all")
        training = replace(
            lesson.training, epochs=self.balance_epochs, lr=self.balance_lr,
            schedule="multistep", milestones=(0.5,), gamma=0.1,
        )  # fmt: skip
        lesson.fit(
            balanced(lesson.memory), training, lesson.loss,
            parameters=[head.old, head.new], norm="eval",
        )  # fmt: skip
        head.old.requires_grad_(False)
