"""Run jobs in threads, with results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

from mrdc._utils.ranks import local_ranks

S = TypeVar("S")
T = TypeVar("T")

MOST = 8  # threads by default: more would wait for the interpreter


def workers(threads: int | None) -> ThreadPoolExecutor:
    """A pool of this many threads; by default this process's share of the cores, up to eight."""
    cores = max(1, (os.cpu_count() or 1) // local_ranks())
    return ThreadPoolExecutor(threads or min(cores, MOST))


def ordered(
    pool: Executor, function: Callable[[S], T], jobs: Sequence[S], window: int = 64
) -> Iterator[tuple[S, T]]:
    """Each job with its result, in order, with about `window` jobs in flight.

    Many small jobs are submitted in groups, which costs less; two for each thread are in flight.
    """
    threads = getattr(pool, "_max_workers", MOST)
    size = max(1, min(16, len(jobs) // window, window // (2 * threads)))
    groups = (jobs[start : start + size] for start in range(0, len(jobs), size))
    pending: deque[tuple[Sequence[S], Future[list[T]]]] = deque()
    try:
        for group in groups:
            pending.append((group, pool.submit(lambda group: list(map(function, group)), group)))
            if len(pending) * size >= window:
                first, future = pending.popleft()
                yield from zip(first, future.result(), strict=True)
        while pending:
            first, future = pending.popleft()
            yield from zip(first, future.result(), strict=True)
    finally:
        for _, future in pending:
            future.cancel()
