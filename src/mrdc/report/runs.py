"""Run folders as a page needs them: finished, still running, or damaged."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from mrdc._utils.errors import DataError, MrdcError
from mrdc.experiments.folder import CONFIG, RESULTS
from mrdc.experiments.settings import flat
from mrdc.memory.budget import parse_budget
from mrdc.training.results import PhaseResult, RunResult

Json = dict[str, Any]
UNKNOWN: Json = {"data": "?", "method": "?", "phases": 0, "seed": 0, "memory": {}}
USUAL = {"codec": ("jpeg",), "select": ("herding", "random_choice"), "accounting": ("packed",)}
NO_RUN = "give folders written by `mrdc run`, `sweep` or `study`"


@dataclass(frozen=True)
class RunRecord:
    """One run folder.

    Attributes:
        settings: the settings that determine its numbers.
        about: name, commit, hardware and versions.
        phases: the finished phases.
        result: None while the run is unfinished.
        problems: what could not be read.
    """

    path: Path
    settings: Json
    about: Json
    phases: list[PhaseResult]
    result: RunResult | None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The recipe or preset."""
        return str((self.result.name if self.result else self.about.get("name")) or self.path.name)

    @property
    def data(self) -> str:
        return Path(str(self.settings["data"])).name

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
        """The settings of the memory."""
        found: Json = self.settings["memory"]
        return found

    @property
    def replays(self) -> bool:
        return bool(self.phases and self.last.memory.budget_bytes)

    @property
    def quality(self) -> str:
        """The quality of all stored images, or "original"; empty if it changed between phases."""
        qualities = {phase.quality for phase in self.phases}
        return str(qualities.pop() or "original") if len(qualities) == 1 else ""

    @property
    def decisive(self) -> Json:
        """Settings that determine the numbers, except the seed; it also draws phases of scenes."""
        without = ("seed", "stream") if self.detects else ("seed",)
        return {k: v for k, v in flat(self.settings).items() if k not in without}

    def label(self, budget: bool = True) -> str:
        """A short description of everything but the seed."""
        parts = [self.name]
        if self.replays:
            parts += [str(self.memory["budget"])] if budget else []
            parts.append(f"quality {self.memory['quality']}")
        for key, usual in USUAL.items():
            if self.memory.get(key, "auto") not in (*usual, "auto"):
                parts.append(str(self.memory[key]))
        if self.settings.get("order") in ("similar", "dissimilar"):
            parts.append(str(self.settings["order"]))
        return ", ".join(parts)


def find_runs(sources: Sequence[Path]) -> list[RunRecord]:
    """All runs in some folders and their sub-folders, in the order of their grid.

    Raises:
        DataError: a missing folder, or one without runs.
    """
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
    problems: list[str] = []
    config: Json = {}
    try:
        config = json.loads((folder / CONFIG).read_text())
        settings = UNKNOWN | config.pop("settings")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{CONFIG} cannot be read ({error}), so this run is left out")
        return RunRecord(folder, UNKNOWN, {}, [], None, problems)
    phases: dict[int, PhaseResult] = {}
    result: RunResult | None = None
    for number, line in enumerate((folder / RESULTS).read_bytes().splitlines(), 1):
        try:
            event = json.loads(line)
            if event.get("event") == "phase":
                phases[int(event["phase"])] = PhaseResult.from_json(event)
            elif "event" not in event:
                result = RunResult.from_json(event)
        except (ValueError, KeyError, TypeError, AttributeError):
            problems.append(f"line {number} of {RESULTS} cannot be read")
    if sorted(phases) != list(range(len(phases))):
        problems.append(f"{RESULTS} lacks phases, so this run is left out")
        phases, result = {}, None
    done = [phases[number] for number in sorted(phases)]
    return RunRecord(folder, settings, config, done, result if done else None, problems)
