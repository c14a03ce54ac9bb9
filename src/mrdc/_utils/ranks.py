"""The place of this process among those torchrun started; without torchrun it is alone."""

import os

FAILED, LOST = "failed", "lost"  # printed by one process only: its own fault; the end of another


def rank() -> int:
    """Number of this process, from 0."""
    return _number("RANK", 0)


def ranks() -> int:
    """Number of processes."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Number of this process on its machine."""
    return _number("LOCAL_RANK", 0)


def local_ranks() -> int:
    """Number of processes on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def machine_cores() -> int:
    """Cores that this process and the others beside it may use."""
    linux = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1


def cores() -> int:
    """This process's share of the cores."""
    return max(1, machine_cores() // local_ranks())


def _number(name: str, alone: int) -> int:
    started = all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    return int(os.environ.get(name, alone)) if started else alone
