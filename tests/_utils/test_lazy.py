"""Sequences that are computed only as far as they are read."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc._utils import lazy
from mrdc._utils.lazy import LazyList, unordered


def squares(length: int, calls: list[int]) -> LazyList[int]:
    def first(count: int) -> list[int]:
        calls.append(count)
        return [n * n for n in range(count)]

    return LazyList([n * n for n in range(length)], first)


@given(length=st.integers(0, 3000), index=st.integers(-3200, 3200), stop=st.integers(-3200, 3200))
def test_reads_like_a_list(length: int, index: int, stop: int) -> None:
    """Items, slices and iteration, also out of range."""
    expected: Sequence[int] = [n * n for n in range(length)]
    found = squares(length, [])
    assert found[index:stop] == expected[index:stop]
    if -length <= index < length:
        assert found[index] == expected[index]
    else:
        with pytest.raises(IndexError):
            found[index]
    assert len(found) == length and list(found) == expected


def test_computes_only_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes grow by a factor, and items that are known are not computed again."""
    monkeypatch.setattr(lazy, "FIRST", 10)
    calls: list[int] = []
    found = squares(1000, calls)
    doubled = found.map(lambda n: 2 * n)
    assert [doubled[n] for n in (3, 9)] == [18, 162] and calls == [10]
    assert doubled[10] == 200 and calls == [10, 40]
    assert found[39] == 1521 and calls == [10, 40]
    assert found[999] == 998001 and calls == [10, 40, 1000]


def test_any_order_computes_nothing() -> None:
    """The same after applying a function; an ordinary list is returned as it is."""
    calls: list[int] = []
    found = squares(1000, calls).map(lambda n: n + 1)
    assert set(unordered(found)) == {n * n + 1 for n in range(1000)} and not calls
    assert unordered([3, 1, 2]) == [3, 1, 2]
