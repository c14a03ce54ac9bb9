"""Selectors against slow references and hand-worked cases."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

import mrdc.planning.selection
from mrdc._utils.errors import UsageError
from mrdc.planning.discrepancy import discrepancy
from mrdc.planning.selection import (
    SELECTORS,
    Seed,
    dpp_greedy,
    herding,
    herding_noreplace,
    kernel_herding,
    lazy_ranking,
    nearest_mean,
    random_choice,
)

Matrix = NDArray[np.float64]


def unit(features: Matrix) -> Matrix:
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True))


def class_like(n: int, d: int, seed: int = 0) -> Matrix:
    """Positive, correlated rows, as features of one class are."""
    rng = np.random.default_rng(seed)
    return np.maximum(rng.normal(size=d) + 0.7 * rng.normal(size=(n, d)), 0) + 1e-3


def slow_herding(features: Matrix, count: int, replace: bool) -> list[int]:
    """Herding as published, one row at a time."""
    rows = unit(features)
    mean = rows.mean(axis=0)
    w = mean.copy()
    ranking: list[int] = []
    while len(ranking) < count:
        scores = [float(w @ row) for row in rows]
        if not replace:
            scores = [-np.inf if i in ranking else score for i, score in enumerate(scores)]
        pick = int(np.argmax(scores))
        if pick not in ranking:
            ranking.append(pick)
        w = w + mean - rows[pick]
    return ranking


@pytest.mark.parametrize("n", [5, 60, 200])
def test_herding_follows_the_published_steps(n: int) -> None:
    """With repeats, as many ranks as the published code gives; without, every rank."""
    features, count = class_like(n, 16, n), 3 * n // 4
    ranks = [select(features, count).tolist() for select in (herding, herding_noreplace)]
    assert ranks[0] == slow_herding(features, count, replace=True)
    assert ranks[1] == slow_herding(features, count, replace=False)
    assert n < 200 or ranks[0] != ranks[1]  # otherwise nothing could tell them apart


def test_large_classes_take_the_path_without_a_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    features = class_like(80, 16)
    selectors = (herding, kernel_herding, dpp_greedy)
    with_gram = [select(features, 30).tolist() for select in selectors]
    monkeypatch.setattr(mrdc.planning.selection, "GRAM_LIMIT", 10)
    monkeypatch.setattr(mrdc.planning.selection, "BLOCK", 7)
    assert [select(features, 30).tolist() for select in selectors] == with_gram


@pytest.mark.parametrize("distorted", [False, True])
def test_kernel_herding_minimises_the_discrepancy_greedily(distorted: bool) -> None:
    """Every pick is the one that lowers the discrepancy from all originals most."""
    originals = class_like(30, 16)
    rows = originals * np.linspace(1, 1.5, 16) if distorted else originals
    everything, stored = torch.from_numpy(originals), torch.from_numpy(rows)
    ranking: list[int] = []
    for _ in range(12):
        left = [n for n in range(30) if n not in ranking]
        ranking.append(min(left, key=lambda n: discrepancy(everything, stored[[*ranking, n]])))
    assert kernel_herding(rows, 12, 0, originals).tolist() == ranking
    if not distorted:
        assert kernel_herding(rows, 12).tolist() == ranking
        better, usual = (
            discrepancy(everything, everything[list(select(rows, 6))])
            for select in (kernel_herding, herding)
        )
        assert better < usual


def test_nearest_mean_orders_by_distance() -> None:
    """Rows are scaled to length 1 first, so a long row is no farther."""
    features = np.array([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0], [1.0, 1.2]])
    assert nearest_mean(features, 4).tolist()[:2] == [1, 3]


def test_random_choice_depends_on_the_seed_only() -> None:
    empty = np.empty((50, 0))
    assert random_choice(empty, 50, 1).tolist() == random_choice(class_like(50, 3), 50, 1).tolist()
    assert random_choice(empty, 50, 1).tolist() != random_choice(empty, 50, 2).tolist()
    assert random_choice(empty, 5, (0, 1)).tolist() != random_choice(empty, 5, (0, 2)).tolist()


def test_dpp_greedy_takes_the_largest_determinant_each_time() -> None:
    """Against determinants recomputed for every row and step."""
    rows = unit(np.random.default_rng(0).normal(size=(12, 6)))
    ranking: list[int] = []
    for _ in range(5):
        volumes = [
            -np.inf
            if i in ranking
            else np.linalg.slogdet(rows[[*ranking, i]] @ rows[[*ranking, i]].T)[1]
            for i in range(12)
        ]
        if not ranking:
            volumes = [0.0] * 12  # all rows have length 1, so the first one wins
        ranking.append(int(np.argmax(volumes)))
    assert dpp_greedy(rows, 5).tolist() == ranking


def test_greedy_dpp_takes_memory_for_the_rows_not_for_their_square() -> None:
    """3,000 rows of 4 numbers span 4 dimensions; a factor of all rows would take 72 MB."""
    features = np.random.default_rng(0).normal(size=(3000, 4))
    tracemalloc.start()
    ranking = dpp_greedy(features, 3000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(ranking.tolist()) == list(range(3000))
    assert peak < 5e6


@pytest.mark.parametrize("name", sorted(set(SELECTORS) - {"random_choice"}))
def test_features_that_are_not_finite_are_refused(name: str) -> None:
    """Herding would never end with a NaN."""
    rows = np.ones((5, 3))
    rows[2, 1], rows[4, 0] = np.nan, np.inf
    with pytest.raises(UsageError, match="features of 2 of 5 images are not finite"):
        SELECTORS[name](rows, 3, 0)


@pytest.mark.parametrize(
    "ranking", [[0, 0, 1], [0, 1], [-1, 0, 1], [0, 1, 3], [0.0, 1.0, 2.0], None, "abc"], ids=str
)
def test_what_a_selector_returns_is_checked(ranking: Any) -> None:
    """Three distinct indices; anything else would leave images out without a word."""

    def mine(features: ArrayLike, count: int, seed: Seed) -> Any:
        return ranking

    with pytest.raises(
        UsageError, match="selector mine must return 3 distinct indices from 0 to 2"
    ):
        lazy_ranking(mine, np.ones((3, 2)), 0)
