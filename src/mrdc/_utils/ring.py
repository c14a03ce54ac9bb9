"""Arrays that processes fill a few batches ahead, in memory that they share with this one."""

import math
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.forked import Crew, Forked, result, settle

J = TypeVar("J")
Bytes = NDArray[np.uint8]
Fill = Callable[[J, Bytes], None]  # writes what a job asks for into an array
SLOTS = 3  # groups: one in use, two ahead
CHUNK = 16  # most jobs that a process gets at once


def shared_bytes(count: int) -> Bytes:
    """Zeros (count,) that forked processes share."""
    return np.frombuffer(mmap.mmap(-1, max(1, count)), np.uint8)[:count]


class Ring(Generic[J]):
    """Lets processes fill arrays of one shape, in groups of `most` or fewer."""

    def __init__(self, fill: Fill[J], shape: tuple[int, ...], most: int, crew: Crew):
        self.most, self._count = most, crew.size
        space = shared_bytes(SLOTS * most * math.prod(shape))
        self._slots = space.reshape(SLOTS, most, *shape)
        self._workers = Forked(partial(_work, fill, self._slots), crew)

    def groups(self, groups: Sequence[Sequence[J]]) -> Iterator[Bytes]:
        """The arrays (n, ...) of each group of jobs, valid until the next group is asked for."""
        pending: deque[tuple[Bytes, list[Future[None]]]] = deque()
        try:
            for number, group in enumerate(groups):
                pending.append(self._submit(number % SLOTS, group))
                if len(pending) == SLOTS:
                    yield _filled(*pending.popleft())
            while pending:
                yield _filled(*pending.popleft())
        finally:
            settle(future for _, futures in pending for future in futures)

    def _submit(self, slot: int, group: Sequence[J]) -> tuple[Bytes, list[Future[None]]]:
        size = min(CHUNK, -(-len(group) // self._count) or 1)
        starts = range(0, len(group), size)
        jobs = [(slot, start, list(group[start : start + size])) for start in starts]
        return self._slots[slot, : len(group)], [self._workers.submit(job) for job in jobs]


def _work(fill: Fill[J], slots: Bytes, job: tuple[int, int, list[J]]) -> None:
    slot, start, items = job
    for place, item in enumerate(items, start):
        fill(item, slots[slot, place])


def _filled(arrays: Bytes, futures: list[Future[None]]) -> Bytes:
    for future in futures:
        result(future)
    return arrays
