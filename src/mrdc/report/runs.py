"""Run folders, as far as a page needs them: finished, still going, or damaged."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mrdc._utils.errors import DataError
from mrdc.experiments.folder import CONFIG, RESULTS, flat

Json = dict[str, Any]
PHASE = ("accuracy", "quality", "memory", "candidates", "trained_images", "seconds", "parts")


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        settings: what decided its numbers.
        about: commit, hardware and versions.
        phases: what was measured after each phase that is finished.
        result: the last line of a finished run; None while it is going.
        problems: what could not be read.
    """

    path: Path
    settings: Json
    about: Json
    phases: list[Json]
    result: Json | None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The recipe or preset; the method where folders of old versions have not kept it."""
        found = (self.result or self.about).get("name")
        return str(found or self.settings.get("method", "?"))

    @property
    def data(self) -> str:
        return Path(str(self.settings.get("data", "?"))).name

    @property
    def detects(self) -> bool:
        return "detector" in self.settings

    @property
    def accuracy(self) -> list[float]:
        """Percent after each phase; AP of a detector."""
        return [float(phase["accuracy"]) for phase in self.phases]

    @property
    def average(self) -> float:
        return mean(self.accuracy)

    @property
    def seconds(self) -> float:
        """Of all phases so far."""
        return sum(float(phase["seconds"]) for phase in self.phases)

    @property
    def memory(self) -> Json:
        """The settings of the memory."""
        found: Json = self.settings.get("memory", {})
        return found

    def label(self, budget: bool = True) -> str:
        """What runs that differ only in their seed share, for people."""
        parts = [self.name]
        if self.memory.get("budget") and self._replays:
            parts += [str(self.memory["budget"])] if budget else []
            parts.append(f"quality {self.memory['quality']}")
        select = "random_choice" if self.detects else "herding"
        usual = {"codec": "jpeg", "select": select, "accounting": "packed"}
        for key, value in usual.items():
            if self.memory.get(key) not in (value, "auto", None):
                parts.append(str(self.memory[key]))
        if self.settings.get("order") in ("similar", "dissimilar"):
            parts.append(str(self.settings["order"]))
        return ", ".join(parts)

    @property
    def decisive(self) -> Json:
        """What decides the numbers, but for the seed; phases of scenes depend on that, too."""
        without = ("seed", "stream") if self.detects else ("seed",)
        return {k: v for k, v in flat(self.settings).items() if k not in without}

    @property
    def _replays(self) -> bool:
        return bool(self.phases and self.phases[-1]["memory"]["budget_bytes"])


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed (and in where they lie)."""

    label: str
    runs: list[Run]

    @property
    def first(self) -> Run:
        return self.runs[0]

    def mean(self, values: Sequence[float]) -> str:
        """With the deviation over seeds."""
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        return f"{mean(values):.2f}{spread}"


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in nothing but the seed, in the order in which they were given.

    A seed that was run again counts once, as it was given first; unfinished runs stand apart.
    Labels tell the phases where runs differ in them, no budget that all share, and
    whatever else two groups of one label differ in.
    """
    found: dict[str, dict[object, Run]] = {}
    for run in runs:
        what = [run.name, run.decisive, run.result is None]
        key = json.dumps(what, sort_keys=True, default=str)
        found.setdefault(key, {}).setdefault(run.settings.get("seed"), run)
    groups = [list(by_seed.values()) for by_seed in found.values()]
    budgets = len({run.memory.get("budget") for run in runs}) > 1
    phases = len({run.settings.get("phases") for run in runs}) > 1

    def label(run: Run) -> str:
        return run.label(budgets) + (f", {run.settings.get('phases')} phases" if phases else "")

    alike: dict[str, list[Run]] = {}
    for first, *_ in groups:
        alike.setdefault(label(first), []).append(first)

    def whole(run: Run) -> str:
        so_far = "" if run.result else f", unfinished after {len(run.phases)}"
        return label(run) + difference(run, alike[label(run)]) + so_far

    return [Group(whole(members[0]), members) for members in groups]


def difference(run: Run, others: Sequence[Run]) -> str:
    """What a run has otherwise than others of its label, for people."""
    names = [
        name
        for name in run.decisive
        if name != "stream" and len({str(other.decisive.get(name)) for other in others}) > 1
    ]
    return "".join(f", {name} {_plain(run.decisive.get(name))}" for name in names)


def _plain(value: object) -> str:
    """A value of settings, for people."""
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def find_runs(sources: Sequence[Path]) -> list[Run]:
    """All runs in some folders, in their sub-folders too.

    Raises:
        DataError: nothing there, or no run in it.
    """
    if not sources:
        raise DataError("no folder given; give folders that `mrdc run`, `sweep` or `study` made")
    folders: list[Path] = []
    for source in sources:
        source = source.parent if source.name == RESULTS else source
        if not source.exists():
            raise DataError(f"{source}: no such folder; give folders that `mrdc run` made")
        found = sorted(path.parent for path in source.resolve().rglob(RESULTS))
        found = [folder for folder in found if (folder / CONFIG).exists()]
        if not found:
            raise DataError(
                f"{source}: no run in it (a run folder has {CONFIG} and {RESULTS}); give folders "
                "that `mrdc run`, `sweep` or `study` made"
            )
        folders += [folder for folder in found if folder not in folders]
    return [read_run(folder) for folder in folders]


def read_run(folder: Path) -> Run:
    """A run folder; lines that cannot be read are told, not fatal."""
    problems: list[str] = []
    try:
        config = json.loads((folder / CONFIG).read_text())
        if not isinstance(config, dict):
            raise ValueError("no settings in it")
    except (OSError, ValueError) as error:
        config = {}
        problems.append(f"{CONFIG} cannot be read ({error})")
    phases: dict[int, Json] = {}
    result: Json | None = None
    for number, line in enumerate((folder / RESULTS).read_bytes().splitlines(), 1):
        try:
            event = json.loads(line)
            if event.get("event") == "phase":
                phases[int(event["phase"])] = {key: event[key] for key in PHASE} | event
            elif "average_incremental_accuracy" in event:
                result = event
        except (ValueError, KeyError, TypeError, AttributeError):
            problems.append(f"line {number} of {RESULTS} cannot be read")
    settings = config.pop("settings", {})
    done = [phases[number] for number in sorted(phases)]
    if not isinstance(settings, dict) or [p["phase"] for p in done] != list(range(len(done))):
        problems.append(f"{RESULTS} lacks phases, so this run is left out")
        settings, done, result = {}, [], None
    return Run(folder, settings, config, done, result, problems)
