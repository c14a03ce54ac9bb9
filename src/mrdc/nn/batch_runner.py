"""Run batches of images through a network: on a CPU side by side, on a GPU one ahead.

A batch of a few images does not keep many threads busy, and on a busy machine each operation waits
for the slowest of them. So on a CPU every batch has one thread, and there are several batches.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from mrdc._utils.ranks import cores

MOST = 16  # batches side by side: more would wait for the interpreter

Fetch = Callable[[], Tensor]  # waits for the features of a batch


class Runner(NamedTuple):
    """Starts batches."""

    start: Callable[[Callable[[], Tensor]], Fetch]  # takes a function that computes features
    ahead: int  # batches to start before the first one is fetched


@contextmanager
def runner(side_by_side: bool, threads: int | None = None) -> Iterator[Runner]:
    """Runs batches in `threads` threads (by default one for each core), or in this one."""
    if not side_by_side:
        yield Runner(lambda compute: compute().cpu, 1)
        return
    count = threads or min(MOST, cores())
    with ThreadPoolExecutor(count, initializer=_single) as pool:
        yield Runner(lambda compute: pool.submit(compute).result, 2 * count)


def _single() -> None:
    """Let torch use only the calling thread, in this thread and no other."""
    from threadpoolctl import threadpool_limits

    torch.get_num_threads()  # or torch would set its own number later
    threadpool_limits(1, "openmp")
