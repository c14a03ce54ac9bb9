"""The table of a study: a line for all runs that differ only in their seed."""

from collections.abc import Sequence
from operator import attrgetter
from statistics import mean
from typing import Any, NamedTuple

from mrdc.experiments.pairs import Arm, Difference, Number, baseline, difference, score
from mrdc.experiments.settings import decisive_settings, flat
from mrdc.experiments.sweep import Cell, Outcome, averages
from mrdc.training.results import RunResult

Json = dict[str, Any]
initial_forgetting: Number = attrgetter("initial_forgetting")


class Line(NamedTuple):
    """Runs of one place in the grid, by seed."""

    place: dict[str, str]
    arm: Arm

    def name(self, without: str = "") -> str:
        """The place in the grid, except on one axis."""
        return ", ".join(value for axis, value in self.place.items() if axis != without)

    def mean(self, number: Number = score) -> float | None:
        """Mean over the runs where a number is known."""
        known = [value for run in self.runs if (value := number(run)) is not None]
        return mean(known) if known else None

    @property
    def runs(self) -> list[RunResult]:
        return list(self.arm.runs.values())

    @property
    def picks(self) -> list[str]:
        """Qualities that R_q averaged over the phases picks."""
        return sorted({str(run.mean_choice) for run in self.runs if run.mean_choice is not None})


def study_lines(made: Sequence[Cell], outcomes: Sequence[Outcome]) -> list[Line]:
    """All places of a study with a finished run."""
    found: dict[tuple[str, ...], Line] = {}
    for cell, outcome in zip(made, outcomes, strict=True):
        place = {axis: value for axis, value in cell.place.items() if axis != "seed"}
        settings = flat(decisive_settings(cell.settings))
        seed = settings.pop("seed")
        line = found.setdefault(tuple(place.values()), Line(place, Arm(settings, {})))
        if isinstance(outcome, RunResult):
            line.arm.runs[seed] = outcome
    return [line for line in found.values() if line.arm.runs]


def study_table(lines: Sequence[Line]) -> list[Json]:
    """The rows of a sweep, with R_q of what was stored, what R_q picks, and differences."""
    rows = []
    for line in lines:
        base = originals(line, lines)
        gain, kept = (
            None if base is None else difference(line.arm.numbers(number), base.arm.numbers(number))
            for number in (score, initial_forgetting)
        )
        about = {
            "volume_ratio": line.mean(stored_ratio),
            "picks": line.picks,
            "initial_forgetting": line.mean(initial_forgetting),
            "originals": None if base is None else base.name(),
            "difference": as_json(gain),
            "initial_forgetting_difference": as_json(kept),
        }
        rows.append(line.place | averages(line.runs) | about)
    return rows


def as_json(found: Difference | None) -> Json | None:
    return None if found is None else found._asdict()


def originals(line: Line, lines: Sequence[Line]) -> Line | None:
    """The line with originals to compare a line with."""
    base = baseline(line.arm, [one.arm for one in lines])
    return next((one for one in lines if one.arm is base), None)


def stored_ratio(run: RunResult) -> float | None:
    """R_q of the stored quality, averaged over the phases; None if it was not measured."""
    chosen, phases = run.quality, len(run.accuracy)
    qualities = chosen if isinstance(chosen, list) else [chosen] * phases
    measured = {(row["codec"], row["quality"]): row["by_phase"] for row in run.volume_ratios}
    stored = enumerate(zip(run.codecs, qualities, strict=False))
    values = [measured[pair][phase] for phase, pair in stored if pair in measured]
    known = [value for value in values if value is not None]
    return mean(known) if known else None
