"""Settings from a name, a TOML file, and flags on top."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from mrdc.errors import UsageError
from mrdc.experiment.presets import Preset, preset
from mrdc.registry import lookup


def named(name: str) -> tuple[str, Preset]:
    """A recipe, a preset, or a TOML or JSON file whose `recipe` is one; its name and settings.

    Raises:
        UsageError: no such name or file, or a file with fields that there are not.
    """
    path = Path(name)
    if path.suffix not in (".toml", ".json"):
        return name, preset(name)
    try:
        text = path.read_text(encoding="utf-8")
        values: dict[str, Any] = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: cannot be read as settings ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("recipe"), str):
        raise UsageError(f'{name}: must say recipe = "lucir-mrdc" or another that `mrdc list` has')
    recipe = values.pop("recipe")
    base = preset(recipe)
    label = path.stem if path.suffix == ".toml" else recipe
    return label, replace(base, settings=changed(base.settings, values, name))


def changed(settings: Any, values: dict[str, Any], where: str) -> Any:
    """Settings with some values replaced, nested ones too.

    Raises:
        UsageError: a field that there is not, or another kind of value.
    """
    table = {field.name: field for field in fields(settings)}
    new: dict[str, Any] = {}
    for name, value in values.items():
        lookup(table, name, f"setting in {where}")
        old = getattr(settings, name)
        if is_dataclass(old):
            if not isinstance(value, dict):
                raise UsageError(f"{where}: {name} must be a table")
            new[name] = changed(old, value, where)
        else:
            new[name] = converted(old, value, f"{where}: {name}")
    return replace(settings, **new)


def converted(old: Any, value: Any, where: str) -> Any:
    """A value of the kind that the old one is; text becomes numbers where they are wanted.

    Raises:
        UsageError: it cannot be.
    """
    if isinstance(old, tuple):
        kind = type(old[0]) if old else str
        many = value if isinstance(value, (list, tuple)) else str(value).split("+")
        return tuple(converted(kind(), entry, where) for entry in many)
    if isinstance(old, bool) or value is None or isinstance(value, type(old)):
        if isinstance(old, bool) and not isinstance(value, bool):
            raise UsageError(f"{where} must be true or false, got {value!r}")
        return value
    if isinstance(old, str):
        return str(value)
    if isinstance(old, (int, float)):
        try:
            return type(old)(value)
        except (TypeError, ValueError):
            raise UsageError(f"{where} must be a number, got {value!r}") from None
    return Path(value) if where.endswith(("out", "superclasses")) else int(value)


def at(settings: Any, dotted: str, value: str) -> Any:
    """Settings with one value replaced, as `memory.quality` names it.

    Raises:
        UsageError: no such field, or another kind of value.
    """
    nested: Any = value
    for part in reversed(dotted.split(".")):
        nested = {part: nested}
    return changed(settings, nested, "--grid")


def grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """Axes of a sweep: `memory.quality=10,25` to {"memory.quality": ["10", "25"]}.

    Raises:
        UsageError: an entry of another form, or an axis given twice.
    """
    axes: dict[str, list[str]] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not equals or not values:
            raise UsageError(f"--grid {entry}: write it as memory.quality=10,25,50")
        if name in axes or len(set(values)) < len(values):
            raise UsageError(f"--grid {entry}: {name} has an axis or a value twice")
        axes[name] = values
    return axes
