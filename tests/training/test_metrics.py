"""Accuracy and forgetting by hand, and a clock that counts every second once."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc._utils.clock import Clock
from mrdc._utils.errors import UsageError
from mrdc.experiments.summary import left_out, mean_choice
from mrdc.training.metrics import average_forgetting, average_incremental_accuracy, forgetting
from mrdc.training.settings import MemorySettings

PERCENT = st.floats(0, 100)


def test_the_average_of_the_papers_readme() -> None:
    """Six numbers, the first phase included, make 73.57; without it they would make 71.54."""
    accuracy = [83.72, 78.35, 74.37, 71.21, 68.19, 65.57]
    assert average_incremental_accuracy(accuracy) == pytest.approx(73.57, abs=0.005)
    assert average_incremental_accuracy(accuracy[1:]) == pytest.approx(71.54, abs=0.005)


def test_the_average_of_one_phase_is_its_accuracy() -> None:
    """A run that has only begun."""
    assert average_incremental_accuracy([61.5]) == 61.5


def test_refuses_an_average_of_nothing() -> None:
    """The message says what is missing."""
    with pytest.raises(UsageError, match="accuracy needs at least one phase"):
        average_incremental_accuracy([])


TASKS = [[90.0], [70.0, 80.0], [75.0, 60.0, 85.0]]


def test_forgetting_by_hand() -> None:
    """Task 0: 75 now, 90 at best; task 1: 60 now, 80 at best; task 2 is new."""
    assert forgetting(TASKS, 0) == -15
    assert forgetting(TASKS, 1) == -20
    assert forgetting(TASKS, 2) == 0


def test_average_forgetting_leaves_the_newest_task_out() -> None:
    """(-15 - 20) / 2."""
    assert average_forgetting(TASKS) == -17.5


def test_the_best_may_have_come_later() -> None:
    """A task that got better and then worse is measured from its best."""
    assert forgetting([[50.0], [80.0, 0.0], [60.0, 0.0, 0.0]], 0) == -20


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(*[
    st.lists(PERCENT, min_size=k + 1, max_size=k + 1) for k in range(n)
])))  # fmt: skip
def test_nothing_is_remembered_better_than_at_best(tasks: tuple[list[float], ...]) -> None:
    """Forgetting is 0 or less, and 0 on average after one phase."""
    assert all(forgetting(tasks, task) <= 0 for task in range(len(tasks)))
    assert average_forgetting(tasks) <= 0
    assert average_forgetting(tasks[:1]) == 0


@pytest.mark.parametrize("tasks", [[[1.0, 2.0]], [[1.0], [2.0]], [[1.0], [2.0, 3.0, 4.0]], [[]]])
def test_refuses_another_shape_of_tasks(tasks: list[list[float]]) -> None:
    """One number after the first phase, two after the second, and so on."""
    with pytest.raises(UsageError, match="tasks must hold one accuracy after the first phase"):
        average_forgetting(tasks)


class Hands:
    """A clock to set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def test_an_inner_part_stops_the_outer_ones_clock(hands: Hands) -> None:
    """1 + 4 seconds of training around 2 of writing; the 8 outside count nowhere."""
    clock = Clock()
    hands.now += 8
    with clock.part("train"):
        hands.now += 1
        with clock.part("write"):
            hands.now += 2
        hands.now += 4
    hands.now += 8
    assert clock.seconds == {"train": 5.0, "write": 2.0}


def test_parts_add_up(hands: Hands) -> None:
    """Again, inside itself, and inside another."""
    clock = Clock()
    with clock.part("a"):
        hands.now += 1
        with clock.part("a"):
            hands.now += 2
    with clock.part("b"), clock.part("a"):
        hands.now += 4
    assert clock.seconds == {"a": 7.0, "b": 0.0}


def test_a_part_that_fails_is_counted_too(hands: Hands) -> None:
    """And the clock goes on."""
    clock = Clock()
    with pytest.raises(RuntimeError), clock.part("a"):
        hands.now += 1
        raise RuntimeError
    hands.now += 2
    with clock.part("b"):
        hands.now += 4
    assert clock.seconds == {"a": 1.0, "b": 4.0}


def test_a_mean_that_nothing_passes_chooses_nothing() -> None:
    """A run with originals that do not fit still ends with its result."""
    row = {"codec": "jpeg", "quality": 10, "quantity": [5], "by_phase": [3.0], "mean": 3.0}
    assert mean_choice(MemorySettings(), [row]) is None
    assert mean_choice(MemorySettings(), [row | {"mean": 1.2}]) == 10
    assert mean_choice(MemorySettings(), [row | {"mean": None}]) is None


def test_what_r_q_leaves_out_has_a_reason() -> None:
    """Of every phase: candidates without any R_q, and classes of the others."""
    known: dict[str, Any] = {"codec": "original", "quality": None, "volume_ratio": 1.0}
    some: dict[str, Any] = {"codec": "jpeg", "quality": 50, "volume_ratio": 1.2}
    some["excluded_classes"] = {"a": "one image"}
    none = some | {"volume_ratio": None, "verdict": "too many rows", "excluded_classes": {}}
    assert left_out([{"candidates": [known, some]}, {"candidates": [known, none]}]) == {
        "class a": "one image",
        "jpeg 50": "too many rows",
    }
