"""`study`: runs that answer a question. Studies in one folder share runs with equal settings."""

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from mrdc._utils.errors import SweepError, UsageError
from mrdc._utils.files import output_errors, whole_file
from mrdc.data.published import has_imagenet
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.choice import of_study
from mrdc.experiments.conclusions import answer
from mrdc.experiments.config import at, grid, named
from mrdc.experiments.folder import finished, read_kept
from mrdc.experiments.run import open_experiment
from mrdc.experiments.settings import AnySettings, decisive_settings, folder_name
from mrdc.experiments.studies import TEXTURES, Part, Study, find_study
from mrdc.experiments.study_table import study_lines, study_table
from mrdc.experiments.sweep import Cell, Failure, Report, cells, no_report, sweep
from mrdc.training.results import RunResult
from mrdc.training.settings import RunSettings

Json = dict[str, Any]
GROUPS = "textures-superclasses.csv"
FLAGS = {"data": "--data", "out": "--out", "seed": "--seeds", "superclasses": "--superclasses"}
# Settings that decide which images a run shows in which phase
STREAM = ("data", "holdout", "phases", "first", "order", "superclasses", "labelled", "unlabelled")


def run_study(
    name: str,
    out: Path,
    *,
    data: str | None = None,
    seeds: Sequence[int] = (0,),
    jobs: int | None = None,
    superclasses: Path | None = None,
    changes: Sequence[str] = (),
    report: Report = no_report,
) -> Json:
    """Run what is not finished yet; returns what the command prints, also in NAME.json.

    Without `data` it is small, on built-in data; `changes` are setting=value, for all runs.
    """
    study = find_study(name)
    made = study_cells(name, out, data, seeds, superclasses, changes)
    if study.superclasses and small(study, data) and superclasses is None:
        write_superclasses(out)
    if jobs is None and "time" in study.sections:
        jobs = 1  # parallel runs would slow each other down
    results = run_cells(made, jobs, report)
    lines = study_lines(made, [results[cell.folder] for cell in made])
    found = {
        "study": name,
        "title": study.title,
        "question": study.question,
        "answer": answer(lines, study.answers),
        "table": study_table(lines),
        "paper": study.paper,
        "page": str(out / f"{name}.html"),
        "runs": [str(folder) for folder in results],
    }
    if study.answers == "regret":
        found |= of_study(made, [results[cell.folder] for cell in made])
    with whole_file(out / f"{name}.json") as file:
        file.write(json.dumps(found, indent=1).encode())
    return found


def small(study: Study, data: str | None) -> bool:
    """Whether to use built-in data."""
    return data is None or (data == study.data and not Path(data).exists())


def study_cells(
    name: str,
    out: Path,
    data: str | None = None,
    seeds: Sequence[int] = (0,),
    superclasses: Path | None = None,
    changes: Sequence[str] = (),
) -> list[Cell]:
    """Every run, in a folder under `out` named after its settings."""
    study = find_study(name)
    parts = parts_on(study, data, superclasses)
    axes = dict.fromkeys(axis for part in parts for axis in grid(part.grid))
    if any(part.data for part in parts):
        axes = {"data": None, **axes}
    check_changes(changes, parts)
    if len(set(seeds)) < len(seeds) or not seeds:
        given = " ".join(map(str, seeds))
        raise UsageError(f"--seeds needs one or more numbers, each once, got {given or 'none'}")
    groups = None
    if parts is not study.imagenet:
        groups = superclass_file(name, study, out, data, superclasses)
    made: list[Cell] = []
    for part in parts:

        def base(recipe: str, part: Part = part) -> AnySettings:
            source = part.data + (data or study.data)
            settings: AnySettings = replace(named(recipe).preset.settings, data=source)
            if groups is not None and isinstance(settings, RunSettings):
                settings = replace(settings, superclasses=groups)
            settings = at(settings, "memory.criterion", "volume-ratio", name)  # as in the paper
            for entry in (*part.settings, *changes):
                dotted, _, text = entry.partition("=")
                settings = at(settings, dotted, text, "--set-all")
            return settings

        points = {**grid(part.grid), "seed": [str(seed) for seed in seeds]}
        made += cells(part.recipe, base, points, out)
    return [
        replace(
            cell,
            place={axis: cell.place.get(axis) or value_at(cell, axis) for axis in (*axes, "seed")},
            folder=out / "runs" / run_name(cell),
        )
        for cell in made
    ]


def parts_on(study: Study, data: str | None, superclasses: Path | None) -> tuple[Part, ...]:
    """The runs for some data."""
    if data is None or small(study, data):
        return study.small
    whole = study.imagenet and superclasses is None and has_imagenet(Path(data))
    return study.imagenet if whole else study.parts


def check_changes(changes: Sequence[str], parts: Sequence[Part]) -> None:
    """Refuse settings that have a flag or that the study varies."""
    axes = {axis for part in parts for axis in (*grid(part.grid), "recipe", "method")}
    for entry in changes:
        dotted, equals, text = entry.partition("=")
        if not equals or not dotted or not text:
            raise UsageError(f"--set-all {entry}: write it as train.epochs=30")
        if dotted in FLAGS:
            raise UsageError(f"--set-all {entry}: use {FLAGS[dotted]}")
        if dotted in axes:
            raise UsageError(
                f"--set-all {entry}: the study varies {dotted}; `mrdc sweep` takes any grid"
            )


def superclass_file(
    name: str, study: Study, out: Path, data: str | None, given: Path | None
) -> Path | None:
    """Absolute path of the CSV of class,superclass that a study reads."""
    if given is not None and not study.superclasses:
        raise UsageError(f"--superclasses {given}: the study {name} does not read superclasses")
    if given is not None:
        return given.resolve()
    if not study.superclasses:
        return None
    if small(study, data):
        return (out / GROUPS).resolve()
    assert data is not None
    if data.startswith("cifar100:"):  # has its own superclasses
        return None
    raise UsageError(
        f"the study {name} on {data} needs --superclasses FILE.csv: a line class,superclass for "
        "each class, such as robin,bird (ImageNet needs none)"
    )


def write_superclasses(out: Path) -> None:
    """Groups of the built-in textures that look alike."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("class", "superclass"))
    rows.writerows((name, group) for group, names in TEXTURES.items() for name in names)
    with output_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / GROUPS) as file:
        file.write(text.getvalue().encode())


def value_at(cell: Cell, axis: str) -> str:
    """The value of a cell on an axis that only other parts of the study vary."""
    return cell.recipe if axis == "recipe" else str(attrgetter(axis)(cell.settings))


def run_name(cell: Cell) -> str:
    """A name made of the settings: the same for every study that needs the run."""
    settings = cell.settings
    decisive = json.dumps(decisive_settings(settings), sort_keys=True)
    digest = hashlib.sha256(decisive.encode()).hexdigest()[:8]
    replay = f"-{settings.replay}" if isinstance(settings, DetectSettings) else ""
    name = f"{settings.method}{replay}-{settings.memory.quality}"
    return f"{folder_name(settings, name)}-{digest}"


def run_cells(made: Sequence[Cell], jobs: int | None, report: Report) -> dict[Path, RunResult]:
    """Results by folder; runs that are unfinished, or were made with other images, are run."""
    results: dict[Path, RunResult] = {}
    streams: dict[tuple[object, ...], str] = {}  # every stream is opened once
    for cell in made:
        key = (*(getattr(cell.settings, field, None) for field in STREAM),)
        if isinstance(cell.settings, DetectSettings):
            key = (*key, cell.settings.seed)
        if key not in streams:
            streams[key] = open_experiment(cell.settings).fingerprint()
        result, kept = finished(cell.folder), read_kept(cell.folder)
        if result is not None and kept is not None and kept.settings.get("stream") == streams[key]:
            results[cell.folder] = result
    unique = {cell.folder: cell for cell in made}
    for folder, result in results.items():
        report(unique[folder], result, "finished")
    left = [cell for folder, cell in unique.items() if folder not in results]
    failed: list[Failure] = []
    for cell, outcome in zip(left, sweep(left, jobs, report) if left else [], strict=True):
        if isinstance(outcome, Failure):
            failed.append(outcome)
        else:
            results[cell.folder] = outcome
    if failed:
        others = f" (`mrdc report {left[0].folder.parent}` shows the others)"
        raise SweepError(
            f"{len(failed)} of {len(left)} runs failed; the first, {failed[0].folder}: "
            f"{failed[0].error}" + (others if len(failed) < len(left) else "")
        )
    return {folder: results[folder] for folder in unique}
