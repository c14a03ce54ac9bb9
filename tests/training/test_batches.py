"""Batches of an epoch: everything once, and none too small for batch norms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc.training.feed import in_batches


@given(st.integers(1, 700), st.integers(2, 130))
def test_no_batch_is_smaller_than_a_quarter(count: int, batch_size: int) -> None:
    """Batches cover the order; only an epoch of fewer images has a smaller one."""
    order = np.random.default_rng(0).permutation(count)
    batches = in_batches(order, batch_size)
    assert np.array_equal(np.concatenate(batches), order)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 4 * len(batches[-1]) >= min(batch_size, 4 * count)
    assert len(batches[-1]) < 1.25 * batch_size


@pytest.mark.parametrize(("count", "sizes"), [(256, [128, 128]), (258, [128, 130]), (31, [31])])
def test_a_short_rest_joins_the_batch_before_it(count: int, sizes: list[int]) -> None:
    assert [len(batch) for batch in in_batches(np.arange(count), 128)] == sizes


def test_a_rest_of_a_quarter_is_a_batch() -> None:
    assert [len(batch) for batch in in_batches(np.arange(160), 128)] == [128, 32]
