"""Check JSON values and settings against type hints."""

import math
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from mrdc._utils.errors import UsageError

# Type hints of a class by name; kept, because they take long to resolve.
hints_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def fits(value: object, hint: Any) -> bool:
    """Whether a JSON value has a type; numbers must be finite, and lists may stand for tuples.

    A TypedDict fits an object with at least its required keys.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(one, parts[0]) for one in value)
    if kind is dict:
        return isinstance(value, dict) and all(
            fits(name, parts[0]) and fits(one, parts[1]) for name, one in value.items()
        )
    if is_typeddict(hint):
        return (
            isinstance(value, dict)
            and hint.__required_keys__ <= value.keys()
            and all(fits(value[n], h) for n, h in hints_of(hint).items() if n in value)
        )
    if hint in (int, float):
        number = isinstance(value, int if hint is int else int | float)
        return number and not isinstance(value, bool) and abs(value) < math.inf  # type: ignore[arg-type]
    return isinstance(value, hint or type(None))


def check_words(settings: object) -> None:
    """Refuse a word that a setting does not know; the command line asks for those it knows.

    Raises:
        UsageError: it is none of the words that the type hint lists.
    """
    for name, hint in hints_of(type(settings)).items():
        known, given = get_args(hint), getattr(settings, name)
        if get_origin(hint) is Literal and given not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)}, got {given!r}")
