"""Settings of methods written as name=value."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import lookup
from mrdc.methods import METHODS
from mrdc.methods.base import Method, Wrapper

T = TypeVar("T")
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
SWITCH = {"true": True, "false": False}


def make_method(name: str, options: Sequence[str] = ()) -> Method:
    """A method by name, with settings written as name=value."""
    return with_options(METHODS.find(name)(), options, name)


def with_options(method: T, options: Sequence[str], name: str) -> T:
    """A method with some settings changed; each value must have the type of the default."""
    defaults = method_settings(method)
    if options and not defaults:
        raise UsageError(f"--set {options[0]}: {name} has no settings")
    values: dict[str, Any] = {}
    for option in options:
        key, equals, text = (part.strip() for part in option.partition("="))
        if not equals:
            raise UsageError(f"--set {option}: write it as name=value")
        default = lookup(defaults, key, f"setting of {name}")
        kind = type(default)
        if kind not in KINDS:
            raise UsageError(f"--set {option}: {key} can be set in Python only")
        try:
            values[key] = SWITCH[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise UsageError(f"--set {option}: {key} takes {KINDS[kind]}") from None
        if isinstance(default, int | float) and not 0 <= values[key] < math.inf:
            raise UsageError(f"--set {option}: {key} must be 0 or more, and finite")
    return _changed(method, values)


def method_settings(method: Any) -> dict[str, Any]:
    """Settings of a method and of the method it wraps."""
    inner = method_settings(method.inner) if isinstance(method, Wrapper) else {}
    return inner | {name: getattr(method, name) for name in _own_settings(method)}


def _own_settings(method: Any) -> list[str]:
    names = [field.name for field in fields(method)]
    return [name for name in names if name != "inner" and not name.endswith("_")]


def _changed(method: T, values: dict[str, Any]) -> T:
    new = {name: value for name, value in values.items() if name in _own_settings(method)}
    if isinstance(method, Wrapper):
        new["inner"] = _changed(method.inner, values)
    return replace(method, **new)  # type: ignore[type-var]
