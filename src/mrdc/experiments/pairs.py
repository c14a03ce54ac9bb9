"""Pairs of runs with the same seed, one of which replays originals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any, NamedTuple

from mrdc._utils.text import count
from mrdc.training.results import RunResult

Json = dict[str, Any]
Number = Callable[[RunResult], float | None]


class Difference(NamedTuple):
    """Mean difference over pairs."""

    mean: float
    error: float | None  # standard error of the mean; None for a single pair
    pairs: int

    @property
    def value(self) -> str:
        """+1.90 ± 0.31."""
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")

    def __str__(self) -> str:
        return f"{self.value} ({count(self.pairs, 'pair')})"


@dataclass(frozen=True)
class Arm:
    """Runs that differ only in their seed."""

    settings: Json  # flat, without the seed
    runs: dict[int, RunResult]  # by seed

    def numbers(self, number: Number | None = None) -> dict[int, float | None]:
        """A number of each run by seed; by default its score."""
        return {seed: (number or score)(run) for seed, run in self.runs.items()}

    @property
    def originals(self) -> Json:
        """Settings of the arm that replays originals instead."""
        replay = {"replay": "memory"} if "replay" in self.settings else {}
        return {**self.settings, "memory.quality": "original", **replay}


def score(run: RunResult) -> float:
    """The number that runs are compared by: averaged accuracy, or the last AP."""
    return run.average_incremental_accuracy if run.ap is None else run.ap[-1]


def difference(
    ours: Mapping[int, float | None], base: Mapping[int, float | None]
) -> Difference | None:
    """Our numbers minus those of the same seed in `base`; None without a pair."""
    pairs = [(value, base.get(seed)) for seed, value in ours.items()]
    found = [one - other for one, other in pairs if one is not None and other is not None]
    if not found:
        return None
    error = stdev(found) / sqrt(len(found)) if len(found) > 1 else None
    return Difference(mean(found), error, len(found))


def baseline(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The arm with originals that is otherwise equal; None if there is none, or for itself.

    If originals were only run with one other budget, they are the baseline.
    """
    wanted = arm.originals
    if arm.settings == wanted:
        return None

    def but_budget(settings: Json) -> Json:
        return {name: value for name, value in settings.items() if name != "memory.budget"}

    near = [other for other in arms if but_budget(other.settings) == but_budget(wanted)]
    same = [other for other in near if other.settings == wanted]
    return same[0] if same else near[0] if len(near) == 1 else None
