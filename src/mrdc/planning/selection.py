"""Selectors: features (n, d) and a count to ranked indices of the images to keep.

Each returns `min(count, n)` distinct indices, best first; a shorter result is a prefix of a
longer one.
"""

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrdc._utils.errors import UsageError
from mrdc._utils.lazy import LazyList
from mrdc._utils.registry import Registry, lookup
from mrdc.planning.settings import BANDWIDTH

Ranking = NDArray[np.intp]
Seed = int | Sequence[int]
Selector = Callable[[ArrayLike, int, Seed], Ranking]

GRAM_LIMIT = 4096  # above this many rows, similarities are computed and rows ranked on demand
RECENT = 64  # similarities kept above that limit, for rows that are picked again
BLOCK = 1024  # rows that are compared at a time


def unit_rows(features: ArrayLike) -> NDArray[np.float64]:
    """Rows scaled to length 1, in float64; a zero row stays zero.

    Raises:
        UsageError: some of the features are not finite.
    """
    rows = np.asarray(features).astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    wrong = int((~np.isfinite(norms)).sum())
    if wrong:
        raise UsageError(
            f"features of {wrong:,} of {len(rows):,} images are not finite: has training diverged?"
        )
    rows /= np.where(norms > 0, norms, 1.0)
    return rows


def lazy_ranking(selector: "Selector", features: ArrayLike, seed: Seed) -> Sequence[int]:
    """All rows, ranked; in a large class only as far as the ranking is read.

    Raises:
        UsageError: the selector does not return distinct indices.
    """

    def first(count: int) -> list[int]:
        return checked(selector, selector(features, count, seed), count, n)

    n = np.shape(features)[0]
    return first(n) if n <= GRAM_LIMIT else LazyList(range(n), first)


def checked(selector: "Selector", ranking: Any, count: int, n: int) -> list[int]:
    """The ranking that a selector returned, as a list of `count` distinct indices below n."""
    name = getattr(selector, "__name__", type(selector).__name__)
    rule = f"selector {name} must return {count:,} distinct indices from 0 to {n - 1:,}"
    try:
        found = [operator.index(place) for place in ranking]
    except TypeError:
        raise UsageError(f"{rule}, got {ranking!r:.60}") from None
    if len(found) != count or len(set(found)) < count or not all(0 <= p < n for p in found):
        raise UsageError(f"{rule}, got {found!r:.60}")
    return found


def _similarities(rows: NDArray[np.float64]) -> Callable[[int], NDArray[np.float64]]:
    """A function from an index to its inner products with all rows."""
    if len(rows) > GRAM_LIMIT:
        return lru_cache(RECENT)(lambda index: rows @ rows[index])
    gram = rows @ rows.T
    return lambda index: gram[index]


def herding(features: ArrayLike, count: int, seed: Seed = 0) -> Ranking:
    """Herding as published, in which a row may be picked again.

    w starts at the mean of the unit features; the row closest to w is picked, then w grows by
    the mean minus that row. A row picked again gets no new rank. The published code stops after
    1,000 steps; here repeats are excluded from then on (later for large classes), so that every
    row gets a rank.
    """
    return _herd(features, count, repeats_until=max(1000, 2 * np.shape(features)[0]))


def herding_noreplace(features: ArrayLike, count: int, seed: Seed = 0) -> Ranking:
    """Herding in which a row can be picked only once."""
    return _herd(features, count, repeats_until=0)


def _herd(features: ArrayLike, count: int, repeats_until: int) -> Ranking:
    rows = unit_rows(features)
    similar = _similarities(rows)
    to_mean = rows @ rows.mean(axis=0)
    scores = to_mean.copy()
    ranking: dict[int, None] = {}  # an ordered set
    step = 0
    while len(ranking) < min(count, len(rows)):
        if step == repeats_until:
            scores[list(ranking)] = -np.inf
        pick = int(scores.argmax())
        ranking[pick] = None
        scores += to_mean - similar(pick)
        if step >= repeats_until:
            scores[pick] = -np.inf
        step += 1
    return np.array(list(ranking), dtype=np.intp)


def kernel_herding(
    features: ArrayLike, count: int, seed: Seed = 0, originals: ArrayLike | None = None
) -> Ranking:
    """Greedy search for the rows with the smallest discrepancy from all originals.

    After m picks the next row x maximises (m + 1) mean k(x, originals) - sum of k(x, picked): close
    to many originals, and far from what is picked already. `originals` are the rows themselves if
    not given; if these are features of compressed images, pass those of their originals.
    """
    rows = unit_rows(features)
    targets = rows if originals is None else unit_rows(originals)
    blocks = range(0, len(rows), BLOCK)
    means = [_kernel(rows[at : at + BLOCK], targets).mean(axis=1) for at in blocks]
    to_targets = np.concatenate([np.zeros(0), *means])
    whole = _kernel(rows, rows) if len(rows) <= GRAM_LIMIT else None
    scores = to_targets.copy()
    ranking: list[int] = []
    while len(ranking) < min(count, len(rows)):
        pick = int(scores.argmax())
        ranking.append(pick)
        near = _kernel(rows[pick : pick + 1], rows)[0] if whole is None else whole[pick]
        scores += to_targets - near
        scores[pick] = -np.inf
    return np.array(ranking, dtype=np.intp)


def _kernel(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The kernel of the discrepancy, for unit rows (n, d) and (m, d); shape (n, m)."""
    lengths = [np.square(rows).sum(axis=1) for rows in (left, right)]  # 0 for a row of zeros
    distances = lengths[0][:, None] + lengths[1] - 2 * left @ right.T
    values: NDArray[np.float64] = np.exp(-np.maximum(distances, 0) / BANDWIDTH)
    return values


def nearest_mean(features: ArrayLike, count: int, seed: Seed = 0) -> Ranking:
    """Rows by distance to the mean of the unit features, nearest first."""
    rows = unit_rows(features)
    distances = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    return np.argsort(distances, kind="stable")[:count]


def random_choice(features: ArrayLike, count: int, seed: Seed = 0) -> Ranking:
    """A seeded permutation, independent of the features."""
    return np.random.default_rng(seed).permutation(np.shape(features)[0])[:count]


def dpp_greedy(features: ArrayLike, count: int, seed: Seed = 0) -> Ranking:
    """Greedy search for the rows that span the largest volume.

    Each pick is the row farthest from the span of the earlier ones, of which an orthonormal
    basis is kept. Ties, such as the first pick, go to the lower index; once the span is full,
    the rest follows in index order.
    """
    rows = unit_rows(features)
    n, d = rows.shape
    count = min(count, n)
    residual = np.where(rows.any(axis=1), 1.0, 0.0)  # squared lengths
    basis = np.empty((0, d))
    ranking: list[int] = []
    while len(ranking) < count:
        pick = int(residual.argmax())
        if residual[pick] < 1e-10:
            rest = np.setdiff1d(np.arange(n), ranking)[: count - len(ranking)]
            return np.array([*ranking, *rest], dtype=np.intp)
        new = rows[pick]
        for _ in range(2):  # the second time removes what rounding has left
            new = new - basis.T @ (basis @ new)
        new /= np.linalg.norm(new)
        basis = np.vstack([basis, new])
        residual -= (rows @ new) ** 2
        residual[pick] = -np.inf
        ranking.append(pick)
    return np.array(ranking, dtype=np.intp)


_BUILT_IN = (
    herding,
    herding_noreplace,
    kernel_herding,
    nearest_mean,
    random_choice,
    dpp_greedy,
)
SELECTORS: Registry[Selector] = Registry(
    "selector", "selectors", {selector.__name__: selector for selector in _BUILT_IN}
)


def usual_selector(name: str, scenes: bool) -> str:
    """The selector a name stands for; "auto" depends on what is selected."""
    if name == "auto":
        return "random_choice" if scenes else "herding"
    if name not in SELECTORS:
        SELECTORS.discover()
    lookup({**SELECTORS, "auto": None}, name, SELECTORS.what)
    return name
