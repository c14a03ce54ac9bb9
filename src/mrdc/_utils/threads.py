"""Run jobs in threads, or where an engine runs them, with results in order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NoReturn, Protocol, TypeVar

from mrdc._utils.errors import DataError, ImageError, MrdcError
from mrdc._utils.ranks import cores

S = TypeVar("S")
T = TypeVar("T")

MOST = 8  # threads by default: more would wait for the interpreter


class Engine(Protocol):
    """Processes, perhaps on other machines, that many jobs can be spread over."""

    least: int  # fewer jobs than this are not worth sending

    def pieces(self, jobs: Sequence[S]) -> list[Sequence[S]]:
        """Jobs in pieces of a size that is worth sending."""

    def map(
        self, function: Callable[[S], T], pieces: Sequence[S], gpu: bool = False
    ) -> Iterator[T]:
        """Results in the order of the pieces; these and the function must be picklable."""

    def share(self, value: T) -> Callable[[], T]:
        """A picklable function that returns a value, which is sent to each process once."""

    def sends(self, job: object) -> bool:
        """Whether a job is picklable."""


_ENGINE: ContextVar[Engine | None] = ContextVar("engine", default=None)


def engine() -> Engine | None:
    """The engine in use; None for threads of this process."""
    return _ENGINE.get()


@contextmanager
def using(engine: Engine) -> Iterator[None]:
    """Let an engine run the jobs of `ordered`."""
    token = _ENGINE.set(engine)
    try:
        yield
    finally:
        _ENGINE.reset(token)


def workers(threads: int | None) -> ThreadPoolExecutor:
    """A pool of this many threads; by default this process's share of the cores, up to eight."""
    return ThreadPoolExecutor(threads or min(cores(), MOST))


def ordered(
    pool: Executor, function: Callable[[S], T], jobs: Sequence[S], window: int = 64
) -> Iterator[tuple[S, T]]:
    """Each job with its result, in order, with about `window` jobs in flight.

    Many small jobs are submitted in groups, which costs less, with two groups for each thread in
    flight. If an engine is in use, it runs the jobs instead, unless they are few.
    """
    others = engine()
    if others is not None and len(jobs) >= others.least:
        yield from _spread(others, function, jobs)
        return
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


def _spread(others: Engine, function: Callable[[S], T], jobs: Sequence[S]) -> Iterator[tuple[S, T]]:
    """Each job with its result, by an engine; an image that fails there must fail here, too."""
    pieces = others.pieces(jobs)
    for piece, found in zip(pieces, others.map(partial(_each, function), pieces), strict=True):
        for job, result in zip(piece, found, strict=True):
            if isinstance(result, ImageError):
                here = function(job)
                yield job, here if isinstance(here, ImageError) else only_there(result)
            else:
                yield job, result


def _each(function: Callable[[S], T], jobs: Sequence[S]) -> list[T]:
    return [function(job) for job in jobs]


def only_there(error: MrdcError) -> NoReturn:
    """Raise an error that occurred on another machine, but not on this one."""
    where = " ".join(getattr(error, "__notes__", ["another machine"]))
    raise DataError(
        f"{error}: on {where}, but not on this machine; all must have the images under the same "
        "path, and the same packages"
    ) from None


def ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """The same items, made by a thread up to `count` items ahead."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(next, items, end) for _ in range(count))
        try:
            while (item := pending.popleft().result()) is not end:
                pending.append(pool.submit(next, items, end))
                yield item  # type: ignore[misc]
        finally:
            for future in pending:
                future.cancel()
