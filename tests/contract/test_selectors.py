"""Properties of every registered selector."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrdc.planning.selection import SELECTORS, Selector

EVERY = pytest.mark.parametrize("select", SELECTORS.values(), ids=list(SELECTORS))


@EVERY
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40), d=st.integers(1, 12), count=st.integers(0, 60), seed=st.integers(0, 99)
)
def test_distinct_indices_and_a_prefix(
    select: Selector, n: int, d: int, count: int, seed: int
) -> None:
    """min(count, n) distinct rows, a prefix of a longer ranking; arrays and tensors alike."""
    features = np.random.default_rng(seed).normal(size=(n, d))
    ranking = select(features, count, seed).tolist()
    assert len(ranking) == min(count, n)
    assert len(set(ranking)) == len(ranking)
    assert set(ranking) <= set(range(n))
    assert select(features, n, seed).tolist()[:count] == ranking
    assert select(torch.from_numpy(features.copy()), count, seed).tolist() == ranking


@EVERY
@pytest.mark.parametrize(
    "features",
    [
        np.ones((6, 3)),
        np.zeros((6, 3)),
        np.eye(6)[:, :3],  # rows outside the span
        np.abs(np.random.default_rng(0).normal(size=(29, 16))),  # repeats under herding
    ],
)
def test_a_larger_count_ranks_everything(select: Selector, features: np.ndarray) -> None:
    """One more than there are images; also with degenerate features."""
    n = len(features)
    assert sorted(select(features, n + 1, 0).tolist()) == list(range(n))
