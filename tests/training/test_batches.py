"""Batches of an epoch: everything once, and none too small for batch norms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mrdc.data.loader import grouped
from mrdc.training.batches import in_batches


@given(st.integers(2, 700), st.integers(1, 130))
def test_no_batch_is_smaller_than_two_or_a_quarter(count: int, batch_size: int) -> None:
    """Batches cover the order; only an epoch of fewer images has a smaller one."""
    order = np.random.default_rng(0).permutation(count)
    batches = in_batches(order, batch_size)
    assert np.array_equal(np.concatenate(batches), order)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(batches[-1]) >= min(max(2, batch_size / 4), count)
    assert len(batches[-1]) < batch_size + max(2, batch_size / 4)


def test_a_single_image_is_shown_twice() -> None:
    """Batch norms fail over one image, where the last map has one pixel."""
    assert [batch.tolist() for batch in in_batches(np.array([7]), 128)] == [[7, 7]]


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"),
    [(258, 128, [128, 130]), (160, 128, [128, 32]), (9, 4, [4, 5]), (10, 4, [4, 4, 2])],
)
def test_short_rest_joins_the_batch_before_it(
    count: int, batch_size: int, sizes: list[int]
) -> None:
    """A quarter of a batch, and at least two images, make a batch."""
    assert [len(batch) for batch in in_batches(np.arange(count), batch_size)] == sizes


@pytest.mark.parametrize("threads", [1, 3])
def test_groups_come_whole_and_in_order(threads: int) -> None:
    groups = [[3, 1], [4], [1, 5, 9, 2], [6]]
    made = list(grouped(lambda item: torch.full((3, 2, 1), item), groups, threads))
    assert [views.shape for views in made] == [(len(group), 3, 2, 1) for group in groups]
    assert [views[:, 0, 0, 0].tolist() for views in made] == groups
    assert list(grouped(lambda item: torch.zeros(3, 1, 1), [], threads)) == []


def test_groups_are_made_a_little_ahead() -> None:
    """The first of 250 groups waits for a few views only."""
    made: list[int] = []

    def view(item: int) -> Tensor:
        made.append(item)
        return torch.zeros(3, 1, 1)

    groups = grouped(view, [list(range(n, n + 4)) for n in range(0, 1000, 4)], 1)
    next(groups)
    assert 4 <= len(made) < 100
    assert len(list(groups)) == 249
    assert sorted(made) == list(range(1000))
