"""What can be named on the command line."""

from typing import Any

from rich.console import Console

from mrdc.cli.tables import table
from mrdc.codec import CODECS
from mrdc.data import DATASETS
from mrdc.data.splits import KINDS
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.presets import (
    DETECTION,
    PRESETS,
    RECIPES,
    SCENE_PRESETS,
    SCENE_RECIPES,
    TRAINING,
    WITHOUT_MEMORY,
    Preset,
)
from mrdc.experiments.studies import STUDIES
from mrdc.planning.selection import SELECTORS


def names() -> dict[str, list[str]]:
    """What can be named on the command line."""
    return {
        "methods": [*TRAINING, *DETECTION],
        "codecs": list(CODECS),
        "selectors": list(SELECTORS),
        "datasets": [*DATASETS, "shapes", *(f"{kind}:FOLDER" for kind in KINDS)],
        "presets": [*RECIPES, *SCENE_RECIPES, *PRESETS, *SCENE_PRESETS],
        "studies": list(STUDIES),
    }


def study_lines() -> str:
    """Names and titles of the studies, a line each."""
    return "\n".join(f"{name}: {study.title}" for name, study in STUDIES.items())


def listing(console: Console, found: dict[str, list[str]], what: str | None = None) -> None:
    if what == "presets":
        presets(console)
        return
    if what == "studies":
        studies(console)
        return
    for kind, entries in found.items():
        if kind == "presets" and what is None:
            entries = [
                *RECIPES,
                *SCENE_RECIPES,
                f"and {len(PRESETS) + len(SCENE_PRESETS)} with data and phases, rows of the paper "
                "among them (`mrdc list presets`)",
            ]
        if entries:
            console.print(f"[bold]{kind}[/bold]  {', '.join(entries)}")


def presets(console: Console) -> None:
    """Every recipe and preset, with the paper's number where it has one."""
    rows = table("name<", "what<", "the paper, %", "training<", "memory<")
    found: dict[str, Preset[Any]] = {**RECIPES, **SCENE_RECIPES, **PRESETS, **SCENE_PRESETS}
    for name, preset in found.items():
        settings, memory = preset.settings, preset.settings.memory
        held = f"{memory.budget}, {memory.quality}"
        if isinstance(settings, DetectSettings):
            training = f"{settings.train.steps:,} steps, lr {settings.train.lr:g}"
            held = held if settings.replay == "memory" else settings.replay
        else:
            train = settings.train
            training = f"{train.epochs} epochs, lr {train.lr:g}, {train.schedule}"
            held = "none" if settings.method in WITHOUT_MEMORY else held
        published = "" if preset.paper is None else f"{preset.paper:.2f}"
        rows.add_row(name, preset.summary, published, training, held)
    console.print(rows)


def studies(console: Console) -> None:
    """Every study, and what it asks."""
    rows = table("name<", "what<", "question<")
    for name, study in STUDIES.items():
        rows.add_row(name, study.title, study.question)
    console.print(rows)
