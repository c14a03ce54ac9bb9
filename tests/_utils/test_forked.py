"""Forked processes run a function, keep order, and leave nothing behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrdc._utils.errors import ImageError, TrainingError
from mrdc._utils.files import try_lock
from mrdc._utils.forked import EACH, WORTH, Crew, Forked, crew
from mrdc._utils.ranks import cores
from mrdc._utils.threads import ahead

TWO = Crew(2, forked=True)


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("in_flight", [0, 1, 7, 100])
def test_results_come_in_the_order_of_the_jobs(processes: int, in_flight: int) -> None:
    table = [n * n for n in range(30)]  # inherited, not sent
    with Forked(table.__getitem__, Crew(processes, processes > 1)) as pool:
        assert list(pool.ordered(range(30), in_flight)) == table
        assert list(pool.ordered([], in_flight)) == []


def test_processes_are_used_unless_there_is_one() -> None:
    for count in (1, 3):
        pool: Forked[int, int] = Forked(lambda job: os.getpid(), Crew(count, count > 1))
        with pool:
            ids = set(pool.ordered(range(20), 9))
        assert (os.getpid() in ids) == (count == 1)
        assert len(ids) <= count
    assert 1 <= cores() <= len(os.sched_getaffinity(0))


def test_little_work_is_done_by_threads() -> None:
    """The number of processes grows with the work, up to the number of cores."""
    most = WORTH // EACH
    assert crew(99, WORTH) == crew(99, WORTH // 4, 4) == Crew(most, forked=True)
    assert crew(99, WORTH + EACH) == Crew(most + 1, forked=True)
    assert crew(3, 10**6) == Crew(3, forked=True)
    assert crew(3, WORTH - 1) == Crew(3, forked=False)
    assert crew(1, 10**6) == Crew(1, forked=False)
    assert crew(None, 1) == Crew(min(8, cores()), forked=False)


@pytest.mark.parametrize("processes", [1, 2])
def test_errors_keep_their_words(processes: int) -> None:
    def fail(job: int) -> int:
        if job == 3:
            raise ImageError("3.jpg: the file is empty (0 bytes)")
        return job

    with Forked(fail, Crew(processes, processes > 1)) as pool:
        made = pool.ordered(range(9), 4)
        assert [next(made) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ImageError, match=r"^3.jpg: the file is empty \(0 bytes\)$"):
            next(made)


def test_a_killed_process_is_reported_now_and_later() -> None:
    pool: Forked[int, None] = Forked(lambda job: os.kill(os.getpid(), signal.SIGKILL), TWO)
    with pool:
        for _ in range(2):
            with pytest.raises(TrainingError, match="was killed, perhaps for lack of memory"):
                list(pool.ordered([0], 1))


def test_processes_end_with_the_one_that_forked_them() -> None:
    """They end even if it is killed, and ignore Ctrl-C."""
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        os.close(reading)
        pool: Forked[int, int] = Forked(lambda job: os.getpid(), TWO)
        child = next(pool.ordered([0], 0))
        os.kill(child, signal.SIGINT)
        os.write(writing, f"{next(pool.ordered([0], 0))}".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read().isdecimal()  # up to the end, once no process has it open
    os.waitpid(parent, 0)


def test_locks_stay_with_the_process_that_took_them(tmp_path: Path) -> None:
    file = (tmp_path / "lock").open("wb")
    assert try_lock(file)
    pool: Forked[int, int] = Forked(lambda job: job, TWO)
    with pool:
        assert list(pool.ordered([1], 0)) == [1]
        with (tmp_path / "lock").open("wb") as other:
            assert try_lock(other) is False
            file.close()
            deadline = time.monotonic() + 5  # the second process may not have started yet
            while not try_lock(other):
                assert time.monotonic() < deadline
                time.sleep(0.001)


def test_items_are_made_ahead_in_a_thread() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(6):
            made.append(number)
            yield number

    found = ahead(items(), 2)
    assert next(found) == 0
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert made == [0, 1, 2]
    assert list(found) == [1, 2, 3, 4, 5]
    assert list(ahead(iter([]), 3)) == []


def test_an_error_of_an_item_comes_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ImageError("damaged")

    found = ahead(items(), 2)
    assert next(found) == 1
    with pytest.raises(ImageError, match="damaged"):
        next(found)
