"""Accuracy and forgetting by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc._utils.errors import UsageError
from mrdc.training.metrics import average_forgetting, average_incremental_accuracy, forgetting

PERCENT = st.floats(0, 100)
ROWS = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*[st.lists(PERCENT, min_size=k, max_size=k) for k in range(1, n + 1)])
)
TASKS = [[90.0], [70.0, 80.0], [75.0, 60.0, 85.0]]


def test_average_of_the_papers_readme() -> None:
    """Six numbers, the first phase included, make 73.57; without it they would make 71.54."""
    accuracy = [83.72, 78.35, 74.37, 71.21, 68.19, 65.57]
    assert average_incremental_accuracy(accuracy) == pytest.approx(73.57, abs=0.005)
    assert average_incremental_accuracy(accuracy[1:]) == pytest.approx(71.54, abs=0.005)
    assert average_incremental_accuracy([61.5]) == 61.5
    with pytest.raises(UsageError, match="accuracy needs at least one phase"):
        average_incremental_accuracy([])


def test_forgetting_by_hand() -> None:
    """Task 0: 75 now, 90 at best; task 1: 60 now, 80 at best, whenever; task 2 is new, left out."""
    assert [forgetting(TASKS, task) for task in range(3)] == [-15, -20, 0]
    assert average_forgetting(TASKS) == -17.5
    assert forgetting([[50.0], [80.0, 0.0], [60.0, 0.0, 0.0]], 0) == -20


@given(ROWS)
def test_forgetting_is_never_positive(tasks: tuple[list[float], ...]) -> None:
    """The average after one phase is 0."""
    assert all(forgetting(tasks, task) <= 0 for task in range(len(tasks)))
    assert average_forgetting(tasks) <= 0
    assert average_forgetting(tasks[:1]) == 0


@pytest.mark.parametrize("tasks", [[[1.0, 2.0]], [[1.0], [2.0]], [[1.0], [2.0, 3.0, 4.0]], [[]]])
def test_other_shapes_of_tasks_are_refused(tasks: list[list[float]]) -> None:
    """One number after the first phase, two after the second, and so on."""
    with pytest.raises(UsageError, match="tasks must hold one accuracy after the first phase"):
        average_forgetting(tasks)
