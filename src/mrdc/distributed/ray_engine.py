"""Ray as an engine: jobs for the workers of a cluster, results in order.

A task is a piece of the jobs. What travels is what it takes to read an image (a path, an offset)
and what comes out of it (features, encoded bytes), never pixels. Ray runs the task of a lost worker
again. Nothing is shuffled, and results come in the order of the jobs, so they do not depend on the
workers.

Tasks are plain ones. Ray Data, which was tried first, retries a task that kills its worker forever
(a limit is deprecated), and costs more for each of the many calls of `map`.
"""

import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from mrdc._utils.errors import MissingError, MrdcError, RanksError, UsageError
from mrdc._utils.threads import only_there, using

S = TypeVar("S")
T = TypeVar("T")

LEAST = 256  # images worth sending
LARGEST, SMALLEST = 256, 16  # images of a task
WINDOW = 8  # tasks in flight for each worker, since results are awaited in order
RETRIES = 3  # of a task whose worker dies
PATIENCE = 10.0  # seconds for an address to answer
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2
SETTINGS = b"\x04"  # the first frame of an HTTP/2 server, such as the head of a Ray cluster


def _ray(module: str = "ray") -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingError(
            "--engine ray needs Ray, which is missing: pip install 'mrdc[ray]'"
        ) from None


@contextmanager
def ray_engine(address: str | None, workers: int | None) -> Iterator[None]:
    """Let Ray run the jobs of `ordered`.

    Connects to `address`, or starts Ray on this machine with this many workers, by default one per
    core. A script that is connected already stays so.

    Raises:
        MissingError: Ray is not installed.
        UsageError: no cluster answers at the address.
    """
    ray = _ray()
    connected = ray.is_initialized()
    if not connected:
        _connect(address or os.environ.get("RAY_ADDRESS") or "local", workers)
    try:
        with using(RayEngine(int(ray.cluster_resources().get("CPU", 1)))):
            yield
    except ray.exceptions.RayTaskError:  # a fault in a function, not of Ray
        raise
    except ray.exceptions.RayError as error:
        line = str(error).strip().partition("\n")[0]
        raise RanksError(f"Ray has failed ({line}): run the same command to resume") from error
    finally:
        if not connected:
            ray.shutdown()


def _connect(address: str, workers: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":
        options |= {"num_cpus": workers, "include_dashboard": False}
    else:
        _check_address(address)
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        _ray().init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        raise UsageError(f"--address {address}: cannot connect to Ray ({line})") from error
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _check_address(address: str) -> None:
    """Refuse an address without a Ray cluster, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or "/" in host or not port.isdecimal():
        raise UsageError(f"--address {address}: must be HOST:PORT of the cluster's head, or auto")
    why: object = "something else does"
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as there:
            there.sendall(GREETING)
            if there.recv(9)[3:4] == SETTINGS or os.environ.get("RAY_USE_TLS", "0") != "0":
                return
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
    raise UsageError(f"--address {address}: no Ray cluster answers there ({why})")


@dataclass(frozen=True)
class RayEngine:
    """Spreads jobs over the workers of the cluster this process is connected to."""

    cpus: int
    least = LEAST

    def pieces(self, jobs: Sequence[S]) -> list[Sequence[S]]:
        size = max(SMALLEST, min(LARGEST, len(jobs) // (4 * self.cpus)))
        return [jobs[start : start + size] for start in range(0, len(jobs), size)]

    def map(
        self, function: Callable[[S], T], pieces: Sequence[S], gpu: bool = False
    ) -> Iterator[T]:
        ray, folder = _ray(), str(Path.cwd())
        task = ray.remote(num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES)(_work)
        shared, pending = ray.put(function), deque[tuple[S, Any]]()
        try:
            for piece in pieces:
                pending.append((piece, task.remote(shared, piece, folder)))
                if len(pending) > WINDOW * self.cpus:
                    yield _result(function, *pending.popleft())
            while pending:
                yield _result(function, *pending.popleft())
        finally:
            for _, reference in pending:
                ray.cancel(reference)

    def share(self, value: T) -> Callable[[], T]:
        return Shared(_ray().put(value))

    def sends(self, job: object) -> bool:
        try:
            _ray("ray.cloudpickle").dumps(job)
        except TypeError:
            return False
        return True


@dataclass(frozen=True)
class Shared(Generic[T]):
    """A value in Ray's object store; each process reads it once."""

    reference: Any

    def __call__(self) -> T:
        value: T = _fetched(self.reference)
        return value


@lru_cache(maxsize=1)
def _fetched(reference: Any) -> Any:
    return _ray().get(reference)


def _work(function: Callable[[S], T], piece: S, folder: str) -> T | MrdcError:
    """Apply a function to a piece, in a worker; errors are returned, with the name of the machine.

    `folder` is that of the driver, since paths may be relative.
    """
    with suppress(OSError):
        os.chdir(folder)
    try:
        result: T | MrdcError = function(piece)
    except MrdcError as error:
        result = error
    for one in result if isinstance(result, list) else [result]:
        if isinstance(one, MrdcError):
            one.add_note(f"the Ray worker {socket.gethostname()}")
    return result


def _result(function: Callable[[S], T], piece: S, reference: Any) -> T:
    """A worker's result for a piece; an error is raised here, or reported as the worker's alone."""
    result: T | MrdcError = _ray().get(reference)
    if isinstance(result, MrdcError):
        function(piece)  # raises it here
        only_there(result)
    return result
