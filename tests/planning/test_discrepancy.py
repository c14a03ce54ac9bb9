"""The discrepancy between the originals of a class and its stored images."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mrdc.planning.discrepancy import BLOCK, discrepancy, kernel, mean_kernel


def rows(n: int, d: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def slow(originals: Tensor, stored: Tensor) -> float:
    """The definition, one pair at a time."""
    p, q = (
        [np.array(row) / np.linalg.norm(row) for row in one.tolist()] for one in (originals, stored)
    )

    def mean(left: list[np.ndarray], right: list[np.ndarray]) -> float:
        return float(np.mean([math.exp(-((a - b) ** 2).sum() / 0.5) for a in left for b in right]))

    return mean(p, p) + mean(q, q) - 2 * mean(p, q)


def test_by_hand() -> None:
    """One original and one image at a right angle: 1 + 1 - 2 exp(-2 / 0.5)."""
    one, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.1]])
    assert discrepancy(one, other) == pytest.approx(2 - 2 * math.exp(-4))
    assert discrepancy(one, 5 * one) == 0  # rows are scaled to length 1
    assert kernel(torch.zeros(1, 2), one).item() == pytest.approx(math.exp(-2))  # a row of zeros


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 20), m=st.integers(1, 20), d=st.integers(1, 8), seed=st.integers(0, 99))
def test_against_the_definition(n: int, m: int, d: int, seed: int) -> None:
    originals, stored = rows(n, d, seed), rows(m, d, seed + 100)
    expected = slow(originals, stored)
    assert discrepancy(originals, stored) == pytest.approx(expected, abs=1e-12)
    spread = mean_kernel(originals, originals)
    assert discrepancy(originals, stored, spread) == discrepancy(originals, stored) >= 0


def test_blocks_add_up() -> None:
    """More rows than fit a block give the mean of the whole kernel."""
    left, right = rows(BLOCK + 7, 4), rows(2 * BLOCK + 1, 4, 1)
    assert mean_kernel(left, right) == pytest.approx(kernel(left, right).mean().item(), rel=1e-12)


def test_equal_sets_and_copies() -> None:
    """Order, and storing every image twice, change nothing."""
    originals = rows(30)
    assert discrepancy(originals, originals.flip(0)) == pytest.approx(0, abs=1e-12)
    assert discrepancy(originals, originals.repeat(2, 1)) == pytest.approx(0, abs=1e-12)
    part, copies = originals[:5], originals[[0, 0, 0, 1, 2, 3, 4]]
    assert discrepancy(originals, copies) > discrepancy(originals, part)


def test_random_subsets_come_closer_as_one_over_their_size() -> None:
    """On average (1 - mean k) (1/m - 1/n) without replacement, where mean k is between rows."""
    originals, n = rows(200, 8), 200
    between = (mean_kernel(originals, originals) * n - 1) / (n - 1)
    for m in (5, 20, 80):
        draws = [
            torch.randperm(n, generator=torch.Generator().manual_seed(s))[:m] for s in range(60)
        ]
        found = np.mean([discrepancy(originals, originals[draw]) for draw in draws])
        assert found == pytest.approx((1 - between) * (1 / m - 1 / n), rel=0.1)


def test_distortion_adds_to_it() -> None:
    """With all images stored, only the shift is left, which grows with the distortion."""
    originals, noise = rows(100), rows(100, seed=1)
    found = [discrepancy(originals, originals + noise * share) for share in (0.0, 0.3, 1.0)]
    assert found[0] < found[1] < found[2]
    shift = torch.zeros(16)
    shift[0] = 1.0
    assert discrepancy(originals, originals + shift) > found[1]
