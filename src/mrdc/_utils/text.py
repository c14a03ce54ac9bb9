"""Numbers and names in the form people read."""

import math

MORE = 5  # names listed before "and n more"


def size(count: float) -> str:
    """Format bytes: 999 B, 17.9 kB, 200.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def ratio(value: float | None, error: float = 0.0) -> str:
    """Format R_q or r: 0.766, 0.766 +- 0.012, > 100, or ? if it is unknown."""
    if value is None or math.isnan(value):
        return "?"
    shown = "> 100" if value > 100 else f"{value:.3f}"
    return f"{shown} +- {ratio(error)}" if error else shown


def small_number(value: float | None) -> str:
    """Format a discrepancy: 0.113, 0.0174, 0, or ? if it is unknown."""
    return "?" if value is None or math.isnan(value) else f"{round(value, 6):.3g}"


def printable(text: str) -> str:
    """Spell out control characters and undecodable bytes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def harmless(cell: object) -> object:
    """A cell of a CSV that spreadsheets do not take for a formula."""
    formula = isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{cell}" if formula else cell


def count(number: float, what: str) -> str:
    """Format a number of things: 1 class, 2 classes."""
    plural = what if number == 1 else what + ("es" if what.endswith(("s", "x")) else "s")
    return f"{number:,.1f} {plural}" if number != int(number) else f"{int(number):,} {plural}"


def span(fewest: int, most: int) -> str:
    """Format a range: 8 to 10, or 10 if both are the same."""
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def learned(ids: list[str]) -> str:
    """A warning about test images that are also training images."""
    which = f"{count(len(ids), 'test image')} {'is' if len(ids) == 1 else 'are'} also"
    more = f" and {len(ids) - MORE:,} more" if len(ids) > MORE else ""
    return f"{which} used for training: {', '.join(map(printable, ids[:MORE]))}{more}"
