"""Everything that can be named on the command line."""

from rich.console import Console

from mrdc.cli.tables import styled, table
from mrdc.codec import CODECS
from mrdc.data import DATASETS
from mrdc.data.splits import KINDS
from mrdc.experiments.presets import (
    DETECTION,
    WITHOUT_MEMORY,
    method_names,
    preset,
    preset_names,
    recipe_names,
    scene_recipe_names,
)
from mrdc.experiments.studies import studies
from mrdc.planning.selection import SELECTORS
from mrdc.training.settings import RunSettings


def names() -> dict[str, list[str]]:
    """Names by kind."""
    for registry in (CODECS, SELECTORS, DATASETS):
        registry.discover()
    return {
        "methods": [*method_names(), *DETECTION],
        "codecs": list(CODECS),
        "selectors": list(SELECTORS),
        "datasets": [*DATASETS, "shapes", *(f"{kind}:FOLDER" for kind in KINDS)],
        "presets": [*recipe_names(), *scene_recipe_names(), *preset_names()],
        "studies": list(studies()),
    }


def study_lines() -> str:
    """Names and titles of the studies, one per line."""
    return "\n".join(f"{name}: {study.title}" for name, study in studies().items())


def listing(console: Console, found: dict[str, list[str]], what: str | None = None) -> None:
    if what == "presets":
        presets(console, found["presets"])
        return
    if what == "studies":
        rows = ((name, study.title, study.question) for name, study in studies().items())
        console.print(table("name<", "what<", "question<", rows=rows))
        return
    for kind, entries in found.items():
        if kind == "presets" and what is None:
            recipes = [*recipe_names(), *scene_recipe_names()]
            more = len(entries) - len(recipes)
            entries = [*recipes, f"and {more} with data and phases (`mrdc list presets`)"]
        if entries:
            console.print(styled((kind, "bold"), f"  {', '.join(entries)}"))


def presets(console: Console, names: list[str]) -> None:
    """Every recipe and preset, with the paper's number if it has one."""
    rows = table("name<", "what<", "the paper, %", "training<", "memory<")
    for name in names:
        found = preset(name)
        settings, memory = found.settings, found.settings.memory
        held = f"{memory.budget}, {memory.quality}"
        if isinstance(settings, RunSettings):
            train = settings.train
            training = f"{train.epochs} epochs, lr {train.lr:g}, {train.schedule}"
            held = "none" if settings.method in WITHOUT_MEMORY else held
        else:
            training = f"{settings.train.steps:,} steps, lr {settings.train.lr:g}"
            held = held if settings.replay == "memory" else settings.replay
        published = "" if found.paper is None else f"{found.paper:.2f}"
        rows.add_row(name, found.summary, published, training, held)
    console.print(rows)
