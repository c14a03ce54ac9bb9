"""The studies, read from studies.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from mrdc._utils.registry import lookup

Row = tuple[object, ...]
# Patterns of the built-in textures that look alike, for the study of superclasses
TEXTURES = {
    "bands": ("texture00", "texture06", "texture07", "texture08", "texture09"),
    "grids": ("texture01", "texture02", "texture03", "texture04", "texture05"),
}


@dataclass(frozen=True)
class Part:
    """A grid of runs.

    Attributes:
        recipe: a recipe or preset.
        grid: axes, as for `mrdc sweep --grid`.
        settings: further settings, as setting=value.
    """

    recipe: str
    grid: tuple[str, ...]
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """Runs that answer a question, and what to show of them.

    Attributes:
        title: with the figure or appendix of the paper.
        question: the question of its page.
        parts: runs on the user's data.
        small: runs on built-in data.
        sections: sections of the page.
        paper: published numbers, a header row first.
        data: the built-in data.
        answers: how R_q is compared with training: the quality it picks from a grid, or the order
            of rows by the images that pass, or by how near R_q is to 1.
        superclasses: whether it needs the superclass of each class.
    """

    title: str
    question: str
    parts: tuple[Part, ...]
    small: tuple[Part, ...]
    sections: tuple[str, ...]
    paper: tuple[Row, ...] = ()
    data: Literal["textures", "shapes"] = "textures"
    answers: Literal["", "grid", "images", "nearness"] = ""
    superclasses: bool = False


@cache
def studies() -> Mapping[str, Study]:
    """All studies by name."""
    text = files("mrdc.experiments").joinpath("studies.toml").read_text(encoding="utf-8")
    return {name: _study(entry) for name, entry in tomllib.loads(text).items()}


def find_study(name: str) -> Study:
    """A study by name.

    Raises:
        UsageError: an unknown name.
    """
    return lookup(studies(), name, "study")


def _study(entry: dict[str, Any]) -> Study:
    values: dict[str, Any] = dict(entry)
    for key in ("parts", "small"):
        values[key] = tuple(map(_part, entry[key]))
    values["paper"] = tuple(tuple(row) for row in entry.get("paper", ()))
    return Study(**values | {"sections": tuple(entry["sections"])})


def _part(entry: dict[str, Any]) -> Part:
    return Part(entry["recipe"], tuple(entry["grid"]), tuple(entry.get("settings", ())))
