"""Start the processes of a run on this machine, as torchrun does."""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    ProcessFailure,
    SignalException,
    start_processes,
)

from mrdc._utils.errors import RanksError
from mrdc._utils.ranks import FAILED, LOST, machine_cores

HERE = "127.0.0.1"
POLL = 0.1  # seconds


def launch(count: int, command: Sequence[str]) -> int:
    """Run a Python command in `count` processes; returns the exit code of the first to fail.

    The processes end when this one does: they inherit a standard input that it keeps open.

    A process that fails prints why; processes that lose contact with it stay silent.

    Raises:
        RanksError: a process ended without saying why.
        KeyboardInterrupt: this process was interrupted.
    """
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    store.add(f"{LOST} 0", 1)  # claimed by this process
    with open_input(), silent_torch(), tempfile.TemporaryDirectory() as folder:
        processes: PContext | None = None
        try:
            processes = start_processes(
                "mrdc",
                sys.executable,
                args=dict.fromkeys(range(count), tuple(command)),
                envs={rank: environment(rank, count, store.port) for rank in range(count)},
                logs_specs=DefaultLogsSpecs(folder),
            )
            code, why = _wait(processes)
        except SignalException as interruption:
            with suppress(SignalException):  # again: then they end with their input
                if processes is not None:
                    processes.close(interruption.sigval)
            raise KeyboardInterrupt from None
    if code and store.add(f"{FAILED} 0", 1) == 1:
        raise RanksError(why)
    return code


@contextmanager
def silent_torch() -> Iterator[None]:
    """Suppress torch's own messages about processes that fail."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def open_input() -> Iterator[None]:
    """An empty standard input, open until this process leaves or dies."""
    before, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for file in (before, writing):
            os.close(file)


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Variables by which processes find each other, as under torchrun."""
    cores = max(1, machine_cores() // count)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": HERE,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store of `launch`
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores)),
    }


def _wait(processes: PContext) -> tuple[int, str]:
    """Wait for all processes, or the first that fails: its exit code, and what happened to it."""
    result = processes.wait(period=POLL)
    assert result is not None
    if not result.failures:
        return 0, ""
    first = min(result.failures.values(), key=_order)
    code, why = first.exitcode, f"ended with exit code {first.exitcode}"
    if code < 0:
        code, why = 2, f"was killed by {signal.Signals(-code).name}"
    return code, f"process {first.local_rank} {why}: run the same command to resume"


def _order(failure: ProcessFailure) -> tuple[int, int]:
    """Earliest first; within a second, killed before failed before ended by us."""
    code = failure.exitcode
    return failure.timestamp, 2 if code == -signal.SIGTERM else int(code > 0)
