"""Fading: which scans a memory gives up, and in what order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc.memory.fade import TOP, Sizes, fitting_levels

STEPS = st.lists(st.integers(0, 9), min_size=TOP, max_size=TOP)
IMAGE = st.tuples(st.integers(1, 50), STEPS).map(lambda made: np.cumsum([made[0], *made[1]]))
CLASS = st.lists(IMAGE, min_size=1, max_size=5).map(lambda rows: np.array(rows, np.int64))
CLASSES = st.lists(CLASS, min_size=1, max_size=4)
ROOM = st.integers(0, 1500)


def cost(sizes: list[Sizes], levels: list[np.ndarray]) -> int:
    """Bytes of all images at their levels."""
    rows = zip(sizes, levels, strict=True)
    return sum(int(s[np.arange(len(s)), chosen].sum()) for s, chosen in rows)


def at_most(sizes: list[Sizes], levels: list[np.ndarray]) -> list[Sizes]:
    """The sizes of images once cut: no larger at higher levels."""
    steps = np.arange(TOP + 1)
    rows = zip(sizes, levels, strict=True)
    return [np.take_along_axis(s, np.minimum(steps, f[:, None]), axis=1) for s, f in rows]


RISE = np.arange(10, 10 + TOP + 1)  # bytes of an image at each level


@pytest.mark.parametrize(
    ("room", "older", "newer"),
    [
        (60, [5, 5], [5, 5]),
        (59, [5, 4], [5, 5]),
        (58, [5, 4], [5, 4]),
        (57, [4, 4], [5, 4]),
        (56, [4, 4], [4, 4]),
        (55, [4, 3], [4, 4]),
        (40, [0, 0], [0, 0]),
        (39, [0, 0], [0, 0]),
    ],
)
def test_a_worked_case(room: int, older: list[int], newer: list[int]) -> None:
    """The last scan goes first, from the lowest ranks, and among these from the older class."""
    found = fitting_levels([np.array([RISE, RISE])] * 2, room)
    assert [levels.tolist() for levels in found] == [older, newer]


@given(CLASSES, ROOM)
def test_bytes_never_exceed_the_room(sizes: list[Sizes], room: int) -> None:
    """Unless even the lowest level is too much; then all images are at it."""
    levels = fitting_levels(sizes, room)
    least = sum(int(of_class[:, 0].sum()) for of_class in sizes)
    assert cost(sizes, levels) <= max(room, least)
    if least > room:
        assert all((of_class == 0).all() for of_class in levels)


@given(CLASSES, ROOM)
def test_images_differ_by_a_level_at_most(sizes: list[Sizes], room: int) -> None:
    """Within a class, a better rank is never more faded."""
    levels = fitting_levels(sizes, room)
    every = np.concatenate(levels)
    assert every.max() - every.min() <= 1
    assert all((np.diff(of_class) <= 0).all() for of_class in levels)


@given(CLASSES, ROOM, ROOM)
def test_steps_do_not_matter(sizes: list[Sizes], one: int, other: int) -> None:
    """Shrinking in two steps leaves the same bytes as in one."""
    first, second = max(one, other), min(one, other)
    once = fitting_levels(sizes, second)
    before = at_most(sizes, fitting_levels(sizes, first))
    again = at_most(before, fitting_levels(before, second))
    expected = at_most(sizes, once)
    assert all(np.array_equal(a, b) for a, b in zip(again, expected, strict=True))
