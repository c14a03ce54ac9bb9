"""Settings from a name or a TOML file, with single values changed."""

import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import lookup
from mrdc.experiments.presets import Preset, preset


class Named(NamedTuple):
    """The configuration that a name stands for."""

    label: str
    recipe: str
    preset: Preset


def named(name: str) -> Named:
    """A recipe, a preset, or a TOML or JSON file whose `recipe` is one."""
    path = Path(name)
    if path.suffix not in (".toml", ".json"):
        return Named(name, name, preset(name))
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: cannot be read as settings ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("recipe"), str):
        raise UsageError(f'{name}: needs recipe = "lucir-mrdc" or another from `mrdc list`')
    if "method" in values:
        raise UsageError(f"{name}: leave `method` out; `recipe` names it")
    recipe = values.pop("recipe")
    base = preset(recipe)
    label = path.stem if path.suffix == ".toml" else recipe
    return Named(label, recipe, replace(base, settings=changed(base.settings, values, name)))


FLAGS = {"set": "options"}  # flags that are named differently from their setting


def changed(settings: Any, values: Any, where: str) -> Any:
    """Settings with some values replaced, nested ones too."""
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a table of settings")
    hints = get_type_hints(type(settings))
    new: dict[str, Any] = {}
    for flag, value in values.items():
        name = FLAGS.get(flag, flag.replace("-", "_"))
        hint = lookup(hints, name, f"setting in {where}")
        old = getattr(settings, name)
        place = f"{where}: {name}"
        new[name] = changed(old, value, place) if is_dataclass(old) else fitted(hint, value, place)
    return replace(settings, **new)


class Typed(str):
    """A value as typed in a flag; the field decides whether it is a text, a number or several."""


def fitted(hint: Any, value: Any, where: str) -> Any:
    """A value converted to the type of a field; a number also counts as text."""
    kind, choices = get_origin(hint), get_args(hint)
    if isinstance(value, Typed):
        if kind is tuple:
            value = [Typed(part) for part in value.split("+")]
        elif kind not in (Union, UnionType):
            value = str(value) if hint in (str, Path) else _parsed(value)
    if kind is Literal:
        if value not in choices:
            allowed = ", ".join(map(str, choices))
            raise UsageError(f"{where} must be one of {allowed}, got {value!r}")
        return value
    if kind in (Union, UnionType):
        if value is None:
            return None
        return fitted(next(c for c in choices if c is not NoneType), value, where)
    if kind is tuple:
        many = value if isinstance(value, list) else [value]
        if ... not in choices and len(many) != len(choices):
            raise UsageError(f"{where} must be {len(choices)} values, got {value!r}")
        return tuple(fitted(choices[0], entry, where) for entry in many)
    names = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    number = number and abs(value) <= sys.float_info.max  # neither infinite nor absurd
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and number and float(value).is_integer():
        return int(value)
    if hint is float and number:
        return float(value)
    if hint in (str, Path) and (isinstance(value, str) or number):
        return hint(str(value))
    raise UsageError(f"{where} must be {names.get(hint, 'text')}, got {value!r}")


def at(settings: Any, dotted: str, text: str, flag: str = "--grid") -> Any:
    """Settings with one value replaced, by the name of its flag; 10+50 is several values."""
    nested: Any = Typed(text)
    for part in reversed(dotted.split(".")):
        nested = {part: nested}
    return changed(settings, nested, f"{flag} {dotted}")


def _parsed(text: str) -> Any:
    """A number, true or false; else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return str(text)
    return value if isinstance(value, (int, float)) else str(text)


def grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """Axes of a sweep: `memory.quality=10,25` to {"memory.quality": ["10", "25"]}."""
    if not entries:
        raise UsageError("--grid needs an axis, such as memory.quality=10,25,50 or seed=0,1,2")
    axes: dict[str, list[str]] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not equals or not values:
            raise UsageError(f"--grid {entry}: write it as memory.quality=10,25,50")
        if name in axes or len(set(values)) < len(values):
            raise UsageError(f"--grid {entry}: the axis {name} or one of its values is given twice")
        if name == "method":
            raise UsageError(f"--grid {entry}: use recipe=..., which includes its training")
        axes[name] = values
    return axes
