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
    """A grid of runs of a recipe or preset."""

    recipe: str
    grid: tuple[str, ...]  # axes, as for `mrdc sweep --grid`
    settings: tuple[str, ...] = ()  # further settings, as setting=value
    data: str = ""  # prefix of the user's data, such as imagenet-similar:


@dataclass(frozen=True)
class Study:
    """Runs that answer a question, and what to show of them."""

    title: str  # with the figure or appendix of the paper
    question: str
    parts: tuple[Part, ...]  # on the user's data
    small: tuple[Part, ...]  # on built-in data
    sections: tuple[str, ...]  # of the page
    paper: tuple[Row, ...] = ()  # published numbers, a header row first
    data: Literal["textures", "shapes"] = "textures"  # the built-in data
    imagenet: tuple[Part, ...] = ()  # instead of `parts` on ImageNet
    # What the conclusion is about: the quality that R_q picks from a grid; the order of rows by
    # the images that pass, or by how near R_q is to 1; pairs with and without compression; what
    # rules for choosing a quality lose; or the bytes of originals for the same accuracy.
    answers: Literal["", "grid", "images", "nearness", "pairs", "forgetting", "regret", "bytes"] = (
        ""
    )
    superclasses: bool = False  # whether it needs the superclass of each class


@cache
def studies() -> Mapping[str, Study]:
    """All studies by name."""
    text = files("mrdc.experiments").joinpath("studies.toml").read_text(encoding="utf-8")
    return {name: _study(entry) for name, entry in tomllib.loads(text).items()}


def find_study(name: str) -> Study:
    """A study by name."""
    return lookup(studies(), name, "study")


def _study(entry: dict[str, Any]) -> Study:
    values = {**entry, "sections": tuple(entry["sections"])}
    for key in ("parts", "small", "imagenet"):
        values[key] = tuple(
            Part(**{name: _frozen(value) for name, value in part.items()})
            for part in entry.get(key, ())
        )
    return Study(**values | {"paper": tuple(map(tuple, entry.get("paper", ())))})


def _frozen(value: str | list[str]) -> Any:
    return value if isinstance(value, str) else tuple(value)
