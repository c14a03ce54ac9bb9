"""PODNet: pooled outputs distillation (Douillard et al., 2020)."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.methods.base import Method, Needs
from mrdc.methods.lesson import Lesson
from mrdc.methods.lucir import less_forget
from mrdc.methods.shared import balanced
from mrdc.nn.heads import LSC, PROXIES
from mrdc.nn.net import Net, Output

STARTS = 10  # k-means restarts, of which the best counts


def pod_spatial(new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> Tensor:
    """Distance between maps (n, c, h, w), squared and summed over each side, mean over maps."""
    pairs = zip(map(pooled, new), map(pooled, old), strict=True)
    distances = [torch.linalg.vector_norm(a - b, dim=1).mean() for a, b in pairs]
    return torch.stack(distances).mean()


@cache
def compiled_pod() -> Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]:
    """`pod_spatial` compiled, once for all phases."""
    return torch.compile(pod_spatial, dynamic=False)


def pooled(maps: Tensor) -> Tensor:
    """Squares summed over the width, and over the height, as one unit row, in fp32."""
    squares = maps.float().square()
    return F.normalize(torch.cat([squares.sum(3).flatten(1), squares.sum(2).flatten(1)], 1), dim=1)


def nca_official(logits: Tensor, labels: Tensor) -> Tensor:
    """NCA as in the published code: its margin cancels, and its positive counts as 1.

    (M - u_y) + log(1 + sum over others of exp(u_c - M)), M the largest logit.
    """
    shifted = logits - logits.max(1, keepdim=True).values
    own = shifted.gather(1, labels[:, None])[:, 0]
    others = shifted.exp().scatter(1, labels[:, None], 1.0)
    return (others.sum(1).log() - own).mean()


def nca_paper(logits: Tensor, labels: Tensor, margin: Tensor | float) -> Tensor:
    """NCA as in the paper: [-(u_y - margin) + log of the sum over others of exp(u_c)], >= 0."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf)
    return (others.logsumexp(1) - own + margin).clamp(min=0).mean()


def cluster(features: Tensor, seed: int) -> Tensor:
    """Centres (10, d) of k-means on unit features; with fewer images they are repeated."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    rows = F.normalize(features, dim=1).numpy()
    if len(rows) <= PROXIES:
        return torch.from_numpy(np.resize(rows, (PROXIES, rows.shape[1])))
    with threadpool_limits(1, "openmp"), warnings.catch_warnings():  # threads change its sums
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer than ten distinct images
        found = KMeans(PROXIES, n_init=STARTS, random_state=seed % 2**32).fit(rows)
    return torch.from_numpy(found.cluster_centers_.astype(np.float32))


@dataclass(kw_only=True)
class PODNet(Method):
    """Ten proxies per class, distillation of every stage, balanced finetuning of the proxies."""

    nca: Literal["official", "paper", "ce"] = "official"
    margin: float = 0.6  # of the paper's NCA
    spatial: float = 8.0  # weights, times sqrt(classes seen / new classes)
    flat: float = 10.0
    finetune_epochs: int = 20
    finetune_lr: float = 0.01
    finetune_norm: Literal["train", "eval"] = "train"

    @property
    def needs(self) -> Needs:
        return Needs(variant="pod", head=LSC, clamp=5.0, maps=True)

    @property
    def first_phase(self) -> str:
        return f"{self.needs.variant}-{self.needs.head.__name__}-{self.nca}-{self.margin}-unit-rows"

    def start_phase(self, lesson: Lesson) -> None:
        head = lesson.model.head
        assert isinstance(head, LSC)
        if lesson.phase == 0:
            head.grow(lesson.new)
            return
        features, labels = lesson.features(lesson.fresh), torch.tensor(lesson.fresh.labels)
        classes = range(lesson.old, lesson.old + lesson.new)
        centres = [cluster(features[labels == c], lesson.seed(f"proxies {c}")) for c in classes]
        head.grow(lesson.new, torch.stack(centres) * head.mean_norm().cpu())

    def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
        if self.nca == "ce":
            return F.cross_entropy(out.logits, y)
        if self.nca == "official":
            return nca_official(out.logits, y)
        assert isinstance(model.head, LSC)
        return nca_paper(out.logits, y, model.head.scale * self.margin)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        if not out.features.requires_grad:  # proxies alone are trained, and get no gradients here
            return out.features.new_zeros(())
        factor = math.sqrt(model.classes / (model.classes - old.classes))
        reference = old(x)
        maps = (compiled_pod() if model.compiles(x) else pod_spatial)(out.maps, reference.maps)
        flat = less_forget(out.features, reference.features)
        return factor * (self.spatial * maps + self.flat * flat)

    def before_store(self, lesson: Lesson) -> None:
        """Finetune all proxies, old ones too, on equally many exemplars per class."""
        head = lesson.model.head
        if lesson.teacher is None or not self.finetune_epochs:
            return
        assert isinstance(head, LSC)
        head.old.requires_grad_(True)
        training = replace(
            lesson.training,
            epochs=self.finetune_epochs,
            lr=self.finetune_lr,
            schedule="multistep",
            milestones=(),
        )
        examples, rows = balanced(lesson.memory + lesson.preview()), [head.old, head.new]
        lesson.fit(examples, training, parameters=rows, norm=self.finetune_norm)
        head.old.requires_grad_(False)
