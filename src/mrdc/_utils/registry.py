"""Tables of named parts, which other packages can add to."""

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from mrdc._utils.errors import UsageError

T = TypeVar("T")
PLUGINS = "MRDC_PLUGINS"  # modules to import, also in the processes of a sweep


class Registry(dict[str, T]):
    """A table of parts by name.

    Add a part with `REGISTRY["name"] = part`, from a module given to `--plugin`, or
    through an entry point in the group `mrdc.<kind>`.

    Args:
        what: what an entry is, for messages.
        group: the group of entry points.
    """

    def __init__(self, what: str, group: str, entries: Mapping[str, T]):
        super().__init__(entries)
        self.what, self.group = what, f"mrdc.{group}"

    def find(self, name: str) -> T:
        """The entry called `name`.

        Raises:
            UsageError: no such entry; the message lists the choices.
        """
        if name not in self:
            self.discover()
        return lookup(self, name, self.what)

    def name_of(self, part: str | T) -> str:
        """The name of a part; an object is registered under its own.

        Another instance of the same class, or a function defined again, replaces the first.

        Raises:
            UsageError: another part has that name.
        """
        if isinstance(part, str):
            return part
        name = str(getattr(part, "name", getattr(part, "__name__", type(part).__name__)))
        if _definition(self.setdefault(name, part)) != _definition(part):
            raise UsageError(f"{self.what} {name!r} is already registered: rename yours")
        self[name] = part
        return name

    def discover(self) -> None:
        """Load the entry points of other packages."""
        for point in entry_points(group=self.group):
            if point.name not in self:
                self[point.name] = point.load()


def _definition(part: object) -> tuple[str, str]:
    """Where a function, or the class of an object, is defined."""
    defined = part if hasattr(part, "__qualname__") else type(part)
    return defined.__module__, getattr(defined, "__qualname__", "")


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry called `name`.

    Raises:
        UsageError: no such entry; the message lists the choices.
    """
    if name in table:
        return table[name]
    close = difflib.get_close_matches(name, table, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise UsageError(f"unknown {what} {name!r}{hint}: choose from {', '.join(table)}")


def import_plugins(modules: Iterable[str] = ()) -> None:
    """Import modules that register parts, now and in processes started from here.

    Raises:
        UsageError: a module that cannot be imported.
    """
    wanted = [*os.environ.get(PLUGINS, "").split(), *modules]
    if wanted and "" not in sys.path:
        sys.path.append("")  # modules in the current folder, as for `python -m`
    for name in wanted:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # standard output may be for JSON
                importlib.import_module(name)
        except Exception as error:  # a module may raise anything
            raise UsageError(f"--plugin {name}: cannot be imported ({error})") from error
    if wanted:
        os.environ[PLUGINS] = " ".join(dict.fromkeys(wanted))
