"""Accuracy and forgetting over the phases of a run."""

from collections.abc import Sequence

from mrdc._utils.errors import UsageError


def average_incremental_accuracy(accuracy: Sequence[float]) -> float:
    """Mean of the accuracies after every phase, the first included."""
    if not accuracy:
        raise UsageError("accuracy needs at least one phase")
    return sum(accuracy) / len(accuracy)


def forgetting(tasks: Sequence[Sequence[float]], task: int) -> float:
    """Accuracy of a task after the last phase minus its best; `tasks` has accuracies by phase."""
    return tasks[-1][task] - max(after[task] for after in tasks[task:])


def average_forgetting(tasks: Sequence[Sequence[float]]) -> float:
    """Mean forgetting of the tasks before the last; 0 for a single task."""
    if any(len(after) != number + 1 for number, after in enumerate(tasks)):
        raise UsageError("tasks must hold one accuracy after the first phase, two after the next")
    earlier = range(len(tasks) - 1)
    return sum(forgetting(tasks, task) for task in earlier) / max(len(earlier), 1)
