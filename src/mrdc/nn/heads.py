"""Classifiers that grow by new rows.

`scores` are compared to predict; `logits` scales them for the loss. Old and new rows of the
cosine heads are two parameters, so that the optimiser can leave out the old ones.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROXIES = 10  # per class, in PODNet


class Head(nn.Module):
    """Base of all heads; the parameter `new` holds the rows of the newest classes."""

    new: nn.Parameter
    neutral: float = 0.0  # score of a feature orthogonal to a class

    def __init__(self, features: int):
        super().__init__()
        self.features = features

    @property
    def classes(self) -> int:
        raise NotImplementedError

    def grow(self, count: int, rows: Tensor | None = None) -> None:
        """Add classes, with these rows or random ones."""
        raise NotImplementedError

    def scores(self, features: Tensor) -> Tensor:
        """Scores to compare between classes, (n, classes)."""
        raise NotImplementedError

    def logits(self, scores: Tensor) -> Tensor:
        """Scores scaled for the loss."""
        return scores


class Linear(Head):
    """Weights and biases, all of them trained."""

    def __init__(self, features: int):
        super().__init__(features)
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        return len(self.weight)

    def grow(self, count: int, rows: Tensor | None = None) -> None:
        bound = 1 / math.sqrt(self.features)
        weight = torch.empty(count, self.features).uniform_(-bound, bound) if rows is None else rows
        bias = torch.empty(count).uniform_(-bound, bound) if rows is None else torch.zeros(count)
        self.weight = nn.Parameter(torch.cat([self.weight.data, weight.to(self.weight)]))
        self.bias = nn.Parameter(torch.cat([self.bias.data, bias.to(self.bias)]))

    def scores(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class Split(Head):
    """Rows of a class in two parameters, `old` and `new`; a learned scale of the scores."""

    shape: tuple[int, ...]  # of the rows of one class

    def __init__(self, features: int, *shape: int):
        super().__init__(features)
        self.shape = (*shape, features)
        self.old = nn.Parameter(torch.empty(0, *self.shape), requires_grad=False)
        self.new = nn.Parameter(torch.empty(0, *self.shape))
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def classes(self) -> int:
        return len(self.old) + len(self.new)

    @property
    def rows(self) -> Tensor:
        """Rows of all classes, old ones first."""
        return torch.cat([self.old, self.new])

    def grow(self, count: int, rows: Tensor | None = None) -> None:
        fresh = self.first_rows(count) if rows is None else rows
        assert fresh.shape == (count, *self.shape), fresh.shape
        self.old = nn.Parameter(self.rows.detach(), requires_grad=False)
        self.new = nn.Parameter(fresh.to(self.old))

    def first_rows(self, count: int) -> Tensor:
        """Random rows."""
        raise NotImplementedError

    def mean_norm(self) -> Tensor:
        """Mean length of all rows: what imprinted rows are scaled to."""
        norms: Tensor = torch.linalg.vector_norm(self.rows.detach(), dim=-1)
        return norms.mean()

    def logits(self, scores: Tensor) -> Tensor:
        return self.scale * scores


class SplitCosine(Split):
    """LUCIR's head: scores are cosines, logits scale * cosine."""

    def first_rows(self, count: int) -> Tensor:
        bound = 1 / math.sqrt(self.features)
        return torch.empty(count, *self.shape).uniform_(-bound, bound)

    def scores(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) @ F.normalize(self.rows, dim=1).T


class LSC(Split):
    """PODNet's local similarity classifier: ten proxies per class, softly chosen.

    s = -|f - w|^2 of unit vectors = 2 cos - 2 for every proxy; the score of a class is
    the mean of its s weighted by their softmax.
    """

    neutral = -2.0

    def __init__(self, features: int):
        super().__init__(features, PROXIES)

    def first_rows(self, count: int) -> Tensor:
        rows = torch.empty(count * PROXIES, self.features)
        return nn.init.kaiming_normal_(rows, nonlinearity="linear").view(count, *self.shape)

    def scores(self, features: Tensor) -> Tensor:
        rows = F.normalize(self.rows, dim=2)
        near = 2 * torch.einsum("nd,ckd->nck", F.normalize(features, dim=1), rows) - 2
        return (near.softmax(2) * near).sum(2)
