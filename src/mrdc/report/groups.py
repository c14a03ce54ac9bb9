"""Runs that differ only in their seed, and grids of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from mrdc.report.runs import RunRecord, quality_order


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed (and in their folder)."""

    label: str
    runs: list[RunRecord]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def scores(self) -> list[float]:
        return [run.score for run in self.runs]

    def mean(self, number: Callable[[RunRecord], float]) -> float:
        return mean(map(number, self.runs))

    def text(self, number: Callable[[RunRecord], float | None]) -> str:
        """Mean and spread over the runs where a number is known."""
        return with_spread([number(run) for run in self.runs])


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 for one seed."""
    return stdev(values) if len(values) > 1 else 0.0


def with_spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation of the known values, as 60.00 ± 7.07; empty without any."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{mean(known):.2f}" + (f" ± {spread(known):.2f}" if len(known) > 1 else "")


def group_by_seed(runs: Sequence[RunRecord]) -> list[Group]:
    """Group runs that differ only in their seed; unfinished runs form groups of their own.

    If a seed was run twice, the first run counts. Labels name phases and budgets only where
    runs differ in them, and add the settings that distinguish groups of equal labels.
    """
    found: dict[str, dict[object, RunRecord]] = {}
    for run in runs:
        key = as_key([run.name, run.decisive, run.result is None])
        found.setdefault(key, {}).setdefault(run.settings["seed"], run)
    groups = [list(by_seed.values()) for by_seed in found.values()]
    budgets = len({run.memory.get("budget") for run in runs}) > 1
    phases = len({run.settings["phases"] for run in runs}) > 1

    def label(run: RunRecord) -> str:
        return run.label(budgets) + (f", {run.settings['phases']} phases" if phases else "")

    alike: dict[str, list[RunRecord]] = {}
    for first, *_ in groups:
        alike.setdefault(label(first), []).append(first)

    def whole(run: RunRecord) -> str:
        so_far = "" if run.result else f", unfinished after {len(run.phases)}"
        return label(run) + difference(run, alike[label(run)]) + so_far

    return [Group(whole(members[0]), members) for members in groups]


def as_key(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def difference(run: RunRecord, others: Sequence[RunRecord]) -> str:
    """Settings that distinguish a run from others with its label."""
    names = [
        name
        for name in run.decisive
        if name != "stream" and len({str(other.decisive.get(name)) for other in others}) > 1
    ]
    return "".join(f", {name} {_plain(run.decisive.get(name))}" for name in names)


def _plain(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def quality_grids(groups: Sequence[Group]) -> list[dict[str, Group]]:
    """Finished groups that differ only in quality, by quality; at least three make a grid."""
    grids: dict[str, dict[str, Group]] = {}
    for group in groups:
        run = group.first
        if run.result and run.quality:
            same = {k: v for k, v in run.decisive.items() if k != "memory.quality"}
            grids.setdefault(as_key(same), {}).setdefault(run.quality, group)
    return [
        {quality: grid[quality] for quality in sorted(grid, key=quality_order)}
        for grid in grids.values()
        if len(grid) > 2
    ]
