"""AANets: adaptive aggregation networks (Liu et al., 2021), around LUCIR or PODNet.

From the second phase on there are two branches: a stable one, whose kernels stay as
the first phase left them and are only scaled, and a plastic one. They are mixed after
every stage; the four mixing weights are learned on a balanced set, after every epoch
of the network's own training, in batches as large as its (published: 50, which at the
published rate changes nothing but the time). The published code for LUCIR never clears
the gradients of those weights; here they are cleared. That for PODNet begins the second
phase with a scale of 1; here the learned one is kept.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.data.examples import Examples
from mrdc.methods.base import Lesson, Wrapper
from mrdc.nn.branches import Body, Branches
from mrdc.training.fit import Stop


def level_set(lesson: Lesson) -> Examples:
    """All old exemplars, and as many new images a class, drawn with replacement from all."""
    held = len(lesson.memory) / max(lesson.old, 1)
    rng = np.random.default_rng((lesson.seed("mixing weights"), lesson.phase))
    drawn = rng.integers(len(lesson.fresh), size=round(held * lesson.new))
    return lesson.fresh.pick(drawn.tolist()) + lesson.memory


@dataclass
class AANets(Wrapper):
    """Two branches in place of one network; everything else is the inner method's."""

    body: ClassVar[Body] = "branches"

    mixing: Literal["learned", "fixed"] = "learned"  # fixed: halves, as published with PODNet
    mixing_lr: float = 1e-8  # as published, which hardly moves them; 1e-3 does
    mixing_decay: float = 5e-4
    alpha_: Tensor | None = None  # weight of the stable branch at each level
    velocity_: Tensor | None = None  # momentum of alpha

    def __post_init__(self) -> None:
        if self.mixing not in ("learned", "fixed"):
            raise UsageError(f"mixing must be 'learned' or 'fixed', got {self.mixing!r}")

    def start_phase(self, lesson: Lesson) -> None:
        if lesson.phase == 1:
            lesson.model = lesson.model.with_body("branches")
        self.inner.start_phase(lesson)
        self.velocity_ = None
        self.balanced = level_set(lesson) if lesson.phase else Examples()

    def end_epoch(self, lesson: Lesson, epoch: int) -> None:
        self.inner.end_epoch(lesson, epoch)
        backbone = lesson.model.backbone
        if not isinstance(backbone, Branches):
            return
        if self.mixing == "learned":
            self._mix(lesson, backbone, epoch)
        self.alpha_ = backbone.alpha.detach().clone()

    def _mix(self, lesson: Lesson, backbone: Branches, epoch: int) -> None:
        """One epoch for the mixing weights alone, batch norms as in evaluation."""
        model = lesson.model
        training = replace(
            lesson.training, lr=self.mixing_lr, weight_decay=self.mixing_decay,
            schedule="multistep", milestones=(1 / 3, 2 / 3), gamma=0.1,
        )  # fmt: skip
        momentum = [] if self.velocity_ is None else [self.velocity_]
        backbone.alpha.requires_grad_(True)
        stop = lesson.fit(
            self.balanced, training, lambda x, y: F.cross_entropy(model(x).logits, y),
            parameters=[backbone.alpha], norm="eval",
            resume=Stop(epoch, momentum), until=epoch + 1,
        )  # fmt: skip
        backbone.alpha.requires_grad_(False)
        self.velocity_ = stop.momentum[0].clone()

    def report(self) -> dict[str, Any]:
        alpha = {} if self.alpha_ is None else {"alpha": self.alpha_.tolist()}
        return self.inner.report() | alpha
