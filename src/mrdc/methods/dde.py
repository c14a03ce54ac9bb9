"""DDE: distilling causal effect of data (Hu et al., 2021), around LUCIR or PODNet.

Two parts. In training, an image is judged by its own answer and by those of the new
images nearest to it in the eyes of the old network (colliding effect). In testing, the
part of the answer that every image gets along the mean direction of the features is
taken away (momentum effect).

Unlike the published code, neighbours are found once a phase, on evaluation views, and
are read without moving the batch norms (`neighbour_norm = train` moves them, as there)
and without the brightness jitter that PODNet's own images get.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.data.examples import Companions, Places
from mrdc.methods.base import Lesson, Wrapper, balanced
from mrdc.nn.net import Net, Output

CHUNK = 4096  # rows of distances at once


def nearest(features: Tensor, candidates: int, count: int) -> Places:
    """Places (n, count) of the nearest of the first `candidates` rows, never a row itself.

    Between unit rows the nearest are those of the largest cosine. With too few
    candidates there are fewer columns.
    """
    rows = F.normalize(features, dim=1)
    count = min(count, candidates - 1)
    found = []
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        near = part @ rows[:candidates].T
        end = max(start, min(start + len(part), candidates))
        own = torch.arange(start, end, device=rows.device)
        near[own - start, own] = -math.inf
        found.append(near.topk(count, dim=1).indices)
    return torch.cat(found).cpu().numpy().astype(np.intp)


def once(near: Places, candidates: int) -> tuple[Places, Places]:
    """Neighbours (n, k) of a batch, none twice, and which of these each of the n * k is.

    As many batches of n as the candidates could fill, but no more than k, so that every
    batch has equally many; what is not needed repeats.
    """
    n, k = near.shape
    places, links = np.unique(near.ravel(), return_inverse=True)
    return np.resize(places, n * min(k, -(-candidates // n))), links


def colliding(own: Tensor, near: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Mean of -log p of the labels, where p mixes an image's answer with its neighbours'.

    p = weight * softmax(own) + (1 - weight) * mean over k of softmax(near), in logs;
    own (n, c), near (n, k, c). Neighbours are taken as they are: they get no gradients.
    """
    places = labels[:, None]
    mine = own.log_softmax(1).gather(1, places)[:, 0]
    theirs = near.detach().log_softmax(2).gather(2, places[:, None].expand(-1, near.shape[1], 1))
    mean = theirs[..., 0].logsumexp(1) - math.log(near.shape[1])
    return -torch.logaddexp(mine + math.log(weight), mean + math.log1p(-weight)).mean()


def effects(features: Tensor, directions: Tensor, answers: Tensor) -> Tensor:
    """What features (n, d) get along each direction (m, d): cos * answer, (m, n, classes)."""
    along = F.normalize(features, dim=1) @ F.normalize(directions, dim=1).T
    return along.T[:, :, None] * answers[:, None, :]


def without_effect(scores: Tensor, effect: Tensor, mix: Tensor) -> Tensor:
    """Scores minus mix[1] times the effects (last phase's, this phase's) mixed by mix[0]."""
    return scores - mix[1] * ((1 - mix[0]) * effect[0] + mix[0] * effect[1])


def fit_mix(scores: Tensor, effect: Tensor, labels: Tensor, mix: Tensor, seed: int) -> Tensor:
    """The mix of least cross-entropy, by Adam for 20 epochs, as published."""
    mix = mix.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([mix], lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [10], gamma=0.1)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        for batch in torch.split(torch.from_numpy(rng.permutation(len(labels))), 128):
            optimiser.zero_grad()
            answers = without_effect(scores[batch], effect[:, batch], mix)
            F.cross_entropy(answers, labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    return mix.detach()


@dataclass
class DDE(Wrapper):
    """Neighbours in the loss of the labels, and answers without the momentum effect."""

    neighbours: int = 10
    own_weight: float = 0.5  # of an image's own answer, beside its neighbours'
    neighbour_norm: Literal["eval", "train"] = "eval"
    removal: Literal["fixed", "learned"] = "fixed"
    strength: float = 0.5  # of what is removed; where learned, at first
    momentum_: Tensor | None = None  # 0.9 times itself plus the mean feature, step by step
    directions_: Tensor | None = None  # after the last phase and after this one, (2, d)
    answers_: Tensor | None = None  # scores of those, (2, classes)
    mix_: Tensor | None = None

    def __post_init__(self) -> None:
        if self.neighbour_norm not in ("eval", "train"):
            wrong = self.neighbour_norm
            raise UsageError(f"neighbour_norm must be 'eval' or 'train', got {wrong!r}")
        if self.removal not in ("fixed", "learned"):
            raise UsageError(f"removal must be 'fixed' or 'learned', got {self.removal!r}")
        if self.neighbours < 0 or not 0 < self.own_weight < 1:
            raise UsageError(
                f"neighbours must be 0 or more and own_weight between 0 and 1, got "
                f"{self.neighbours} and {self.own_weight}"
            )

    def start_phase(self, lesson: Lesson) -> None:
        if lesson.phase and self.neighbours:
            features = lesson.features(lesson.train).to(lesson.model.mean.device)
            candidates = len(lesson.fresh)
            near = nearest(features, candidates, self.neighbours)

            def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
                if self.neighbour_norm == "train":  # batch norms count how often one is seen
                    return near[batch].ravel(), np.arange(near[batch].size)
                return once(near[batch], candidates)

            lesson.companions = Companions(choose, 0, cropped=True)
        self.inner.start_phase(lesson)
        width = lesson.model.head.features
        self.momentum_ = torch.zeros(width, device=lesson.model.mean.device)

    def loss(
        self, model: Net, old: Net | None, x: Tensor, y: Tensor,
        near: Tensor | None = None, links: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if old is None:
            return self.inner.loss(model, old, x, y)
        out = model(x)
        if self.momentum_ is not None:
            with torch.no_grad():
                self.momentum_.mul_(0.9).add_(out.features.mean(0))
        if near is None or links is None or not len(links):
            labels = self.inner.classification(model, out, y)
        else:
            answers = self._answers(model, near, len(x))[links]
            answers = answers.view(len(x), -1, model.classes)
            labels = colliding(out.logits, answers, y, self.own_weight)
        return labels + self.inner.preservation(model, old, out, x, y)

    def _answers(self, model: Net, near: Tensor, batch: int) -> Tensor:
        """Logits of neighbours, batch after batch."""
        with torch.no_grad():
            read = model.steady if self.neighbour_norm == "eval" else model
            return torch.cat([read(part).logits for part in torch.split(near, batch)])

    def end_phase(self, lesson: Lesson) -> None:
        self.inner.end_phase(lesson)
        if lesson.phase == 0:
            return
        assert self.momentum_ is not None
        head = lesson.model.head
        last = self.momentum_ if self.directions_ is None else self.directions_[1]
        self.directions_ = torch.stack([last, self.momentum_])
        with torch.no_grad():
            self.answers_ = head.scores(self.directions_) - head.neutral
        self.mix_ = self.momentum_.new_tensor([1.0, self.strength])
        if self.removal == "learned":
            self.mix_ = self._learned(lesson, self.mix_)

    def _learned(self, lesson: Lesson, mix: Tensor) -> Tensor:
        """From equally many exemplars of every class, with the network as it is."""
        assert self.directions_ is not None and self.answers_ is not None
        equal = balanced(lesson.memory)
        features, head = lesson.features(equal).to(mix.device), lesson.model.head
        with torch.no_grad():
            scores = head.scores(features)
            effect = effects(features, self.directions_, self.answers_)
            scale = head.logits(torch.ones((), device=mix.device))
        labels = torch.tensor(equal.labels, device=mix.device)
        return fit_mix(scale * scores, scale * effect, labels, mix, lesson.seed("momentum effect"))

    def predict(self, out: Output) -> Tensor:
        scores = self.inner.predict(out)
        if self.mix_ is None or self.directions_ is None or self.answers_ is None:
            return scores
        effect = effects(out.features, self.directions_, self.answers_)
        return without_effect(scores, effect, self.mix_)

    def report(self) -> dict[str, Any]:
        mix = {} if self.mix_ is None else {"mix": self.mix_.tolist()}
        return self.inner.report() | mix
