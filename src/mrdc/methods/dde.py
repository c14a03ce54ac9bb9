"""DDE: distilling causal effect of data (Hu et al., 2021), around LUCIR or PODNet.

In training, the prediction for an image is mixed with those for the new images nearest to
it in the features of the old network (colliding effect). At test time, the part of the scores
that every image gets along the mean direction of the features is removed (momentum effect).

Neighbours are matched at the start of every epoch, on the views that will be trained on, as in
the published code, or once per phase on evaluation views (`matching = phase`). Unlike in that code,
they do not update batch norms (unless `neighbour_norm = train`) and have no brightness jitter
(PODNet), and the strength of the removal is fixed, not learned.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.data.examples import Companions, Places
from mrdc.distributed.group import world
from mrdc.methods.base import Wrapper
from mrdc.methods.lesson import Lesson
from mrdc.nn.net import Net, Output

CHUNK = 4096  # rows of similarities at a time


def nearest(features: Tensor, candidates: int, count: int) -> Places:
    """Indices (n, count) of the nearest of the first `candidates` rows, excluding a row itself.

    Nearest means the largest cosine. With too few candidates there are fewer columns.
    """
    rows = F.normalize(features, dim=1)
    count = min(count, candidates - 1)
    found = []
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        near = part @ rows[:candidates].T
        own = torch.arange(start, max(start, min(start + CHUNK, candidates)), device=rows.device)
        near[own - start, own] = -math.inf
        found.append(near.topk(count, dim=1).indices)
    return torch.cat(found).cpu().numpy().astype(np.intp)


def old_features(teacher: Net, views: Iterable[Tensor]) -> Tensor:
    """Features (n, d) of batches; in bf16 on a GPU, which is exact enough to find neighbours."""
    device = teacher.mean.device.type
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return torch.cat([teacher.features(images) for images in views])


def once(near: Places, candidates: int) -> tuple[Places, Places]:
    """Distinct neighbours (n, k) of a batch, and the index of each of the n * k among them.

    The result is padded by repetition to a size that depends on n, k and `candidates` only, so
    that every batch has the same shape.
    """
    n, k = near.shape
    places, links = np.unique(near.ravel(), return_inverse=True)
    return np.resize(places, n * min(k, -(-candidates // n))), links


def colliding(own: Tensor, near: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Mean of -log p of the labels, where p mixes an image's softmax with its neighbours'.

    p = weight * softmax(own) + (1 - weight) * mean over k of softmax(near), in logs;
    own (n, c), near (n, k, c). Neighbours get no gradients.
    """
    places = labels[:, None]
    mine = own.log_softmax(1).gather(1, places)[:, 0]
    theirs = near.detach().log_softmax(2).gather(2, places[:, None].expand(-1, near.shape[1], 1))
    mean = theirs[..., 0].logsumexp(1) - math.log(near.shape[1])
    return -torch.logaddexp(mine + math.log(weight), mean + math.log1p(-weight)).mean()


def momentum_effect(features: Tensor, direction: Tensor, scores: Tensor) -> Tensor:
    """Scores that features (n, d) get along a direction (d,): cosine * its scores (classes,)."""
    along = F.normalize(features, dim=1) @ F.normalize(direction, dim=0)
    return along[:, None] * scores


@dataclass
class DDE(Wrapper):
    """Neighbours in the classification loss, and scores without the momentum effect."""

    neighbours: int = 10
    matching: Literal["epoch", "phase"] = "epoch"
    own_weight: float = 0.5  # weight of an image's own prediction against its neighbours'
    neighbour_norm: Literal["eval", "train"] = "eval"
    strength: float = 0.5  # of the removal of the momentum effect
    momentum_: Tensor | None = None  # running sum of mean features, decay 0.9
    direction_: Tensor | None = None  # momentum at the end of the phase, (d,)
    scores_: Tensor | None = None  # scores of that direction, (classes,)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_parts()
        if self.neighbours < 0 or not 0 < self.own_weight < 1:
            raise UsageError(
                f"neighbours must be 0 or more and own_weight between 0 and 1, got "
                f"{self.neighbours} and {self.own_weight}"
            )

    def start_phase(self, lesson: Lesson) -> None:
        if lesson.phase and self.neighbours:
            lesson.companions = self._companions(lesson)
        self.inner.start_phase(lesson)
        model = lesson.model
        self.momentum_ = torch.zeros(model.head.features, device=model.mean.device)

    def _companions(self, lesson: Lesson) -> Companions:
        """The neighbours of every batch."""
        teacher, candidates = lesson.teacher, len(lesson.fresh)
        near: Places = np.empty((0, 0), np.intp)

        def match(views: Iterator[Tensor]) -> None:
            nonlocal near
            assert teacher is not None
            shares = world().bounds(len(lesson.train))
            features = world().gather(old_features(teacher, views), shares)
            near = nearest(features, candidates, self.neighbours)

        def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
            if self.neighbour_norm == "train":  # batch norms count how often one is seen
                return near[batch].ravel(), np.arange(near[batch].size)
            return once(near[batch], candidates)

        if self.matching == "epoch":
            return Companions(choose, 0, cropped=True, match=match)
        features = lesson.features(lesson.train).to(lesson.model.mean.device)
        near = nearest(features, candidates, self.neighbours)
        return Companions(choose, 0, cropped=True)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
        """The loss of `inner`, with companions `near` and `links` in its classification part."""
        if old is None:
            return self.inner.loss(model, old, x, y)
        out = model(x)
        if self.momentum_ is not None:
            with torch.no_grad():
                self.momentum_.mul_(0.9).add_(world().mean(out.features))
        if not more or not len(more[1]):
            labels = self.inner.classification(model, out, y)
        else:
            near, links = more
            read = model.steady if self.neighbour_norm == "eval" else model
            with torch.no_grad():
                answers = torch.cat([read(part).logits for part in torch.split(near, len(x))])
            answers = answers[links].view(len(x), -1, model.classes)
            labels = colliding(out.logits, answers, y, self.own_weight)
        return labels + self.inner.preservation(model, old, out, x, y)

    def end_phase(self, lesson: Lesson) -> None:
        self.inner.end_phase(lesson)
        if lesson.phase == 0:
            return
        assert self.momentum_ is not None
        head, self.direction_ = lesson.model.head, self.momentum_.clone()
        with torch.no_grad():
            self.scores_ = (head.scores(self.direction_[None]) - head.neutral)[0]

    def predict(self, out: Output) -> Tensor:
        scores = self.inner.predict(out)
        if self.direction_ is None or self.scores_ is None:
            return scores
        return scores - self.strength * momentum_effect(out.features, self.direction_, self.scores_)
