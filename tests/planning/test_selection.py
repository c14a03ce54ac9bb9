"""Selectors against slow references and hand-worked cases."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

import mrdc.planning.selection
from mrdc.planning.selection import (
    dpp_greedy,
    herding,
    herding_noreplace,
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
    """Herding word by word, rows one at a time."""
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
    features, count = class_like(n, 16, n), n // 4 + 1
    assert herding(features, count).tolist() == slow_herding(features, count, replace=True)
    assert herding_noreplace(features, n).tolist() == slow_herding(features, n, replace=False)


def test_repeats_make_a_difference() -> None:
    """The two kinds of herding differ once a row repeats."""
    features = class_like(200, 8)
    assert herding(features, 150).tolist() != herding_noreplace(features, 150).tolist()


def test_herding_by_hand() -> None:
    """Rows at 0, 40 and 90 degrees.

    The mean is (0.589, 0.548). w is at first nearest to row 1, and again after
    w = (0.411, 0.452) and (0.234, 0.357); at (0.057, 0.262) row 2 wins.
    """
    angles = np.radians([0, 40, 90])
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert herding(features, 2).tolist() == [1, 2]


def test_herding_keeps_the_running_mean_close() -> None:
    """Closer than that of a random subset of the same size."""
    features = class_like(300, 32)
    rows = unit(features)

    def distance(ranking: NDArray[np.intp]) -> float:
        return float(np.linalg.norm(rows[ranking].mean(axis=0) - rows.mean(axis=0)))

    assert distance(herding(features, 20)) < 0.5 * distance(random_choice(features, 20, 0))


def test_large_classes_take_the_path_without_a_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths give the same ranks."""
    features = class_like(80, 16)
    with_gram = [select(features, 30).tolist() for select in (herding, dpp_greedy)]
    monkeypatch.setattr(mrdc.planning.selection, "GRAM_LIMIT", 10)
    assert [select(features, 30).tolist() for select in (herding, dpp_greedy)] == with_gram


def test_nearest_mean_orders_by_distance() -> None:
    """Rows are scaled to length 1 first, so a long row is no farther."""
    features = np.array([[1.0, 0.0], [9.0, 9.0], [0.0, 1.0], [1.0, 1.2]])
    assert nearest_mean(features, 4).tolist()[:2] == [1, 3]


def test_random_choice_depends_on_the_seed_only() -> None:
    """Features may be absent."""
    empty = np.empty((50, 0))
    assert random_choice(empty, 50, 1).tolist() == random_choice(class_like(50, 3), 50, 1).tolist()
    assert random_choice(empty, 50, 1).tolist() != random_choice(empty, 50, 2).tolist()
    assert random_choice(empty, 5, (0, 1)).tolist() != random_choice(empty, 5, (0, 2)).tolist()


def test_dpp_greedy_takes_the_largest_determinant_each_time() -> None:
    """Against determinants computed afresh for every row and step."""
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


def test_dpp_greedy_is_close_to_the_best_subset() -> None:
    """Within the known bound for greedy search, on a kernel small enough to try all subsets."""
    rows = unit(np.random.default_rng(3).normal(size=(10, 6)))
    best = max(_volume(rows, list(subset)) for subset in itertools.combinations(range(10), 4))
    assert _volume(rows, dpp_greedy(rows, 4).tolist()) > best - np.log(24)


def test_dpp_greedy_ranks_near_copies_last() -> None:
    """They add no volume."""
    features = np.array([[1, 0, 0], [1, 1e-4, 0], [0, 1, 0], [0, 0, 1]], float)
    assert dpp_greedy(features, 4).tolist()[-1] in (0, 1)


def _volume(rows: Matrix, subset: list[int]) -> float:
    return float(0.5 * np.linalg.slogdet(rows[subset] @ rows[subset].T)[1])
