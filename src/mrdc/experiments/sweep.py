"""`sweep`: a grid of runs in parallel processes, with means and deviations over seeds."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from threading import Event
from typing import IO, Any

from mrdc._utils.errors import OutputError, UsageError
from mrdc._utils.files import output_errors, whole_file
from mrdc._utils.ranks import machine_cores
from mrdc.experiments.check import check
from mrdc.experiments.config import at, grid, named
from mrdc.experiments.folder import finished
from mrdc.experiments.picked import with_picked_quality
from mrdc.experiments.settings import AnySettings
from mrdc.training.results import RunResult

CELL = "cell.json"
INTERRUPTED = 130  # exit code


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its place in the grid, its settings and its folder."""

    place: dict[str, str]
    recipe: str
    settings: AnySettings
    folder: Path


@dataclass(frozen=True)
class Failure:
    """A run that failed, and its last words."""

    folder: str
    error: str


Outcome = RunResult | Failure
Report = Callable[[Cell, Outcome | None, str], None]  # a run that starts (None) or ends; "2 of 6"


def no_report(cell: Cell, outcome: Outcome | None, count: str) -> None:
    """Report nothing."""


def cells(
    name: str, base: Callable[[str], AnySettings], axes: dict[str, list[str]], out: Path
) -> list[Cell]:
    """Every point of the grid; `base` is a recipe with the flags of the sweep applied."""
    made = []
    for values in product(*axes.values()):
        place = dict(zip(axes, values, strict=True))
        recipe = place.get("recipe", name)
        settings = base(recipe)
        for axis, value in place.items():
            if axis == "out":
                raise UsageError("--grid out: not an axis; give --out to the sweep")
            if axis != "recipe":
                settings = at(settings, axis, value)
        if not settings.data:
            raise UsageError(f"{recipe} needs --data DATA, or --grid data=DATA,DATA")
        settings = with_picked_quality(settings)
        check(settings)
        label = ",".join(f"{axis.rpartition('.')[2]}={value}" for axis, value in place.items())
        folder = out / re.sub(r"[^\w.,=+-]", "_", label)
        made.append(Cell(place, named(recipe).recipe, settings, folder))
    refuse_equal(made)
    folders = [cell.folder for cell in made]
    return [
        replace(cell, folder=folder.with_name(f"{folder.name}-{number}"))
        if folders.index(folder) < number
        else cell
        for number, (cell, folder) in enumerate(zip(made, folders, strict=True))
    ]


def refuse_equal(made: Sequence[Cell]) -> None:
    """Refuse a grid in which two places are the same run: their scores are one finding, not two."""
    seen: dict[str, str] = {}
    for cell in made:
        label = " ".join(f"{axis}={value}" for axis, value in cell.place.items())
        settings = json.dumps(asdict(replace(cell.settings, out=None)), default=str)
        if seen.setdefault(settings, label) != label:
            raise UsageError(f"{seen[settings]} and {label} are the same run")


def sweep(made: Sequence[Cell], jobs: int | None, report: Report = no_report) -> list[Outcome]:
    """Run all cells that are not finished, several at a time; returns every outcome, in order."""
    limit = usual_jobs(len(made)) if jobs is None else jobs
    if limit < 1:
        raise UsageError(f"--jobs must be 1 or more, got {limit}")
    numbers = itertools.count(1)

    def one(cell: Cell) -> Outcome:
        count = f"{next(numbers)} of {len(made)}"
        report(cell, None, count)
        outcome = _run(cell, life)
        if not ending.is_set():
            report(cell, outcome, count)
        return outcome

    ending = Event()
    reading, writing = os.pipe()  # runs end when it is closed: by an error, or with this process
    with open(reading) as life, ThreadPoolExecutor(limit) as pool, open(writing, "w"):
        try:
            return list(pool.map(one, made))
        except BaseException:
            ending.set()
            raise


def _run(cell: Cell, life: IO[str]) -> Outcome:
    """Run a cell in a process that lives while `life` is open."""
    file = cell.folder.with_name(f"{cell.folder.name}.{CELL}")
    try:
        with output_errors(cell.folder):
            cell.folder.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as written:
            written.write(json.dumps(_as_json(cell)).encode())
    except OutputError as error:
        return Failure(str(cell.folder), str(error))
    command = [sys.executable, "-m", "mrdc.cli.worker", "run", str(file), "--json"]
    command += ["--out", str(cell.folder)]
    child = subprocess.run(command, stdin=life, capture_output=True, text=True)
    if child.returncode:
        with suppress(OSError):  # not empty
            cell.folder.rmdir()
        if child.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        why = last.removeprefix("mrdc: ").removeprefix(f"{cell.folder}: ")
        return Failure(str(cell.folder), why)
    return finished(cell.folder) or Failure(str(cell.folder), "the run left no result")


def _as_json(cell: Cell) -> dict[str, Any]:
    plain = json.loads(json.dumps(asdict(cell.settings), default=str))
    return {"recipe": cell.recipe} | {
        name: value for name, value in plain.items() if name not in ("out", "method", "plugin")
    }


def usual_jobs(count: int) -> int:
    """Runs at a time: as many as RAM and GPU memory allow, at 8 GB each; one without a GPU."""
    import torch

    from mrdc.training.feed import free_memory

    if not torch.cuda.is_available():  # they would only compete for the cores
        return 1
    places = (free_memory(torch.device(kind)) >> 33 for kind in ("cpu", "cuda"))
    return max(1, min(count, machine_cores(), *places))


Place = tuple[tuple[str, str], ...]


def by_place(made: Sequence[Cell], outcomes: Sequence[Outcome]) -> dict[Place, list[RunResult]]:
    """Results of runs that differ only in their seed, by their place in the grid."""
    groups: dict[Place, list[RunResult]] = {}
    for cell, outcome in zip(made, outcomes, strict=True):
        place = tuple((axis, value) for axis, value in cell.place.items() if axis != "seed")
        if isinstance(outcome, RunResult):
            groups.setdefault(place, []).append(outcome)
    return groups


def table(made: Sequence[Cell], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row for all runs that differ only in their seed: means and sample deviations."""
    return [dict(place) | averages(runs) for place, runs in by_place(made, outcomes).items()]


def averages(runs: Sequence[RunResult]) -> dict[str, Any]:
    """Means and sample deviations of runs that differ only in their seed."""
    scores = [run.average_incremental_accuracy for run in runs]
    row: dict[str, Any] = {
        "runs": len(runs),
        "average_incremental_accuracy": mean(scores),
        "deviation": deviation(scores),
        "accuracy": list(map(mean, zip(*(run.accuracy for run in runs), strict=True))),
        "last_accuracy": mean(run.accuracy[-1] for run in runs),
        "average_forgetting": mean(run.average_forgetting for run in runs),
        "quality": sorted({quality_name(run.quality) for run in runs}),
        "items": mean(run.memory.items for run in runs),
        "seconds": mean(run.seconds for run in runs),
    }
    for name in ("ap", "ap50", "ap75"):
        values = [getattr(run, name) for run in runs]
        if all(values):
            row[name] = mean(value[-1] for value in values)
    if "ap" in row:
        row["ap_deviation"] = deviation([run.ap[-1] for run in runs if run.ap])
    return row


def quality_name(chosen: int | list[int | None] | None) -> str:
    """75, original, or 75/original/50 if it was chosen after every phase."""
    each = chosen if isinstance(chosen, list) else [chosen]
    return "/".join("original" if quality is None else str(quality) for quality in each)


def deviation(values: Sequence[float]) -> float | None:
    """Sample deviation; None for a single value."""
    return stdev(values) if len(values) > 1 else None


def run_sweep(
    name: str,
    base: Callable[[str], AnySettings],
    entries: Sequence[str],
    out: Path,
    jobs: int | None,
    report: Report = no_report,
) -> dict[str, Any]:
    """Run a grid; returns what the command prints, also in sweep.json unless a run failed."""
    made = cells(name, base, grid(entries), out)
    outcomes = sweep(made, jobs, report)
    found = {
        "folder": str(out),
        "table": table(made, outcomes),
        "runs": [one.to_json() for one in outcomes if isinstance(one, RunResult)],
        "failed": [asdict(one) for one in outcomes if isinstance(one, Failure)],
    }
    if not found["failed"]:
        with whole_file(out / "sweep.json") as file:
            file.write(json.dumps(found, indent=1).encode())
    return found
