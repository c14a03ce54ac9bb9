"""Learning without Forgetting (Li & Hoiem, 2016), with exemplars as in the paper's tables."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from mrdc.methods.base import Method
from mrdc.nn.net import Net, Output


def distill(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """KL(old || new) over the old classes, logits (n, c), mean over the batch."""
    return F.kl_div(
        F.log_softmax(new[:, : old.shape[1]] / temperature, dim=1),
        F.log_softmax(old / temperature, dim=1),
        log_target=True,
        reduction="batchmean",
    )


@dataclass(kw_only=True)
class LwF(Method):
    """Cross-entropy over all classes, and distillation of the old network on every image."""

    temperature: float = 2.0
    weight: float = 0.25  # of the distillation, on top of the usual temperature squared

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        kept = distill(out.logits, old(x).logits, self.temperature)
        return self.weight * self.temperature**2 * kept
