"""Tables and lists on the terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mrdc._utils.text import MORE, printable


def table(*columns: str, rows: Iterable[Iterable[str]] = ()) -> Table:
    """A plain table with right-aligned columns; a name that ends in < is left-aligned."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        left = column.endswith("<")
        made.add_column(
            column.rstrip("<"),
            justify="left" if left else "right",
            overflow="fold" if left else "ellipsis",
        )
    for row in rows:
        made.add_row(*row)
    return made


def clean(text: str) -> str:
    """Escape a name from the user, so that the terminal does not interpret it."""
    return escape(printable(text))


def some(entries: list[str]) -> str:
    """The first few entries, escaped, and how many more there are."""
    shown = "".join(f"\n  {clean(entry)}" for entry in entries[:MORE])
    more = len(entries) - MORE
    return shown + (f"\n  and {more:,} more" if more > 0 else "")


def remarks(console: Console, skipped: list[str], ignored: list[str]) -> None:
    """List what was left out."""
    if skipped:
        console.print(f"[yellow]Skipped, unreadable ({len(skipped):,}):[/yellow]{some(skipped)}")
    if ignored:
        console.print(f"Ignored ({len(ignored):,}):{some(ignored)}")
