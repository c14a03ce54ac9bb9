"""Run folders as a page needs them, and groups of runs that differ only in their seed."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypedDict

from mrdc._utils.errors import DataError, MrdcError
from mrdc._utils.typed import fits
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.folder import CONFIG, RESULTS, parse_line
from mrdc.experiments.settings import data_name, decisive_settings, flat
from mrdc.memory.budget import parse_budget
from mrdc.training.results import PhaseResult, RunResult
from mrdc.training.settings import RunSettings

Json = dict[str, Any]
UNKNOWN: Json = {"data": "?", "method": "?", "phases": 0, "seed": 0, "memory": {}}
USUAL = {"codec": ("jpeg",), "select": ("herding", "random_choice"), "accounting": ("packed",)}
CHOOSING = ("memory.criterion", "memory.epsilon", "memory.rule")  # idle at a fixed quality
NO_RUN = "give folders written by `mrdc run`, `sweep` or `study`"


class Known(TypedDict):
    """Settings of a run that the page needs."""

    data: str
    method: str
    phases: int
    seed: int
    memory: Json


@dataclass(frozen=True)
class RunRecord:
    """One run folder."""

    path: Path
    settings: Json  # settings that determine its numbers
    about: Json  # name, commit, hardware and versions
    phases: list[PhaseResult]  # the finished ones
    result: RunResult | None  # None while the run is unfinished
    problems: list[str] = field(default_factory=list)  # what could not be read

    @property
    def name(self) -> str:
        """The recipe or preset."""
        return str((self.result.name if self.result else self.about.get("name")) or self.path.name)

    @property
    def data(self) -> str:
        return data_name(str(self.settings["data"]))

    @property
    def detects(self) -> bool:
        return "detector" in self.settings

    @property
    def accuracy(self) -> list[float]:
        """Percent after each phase; AP for detectors."""
        return [phase.accuracy for phase in self.phases]

    @property
    def average(self) -> float:
        return mean(self.accuracy)

    @property
    def score(self) -> float:
        """The number that runs are compared by: averaged accuracy, or the last AP."""
        return self.accuracy[-1] if self.detects else self.average

    @property
    def last(self) -> PhaseResult:
        return self.phases[-1]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def memory(self) -> Json:
        """The settings of the memory; "?" for those that a damaged file lacks."""
        return {"budget": "?", "quality": "?", **self.settings["memory"]}

    @property
    def replays(self) -> bool:
        return bool(self.phases and self.last.memory.budget_bytes)

    @property
    def quality(self) -> str:
        """The quality of all stored images, or "original"; empty if it changed between phases."""
        qualities = {phase.quality for phase in self.phases}
        if len(qualities) != 1:
            return ""
        (quality,) = qualities
        return "original" if quality is None else str(quality)

    @property
    def decisive(self) -> Json:
        """Settings that determine the numbers, except the seed (which also draws phases of scenes).

        A run of an older version gets the defaults of settings that it lacks.
        """
        without = ["seed", "stream"] if self.detects else ["seed"]
        if str(self.memory.get("quality")) not in ("auto", "dynamic"):
            without += CHOOSING
        known = defaults(self.detects) | flat(self.settings)
        return {k: v for k, v in known.items() if k not in without}

    def label(self, budget: bool = True) -> str:
        """A short description of everything but the seed."""
        parts = [self.name]
        if self.replays:
            parts += [str(self.memory["budget"])] if budget else []
            parts.append(f"quality {self.memory['quality']}")
        for key, usual in USUAL.items():
            value = plain(self.memory.get(key, "auto"))
            parts += [value] if value not in (*usual, "auto") else []
        if self.settings.get("order") in ("similar", "dissimilar"):
            parts.append(str(self.settings["order"]))
        return ", ".join(parts)


@cache
def defaults(detects: bool) -> Json:
    """Default settings, under dotted names."""
    return flat(decisive_settings(DetectSettings("") if detects else RunSettings("")))


def plain(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def find_runs(sources: Sequence[Path]) -> list[RunRecord]:
    """All runs in some folders and their sub-folders, in the order of their grid."""
    if not sources:
        raise DataError(f"no folder given; {NO_RUN}")
    folders: list[Path] = []
    for source in sources:
        source = source.parent if source.name == RESULTS else source
        if not source.exists():
            raise DataError(f"{source}: no such folder; {NO_RUN}")
        found = sorted(path.parent for path in source.resolve().rglob(RESULTS))
        found = [folder for folder in found if (folder / CONFIG).exists()]
        if not found:
            raise DataError(
                f"{source}: contains no run (a run folder has {CONFIG} and {RESULTS}); {NO_RUN}"
            )
        folders += [folder for folder in found if folder not in folders]
    return in_grid_order([read_run(folder) for folder in folders])


def in_grid_order(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Sort by data and name as given, then by phases, budget, quality (best first) and seed."""
    given = list(dict.fromkeys((run.data, run.name) for run in runs))

    def key(run: RunRecord) -> tuple[object, ...]:
        place = given.index((run.data, run.name))
        budget, quality = run.memory.get("budget"), run.memory.get("quality")
        numbers = int(run.settings["phases"]), budget_order(budget), quality_order(str(quality))
        return place, *numbers, int(run.settings["seed"])

    return sorted(runs, key=key)


def budget_order(budget: object) -> tuple[str, float]:
    try:
        found = parse_budget(str(budget), original_bytes=1.0)
    except MrdcError:
        return "", 0.0
    return found.unit, found.amount


def quality_order(quality: str) -> tuple[int, int]:
    """Originals first, then qualities from best to worst, then rules such as "auto"."""
    if quality == "original":
        return 0, 0
    return (1, -int(quality)) if re.fullmatch(r"\d+", quality) else (2, 0)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; damage is noted in `problems`."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        settings = UNKNOWN | config.pop("settings")
        if not fits(settings, Known):
            raise ValueError("the settings are not those of a run")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{CONFIG} cannot be read ({error}), so this run is left out"
        return RunRecord(folder, UNKNOWN, {}, [], None, [problem])
    problems: list[str] = []
    phases: dict[int, PhaseResult] = {}
    result: RunResult | None = None
    for number, line in enumerate((folder / RESULTS).read_bytes().splitlines(), 1):
        event = parse_line(line)
        try:
            if event is None:
                raise DataError("not a JSON object")
            if event.get("event") == "phase":
                phase = PhaseResult.from_json(event)
                phases[phase.phase] = phase
            elif "event" not in event:
                result = RunResult.from_json(event)
        except DataError as error:
            problems.append(f"line {number} of {RESULTS} cannot be read ({error})")
    if sorted(phases) != list(range(len(phases))):
        problems.append(f"{RESULTS} lacks phases, so this run is left out")
        phases, result = {}, None
    if len({len(phase.candidates) for phase in phases.values()}) > 1:
        problems.append(f"{RESULTS} lacks candidates, so this run is left out")
        phases, result = {}, None
    done = [phases[number] for number in sorted(phases)]
    return RunRecord(folder, settings, config, done, result if done else None, problems)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed (and in their folder)."""

    label: str
    runs: list[RunRecord]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def scores(self) -> dict[int, float]:
        """Scores by seed."""
        return {int(run.settings["seed"]): run.score for run in self.runs}

    @property
    def results(self) -> dict[int, RunResult]:
        """Results of finished runs by seed."""
        return {int(run.settings["seed"]): run.result for run in self.runs if run.result}

    def mean(self, number: Callable[[RunRecord], float]) -> float:
        return mean(map(number, self.runs))

    def text(self, number: Callable[[RunRecord], float | None]) -> str:
        """Mean and spread over the runs where a number is known."""
        return with_spread([number(run) for run in self.runs])


def named_data(groups: Sequence[Group]) -> list[Json]:
    """The first columns of a table of groups; the data only if it differs."""
    several = len({group.first.data for group in groups}) > 1
    return [
        {"run": group.label} | ({"data": group.first.data} if several else {}) for group in groups
    ]


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 for one seed."""
    return stdev(values) if len(values) > 1 else 0.0


def with_spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation of the known values, as 60.00 ± 7.07; empty without any."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{mean(known):.2f}" + (f" ± {spread(known):.2f}" if len(known) > 1 else "")


def by_seed(runs: Sequence[RunRecord]) -> list[Group]:
    """Group runs that differ only in their seed; unfinished runs form groups of their own.

    If a seed was run twice, the first run counts. Labels name phases and budgets only where
    runs differ in them, and add the settings that distinguish groups of equal labels.
    """
    found: dict[str, dict[object, RunRecord]] = {}
    for run in runs:
        key = json.dumps([run.name, run.decisive, not run.result], sort_keys=True, default=str)
        found.setdefault(key, {}).setdefault(run.settings["seed"], run)
    groups = [list(seeds.values()) for seeds in found.values()]
    budgets = len({run.memory.get("budget") for run in runs}) > 1
    phases = len({run.settings["phases"] for run in runs}) > 1
    labels = [
        run.label(budgets) + (f", {run.settings['phases']} phases" if phases else "")
        for run, *_ in groups
    ]
    made = []
    for label, members in zip(labels, groups, strict=True):
        alike = [other[0] for other, its in zip(groups, labels, strict=True) if its == label]
        made.append(Group(label + difference(members[0], alike), members))
    return made


def difference(run: RunRecord, others: Sequence[RunRecord]) -> str:
    """Settings that distinguish a run from others with its label, and whether it is unfinished."""
    same_data = [other for other in others if other.data == run.data]
    said = f", {run.data}" if len(same_data) < len(others) else ""
    for name, value in run.decisive.items():
        if name != "stream" and len({str(other.decisive.get(name)) for other in same_data}) > 1:
            said += f", {name} {plain(value)}"
    return said + ("" if run.result else f", unfinished after {len(run.phases)}")


def quality_grids(groups: Sequence[Group]) -> list[dict[str, Group]]:
    """Finished groups that differ only in quality, by quality; at least three make a grid."""
    grids: dict[str, dict[str, Group]] = {}
    for group in groups:
        run = group.first
        if run.result and run.quality:
            same = {k: v for k, v in run.decisive.items() if k != "memory.quality"}
            key = json.dumps(same, sort_keys=True, default=str)
            grids.setdefault(key, {}).setdefault(run.quality, group)
    large = [grid for grid in grids.values() if len(grid) > 2]
    return [{name: grid[name] for name in sorted(grid, key=quality_order)} for grid in large]
