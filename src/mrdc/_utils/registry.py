"""Looking a name up in a literal table."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from mrdc._utils.errors import UsageError

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry called `name`, or an error that lists the choices.

    Raises:
        UsageError: no such entry; `what` says what was looked for.
    """
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, table, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UsageError(f"unknown {what} {name!r}: choose from {', '.join(table)}{hint}")
