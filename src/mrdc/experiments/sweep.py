"""`sweep`: a grid of runs in parallel processes, and a table of means and deviations."""

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
from typing import IO, Any

from mrdc._utils.errors import OutputError, UsageError
from mrdc._utils.files import output_errors, whole_file
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.config import at, grid, named
from mrdc.experiments.run import check
from mrdc.experiments.scenes import check_detect
from mrdc.experiments.settings import AnySettings

CELL = "cell.json"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: where it stands in the grid, and its settings."""

    place: dict[str, str]
    recipe: str
    settings: AnySettings
    folder: Path


Tell = Callable[[Cell, dict[str, Any] | None], None]  # of a run that begins: None; or its result


def cells(
    name: str,
    base: Callable[[str], AnySettings],
    axes: dict[str, list[str]],
    out: Path,
) -> list[Cell]:
    """Every point of the grid.

    Args:
        base: the settings of a recipe with the flags of the sweep on top; the axis
            `recipe` goes through recipes.

    Raises:
        UsageError: an axis that is no setting, a value that it does not take, or no data.
    """
    made = []
    for values in product(*axes.values()):
        place = dict(zip(axes, values, strict=True))
        recipe = place.get("recipe", name)
        settings = base(recipe)
        for axis, value in place.items():
            if axis == "out":
                raise UsageError("--grid out: no axis; give --out to the sweep")
            if axis != "recipe":
                settings = at(settings, axis, value)
        if not settings.data:
            raise UsageError(f"{recipe} needs --data DATA, or --grid data=DATA,DATA")
        if isinstance(settings, DetectSettings):
            check_detect(settings)
        else:
            check(settings)
        label = ",".join(f"{axis.rpartition('.')[2]}={value}" for axis, value in place.items())
        made.append(Cell(place, named(recipe).recipe, settings, out / _file_name(label)))
    folders = [cell.folder for cell in made]
    return [
        replace(cell, folder=folder.with_name(f"{folder.name}-{number}"))
        if folders.index(folder) < number
        else cell
        for number, (cell, folder) in enumerate(zip(made, folders, strict=True))
    ]


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.,=+-]", "_", label)


def sweep(
    made: Sequence[Cell],
    jobs: int | None,
    tell: Tell = lambda cell, result: None,
) -> list[dict[str, Any]]:
    """Run all cells that are not finished, some at a time; every result, in order.

    Of a run that failed it is {"folder": ..., "error": its last words}; the others go on.
    """
    limit = usual_jobs(len(made)) if jobs is None else jobs
    if limit < 1:
        raise UsageError(f"--jobs must be 1 or more, got {limit}")
    reading, writing = os.pipe()  # runs end when it is closed: by an error, or with this process
    with open(reading) as life, ThreadPoolExecutor(limit) as pool, open(writing, "w"):
        return list(pool.map(lambda cell: _run(cell, tell, life), made))


def _run(cell: Cell, tell: Tell, life: IO[str]) -> dict[str, Any]:
    """One run in a process that lives while `life` is open; its result, or how it failed."""
    tell(cell, None)
    file = cell.folder.with_name(f"{cell.folder.name}.{CELL}")
    try:
        with output_errors(cell.folder):
            cell.folder.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as written:
            written.write(json.dumps(_as_json(cell)).encode())
    except OutputError as error:
        return {"folder": str(cell.folder), "error": str(error)}
    command = [sys.executable, "-m", "mrdc.cli.worker", "run", str(file), "--json"]
    command += ["--out", str(cell.folder)]
    child = subprocess.run(command, stdin=life, capture_output=True, text=True)
    if child.returncode:
        with suppress(OSError):  # it holds something
            cell.folder.rmdir()
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return {"folder": str(cell.folder), "error": last.removeprefix("mrdc: ")}
    result: dict[str, Any] = json.loads(child.stdout)
    tell(cell, result)
    return result


def _as_json(cell: Cell) -> dict[str, Any]:
    values = asdict(cell.settings)
    values = {name: value for name, value in values.items() if name not in ("out", "method")}
    plain = json.loads(json.dumps(values, default=str))
    return {"recipe": cell.recipe, **plain}


def usual_jobs(count: int) -> int:
    """As many runs at once as the memory allows: about 8 GB each, on a GPU of that, too.

    Without a GPU they would only share the cores: one at a time.
    """
    import torch

    from mrdc.training.feed import free_memory

    if not torch.cuda.is_available():
        return 1
    places = (free_memory(torch.device(kind)) >> 33 for kind in ("cpu", "cuda"))
    return max(1, min(count, os.cpu_count() or 1, *places))


Place = tuple[tuple[str, str], ...]


def grouped(
    made: Sequence[Cell], results: Sequence[dict[str, Any]]
) -> dict[Place, list[dict[str, Any]]]:
    """Results of runs that differ only in their seed, by their place; not of failed ones."""
    groups: dict[Place, list[dict[str, Any]]] = {}
    for cell, result in zip(made, results, strict=True):
        place = tuple((axis, value) for axis, value in cell.place.items() if axis != "seed")
        if "error" not in result:
            groups.setdefault(place, []).append(result)
    return groups


def table(made: Sequence[Cell], results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for all runs that differ only in their seed: means and sample deviations."""
    rows = []
    for place, runs in grouped(made, results).items():
        scores = [run["average_incremental_accuracy"] for run in runs]
        found: dict[str, Any] = {}
        if all("ap" in run for run in runs):
            found = {name: mean(run[name][-1] for run in runs) for name in ("ap", "ap50", "ap75")}
            found["ap_deviation"] = deviation([run["ap"][-1] for run in runs])
        rows.append(
            {
                **dict(place),
                "runs": len(runs),
                "average_incremental_accuracy": mean(scores),
                "deviation": deviation(scores),
                "accuracy": list(map(mean, zip(*(run["accuracy"] for run in runs), strict=True))),
                "last_accuracy": mean(run["accuracy"][-1] for run in runs),
                "average_forgetting": mean(run["average_forgetting"] for run in runs),
                "quality": sorted({quality_name(run["quality"]) for run in runs}),
                "items": mean(run["memory"]["items"] for run in runs),
                "seconds": mean(run["seconds"] for run in runs),
                **found,
            }
        )
    return rows


def quality_name(chosen: int | list[int | None] | None) -> str:
    """75, original, or 75/original/50 where it was chosen anew after every phase."""
    each = chosen if isinstance(chosen, list) else [chosen]
    return "/".join(str(quality or "original") for quality in each)


def deviation(values: Sequence[float]) -> float | None:
    """Of a sample; None of a single value."""
    return stdev(values) if len(values) > 1 else None


def run_sweep(
    name: str,
    base: Callable[[str], AnySettings],
    entries: Sequence[str],
    out: Path,
    jobs: int | None,
    tell: Tell = lambda cell, result: None,
) -> dict[str, Any]:
    """A grid of runs; what the command prints. Also in sweep.json in `out`, if none failed."""
    made = cells(name, base, grid(entries), out)
    results = sweep(made, jobs, tell)
    ended = [result for result in results if "error" not in result]
    failed = [result for result in results if "error" in result]
    rows = table(made, results)
    found = {"folder": str(out), "table": rows, "runs": ended, "failed": failed}
    if not failed:
        with whole_file(out / "sweep.json") as file:
            file.write(json.dumps(found, indent=1).encode())
    return found
