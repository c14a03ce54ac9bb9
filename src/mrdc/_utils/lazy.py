"""A sequence that is computed only as far as it is read."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S")

FIRST, GROWTH = 256, 4  # items computed at first, and how many times more when they are used up


class LazyList(Sequence[T]):
    """`items` in another order, of which `first(count)` returns the first ones.

    A longer prefix is computed from scratch: in all, at most a third more work than the last
    call, and nothing but the items is kept between calls.
    """

    def __init__(self, items: Sequence[T], first: Callable[[int], Sequence[T]]):
        self.items, self._first = items, first
        self._known: Sequence[T] = ()

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        wanted = range(len(self))[index]
        last = max(wanted, default=-1) if isinstance(wanted, range) else wanted
        self._compute(last + 1)
        if isinstance(wanted, range):
            return [self._known[place] for place in wanted]
        return self._known[wanted]

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def map(self, function: Callable[[T], S]) -> "LazyList[S]":
        """The same sequence with a function applied to every item."""
        items = [function(item) for item in self.items]
        return LazyList(items, lambda count: [function(item) for item in self[:count]])

    def _compute(self, count: int) -> None:
        known = max(len(self._known), 1)
        if count > len(self._known):
            reach = FIRST if known == 1 else known * GROWTH
            self._known = self._first(min(len(self), max(count, reach)))


def unordered(items: Sequence[T]) -> Sequence[T]:
    """The items in any order, so that a lazy list need not compute its own."""
    return items.items if isinstance(items, LazyList) else items
