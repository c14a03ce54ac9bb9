"""Rank of a process, and sections without interruption."""

import os
import signal

import pytest

from mrdc._utils.ranks import local_rank, local_ranks, rank, ranks
from mrdc._utils.signals import undisturbed
from mrdc._utils.threads import workers


def test_alone_unless_torchrun_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of torchrun's variables, which clusters may set, are not enough."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (rank(), ranks(), local_rank(), local_ranks()) == (0, 1, 0, 1)
    for name, value in {"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert ranks() == 1
    monkeypatch.setenv("MASTER_ADDR", "here")
    assert (rank(), ranks(), local_rank(), local_ranks()) == (5, 8, 1, 4)


@pytest.mark.parametrize(("cores", "threads"), [(64, 8), (16, 4), (2, 1)])
def test_processes_share_the_cores(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the scheduler allots, not all of the machine."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr("mrdc._utils.ranks.local_ranks", lambda: 4)
    with workers(None) as pool:
        assert pool._max_workers == threads


def test_interruptions_are_ignored_for_a_moment() -> None:
    """A terminal that closes may send SIGHUP more than once."""
    found: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, lambda number, frame: found.append(number)) for n in numbers}
    try:
        with undisturbed():
            for number in numbers:
                os.kill(os.getpid(), number)
        assert found == []
        for number in numbers:
            os.kill(os.getpid(), number)
        assert found == list(numbers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
