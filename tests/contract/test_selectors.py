"""What every selector in the table must do."""

import numpy as np
import pytest
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
    """`min(count, n)` distinct rows; a shorter answer begins a longer one."""
    features = np.random.default_rng(seed).normal(size=(n, d))
    ranking = select(features, count, seed).tolist()
    assert len(ranking) == min(count, n)
    assert len(set(ranking)) == len(ranking)
    assert set(ranking) <= set(range(n))
    assert select(features, n, seed).tolist()[:count] == ranking


@EVERY
def test_a_quota_of_all_or_more_returns_all(select: Selector) -> None:
    """29 images and a quota of 30 end, and give 29."""
    features = np.abs(np.random.default_rng(0).normal(size=(29, 16)))
    assert sorted(select(features, 30, 0).tolist()) == list(range(29))


@EVERY
@pytest.mark.parametrize("features", [np.ones((6, 3)), np.zeros((6, 3)), np.eye(6)[:, :3]])
def test_degenerate_features_still_rank_everything(select: Selector, features: np.ndarray) -> None:
    """Equal rows, zero rows, rows outside the span."""
    assert sorted(select(features, 6, 0).tolist()) == list(range(6))


@EVERY
def test_same_input_same_answer(select: Selector) -> None:
    """Nothing is drawn but from the seed."""
    features = np.random.default_rng(1).normal(size=(50, 8))
    assert select(features, 20, 3).tolist() == select(features.copy(), 20, 3).tolist()


@EVERY
def test_accepts_torch_tensors(select: Selector) -> None:
    """Features come from networks."""
    import torch

    features = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    assert select(features, 5, 0).tolist() == select(features.numpy(), 5, 0).tolist()
