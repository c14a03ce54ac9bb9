"""Run work in several processes that form a group on the CPU."""

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mrdc.cli.main import main
from mrdc.distributed.launch import HERE, environment
from tests.processes import FORK


class Together:
    """Processes that call `work(*given)`, each as a rank of one group."""

    def __init__(self, count: int, work: Callable[..., Any], *given: Any):
        self.store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
        self.pipes, self.processes = [], []
        for rank in range(count):
            here, there = FORK.Pipe(duplex=False)
            variables = environment(rank, count, self.store.port)
            variables["MRDC_CACHE"] = os.environ["MRDC_CACHE"]
            process = FORK.Process(target=_work, args=(there, variables, work, given))
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def results(self) -> list[Any]:
        """Return values of the ranks."""
        try:
            found = [pipe.recv() if pipe.poll(60) else "nothing" for pipe in self.pipes]
        finally:
            self.end()
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def together(count: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """The results of all ranks."""
    return Together(count, work, *given).results()


def _work(
    pipe: Connection, variables: dict[str, str], work: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    pipe.send(work(*given))


def command(arguments: list[str], folder: Path) -> int:
    """Run `mrdc`, with the output of every rank in files."""
    rank = os.environ["RANK"]
    for ending, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / f"{rank}.{ending}", os.O_WRONLY | os.O_CREAT), descriptor)
    code = main(arguments)
    sys.stdout.flush()
    return code
