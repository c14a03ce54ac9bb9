"""Run one function on many jobs in forked processes."""

import ctypes
import gc
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import current_process, get_context
from typing import Any, Generic, NamedTuple, TypeVar

from mrdc._utils.errors import TrainingError
from mrdc._utils.ranks import cores
from mrdc._utils.threads import MOST

J = TypeVar("J")
R = TypeVar("R")
WORTH, EACH = 4096, 512  # images to decode that are worth forking, and per process
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_function: Callable[[Any], Any] | None = None  # of this process, if it was forked to run it


class Crew(NamedTuple):
    """Number of workers, and whether they are processes or threads."""

    size: int
    forked: bool


def crew(wanted: int | None, images: int, passes: int = 1) -> Crew:
    """A crew to decode images `passes` times; by default this process's share of the cores.

    Processes do not wait for each other, but each takes tens of milliseconds to fork from a
    process with a GPU, so threads are better for little work.
    """
    count, work = wanted or cores(), images * passes
    able = sys.platform == "linux" and not current_process().daemon
    if not able or count == 1 or work < WORTH:
        return Crew(wanted or min(count, MOST), forked=False)
    return Crew(min(count, work // EACH), forked=True)


class Forked(Generic[J, R]):
    """Processes that run one function; only jobs and results are sent, the rest is shared.

    They see the memory of this process as it is now, and end with it. A crew may be threads too.
    """

    def __init__(self, function: Callable[[J], R], crew: Crew):
        self._pool: Executor
        self._call: Callable[[J], R]
        if not crew.forked:
            self._pool, self._call = ThreadPoolExecutor(crew.size), function
            return
        self._call = _call
        start = (function, os.getpid())
        self._pool = ProcessPoolExecutor(crew.size, get_context("fork"), _start, start)
        with warnings.catch_warnings():  # about other threads, which hold no lock of ours
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pool.submit(os.getpid)  # the first job forks all processes

    def __enter__(self) -> "Forked[J, R]":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, job: J) -> Future[R]:
        """Start a job."""
        try:
            return self._pool.submit(self._call, job)
        except BrokenProcessPool:
            raise _lost() from None

    def ordered(self, jobs: Iterable[J], ahead: int) -> Iterator[R]:
        """Results in the order of the jobs, with `ahead` jobs in flight."""
        pending: deque[Future[R]] = deque()
        try:
            for job in jobs:
                pending.append(self.submit(job))
                if len(pending) > ahead:
                    yield result(pending.popleft())
            while pending:
                yield result(pending.popleft())
        finally:
            settle(pending)


def result(future: Future[R]) -> R:
    """The result of a job.

    Raises:
        TrainingError: a process has been killed.
    """
    try:
        return future.result()
    except BrokenProcessPool:
        raise _lost() from None


def settle(futures: Iterable[Future[Any]]) -> None:
    """Cancel jobs, and wait for any that have started."""
    wait([future for future in futures if not future.cancel()])


def _lost() -> TrainingError:
    return TrainingError(
        "a process that decodes images was killed, perhaps for lack of memory: lower --threads"
    )


def _start(function: Callable[[Any], Any], parent: int) -> None:
    """Prepare a forked process."""
    global _function
    _function = function
    gc.freeze()  # collecting the parent's objects would copy their pages
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # its threads do not survive a fork


def _call(job: Any) -> Any:
    assert _function is not None
    return _function(job)
