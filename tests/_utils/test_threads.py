"""Work spread over threads."""

import time
from threading import Lock

import pytest

from mrdc._utils.threads import ordered, workers


@pytest.mark.parametrize(
    ("cores", "asked", "threads"), [(2, None, 2), (64, None, 8), (64, 20, 20), (1, None, 1)]
)
def test_one_thread_per_core_up_to_eight(
    cores: int, asked: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the default; a given number is used as it is."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    with workers(asked) as pool:
        assert pool._max_workers == threads


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("jobs", [0, 1, 50])
def test_results_come_in_order(jobs: int, window: int) -> None:
    """The order does not depend on the window."""
    with workers(4) as pool:
        found = list(ordered(pool, lambda n: n * n, range(jobs), window))
    assert found == [(n, n * n) for n in range(jobs)]


def test_all_threads_have_work() -> None:
    """This also holds if there are so many jobs that they are grouped."""
    lock, running, most = Lock(), 0, 0

    def job(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    with workers(8) as pool:
        assert len(list(ordered(pool, job, range(1100)))) == 1100
    assert most == 8
