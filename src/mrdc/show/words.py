"""Numbers, names and tables as people read them."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

MORE = 5  # names listed before "and so many more"


def size(count: float) -> str:
    """Bytes for people: 999 B, 17.9 kB, 200.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def ratio(value: float) -> str:
    """R_q for people: 0.766, 4e+05 or nan."""
    return f"{value:.3f}" if value < 100 else f"{value:.0e}"


def table(*columns: str) -> Table:
    """A plain table, numbers to the right; a column that ends in < goes left."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        left = column.endswith("<")
        made.add_column(
            column.rstrip("<"), justify="left" if left else "right",
            overflow="fold" if left else "ellipsis",
        )  # fmt: skip
    return made


def clean(text: str) -> str:
    """Names from users: nothing in them reaches the terminal as a command."""
    return escape(printable(text))


def printable(text: str) -> str:
    """Control characters and odd bytes spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count(number: float, what: str) -> str:
    """1 class, 2 classes."""
    plural = what if number == 1 else what + ("es" if what.endswith(("s", "x")) else "s")
    return f"{number:,.1f} {plural}" if number != int(number) else f"{int(number):,} {plural}"


def span(fewest: int, most: int) -> str:
    """8 to 10, or 10 where both are."""
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def some(entries: list[str]) -> str:
    """The first few entries, escaped, and how many more there are."""
    shown = "".join(f"\n  {clean(entry)}" for entry in entries[:MORE])
    more = len(entries) - MORE
    return shown + (f"\n  and {more:,} more" if more > 0 else "")


def learned(ids: list[str]) -> str:
    """A warning of test images that are training images, too."""
    which = f"{count(len(ids), 'test image')} {'is' if len(ids) == 1 else 'are'} among the images"
    more = f" and {len(ids) - MORE:,} more" if len(ids) > MORE else ""
    return f"{which} learned from: {', '.join(map(printable, ids[:MORE]))}{more}"


def remarks(console: Console, skipped: list[str], ignored: list[str]) -> None:
    """Say what was left out."""
    if skipped:
        console.print(f"[yellow]Skipped, unreadable ({len(skipped):,}):[/yellow]{some(skipped)}")
    if ignored:
        console.print(f"Ignored, not images ({len(ignored):,}):{some(ignored)}")
