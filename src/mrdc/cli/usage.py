"""Wrong arguments in one line, from the pages that tyro prints about them."""

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from difflib import get_close_matches
from itertools import takewhile

from mrdc._utils.errors import UsageError

WIDE = "4000"  # columns, so that nothing is wrapped
FRAME, RULE = "│╭╮╰╯|+", "─- "  # of the boxes, with and without Unicode
QUOTED = "'([^']+)'"


@contextmanager
def one_line(command: str, arguments: Sequence[str]) -> Iterator[None]:
    """Turn a page about wrong arguments into a UsageError, which names the help of a command."""
    if {"-h", "--help"} & {*arguments}:
        yield
        return
    page, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDE
    try:
        with redirect_stderr(page):
            yield
    except SystemExit as stop:
        if stop.code not in (None, 0):
            said = summary(page.getvalue(), command)
            if said is not None:
                raise UsageError(f"{said}; {command} --help shows all") from None
        raise
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update({} if columns is None else {"COLUMNS": columns})
        if sys.exc_info()[0] is not UsageError:
            sys.stderr.write(page.getvalue())


def summary(page: str, command: str) -> str | None:
    """What is wrong, and what is allowed; None for a page of an unknown form."""
    lines = [line.strip(FRAME).rstrip() for line in page.splitlines()]
    flat = " ".join(line.strip() for line in lines)
    missing = [*map(_name, _below("Missing from", lines))]
    unknown = [_name(one) for line in _below("Unrecognized", lines) for one in line.split(", ")]
    if unknown:
        wrong = next((name for name in unknown if name.startswith("-")), unknown[0])
        known = [*missing, *map(_name, _below("Perhaps you meant", lines, command))]
        known += [name for line in _below("Available", lines) for name in line.split(", ")]
        close = get_close_matches(wrong, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return f"unknown {'option' if wrong.startswith('-') else 'argument'} {wrong}{hint}"
    if missing:
        return f"missing {', '.join(missing)}"
    if found := re.search(r"Expected one of \{(.+?)\}", flat):
        return f"give a command: {found[1]}"
    if found := re.search(r"invalid choice (.+?) for argument '(.+?)'\. .*?\((.+?)\)", flat):
        given, flag, choices = found.groups()
        return f"{flag} must be one of {', '.join(re.findall(QUOTED, choices))}, got {given}"
    if found := re.search(r"Missing value for argument '(.+?)'", flat):
        return f"{found[1]} needs a value"
    about = _below("Argument helptext", lines)
    if about and (found := re.search(r"Error parsing (\S+): .*?('[^']*')", page)):
        form = re.sub(r"\{None\}\||[][{}]", "", about[0].partition(" ")[2])
        return f"{found[1]}: got {found[2]}, but takes {form}"
    return None


def _name(entry: str) -> str:
    """The name of an argument, without what it takes."""
    words = entry.replace(",", " ").split()
    return next((word for word in words if word.startswith("--")), words[0])


def _below(title: str, lines: list[str], command: str | None = None) -> list[str]:
    """The entries of a list under a title, without what is written about each.

    With a command, those of other commands are left out, if it is written where they belong.
    """
    heads = (n for n, line in enumerate(lines) if line.strip().startswith(title) and ":" in line)
    start = next(heads, None)
    if start is None:
        return []
    rest = lines[start].partition(":")[2].strip()
    if rest:
        return [rest]
    block = list(takewhile(lambda line: line.strip(RULE), lines[start + 1 :]))
    depth = min((_depth(line) for line in block), default=0)
    entries: dict[int, list[str]] = {}
    for number, line in enumerate(block):
        if _depth(line) == depth:
            entries[number] = []
        elif entries:
            entries[max(entries)].append(line.strip())
    return [
        block[number].strip()
        for number, about in entries.items()
        if command is None or f"in {command} --help" in about or "in mrdc " not in " ".join(about)
    ]


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
