"""Tables, styled lines and lists on the terminal; nothing in them is taken as markup."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mrdc._utils.text import MORE, printable


class Rows(Table):
    """A table of plain text."""

    def add_row(self, *cells: str, style: str | None = None) -> None:  # type: ignore[override]
        super().add_row(*map(plain, cells), style=style)


def table(*columns: str, rows: Iterable[Iterable[str]] = ()) -> Rows:
    """A plain table with right-aligned columns; a name that ends in < is left-aligned."""
    made = Rows(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        left = column.endswith("<")
        made.add_column(
            plain(column.rstrip("<")),
            justify="left" if left else "right",
            overflow="fold" if left else "ellipsis",
        )
    for row in rows:
        made.add_row(*row)
    return made


def plain(text: str, style: str = "") -> Text:
    """Text as it is, with control characters spelled out."""
    return Text("\n".join(map(printable, text.split("\n"))), style)


def styled(*parts: str | tuple[str, str]) -> Text:
    """A line of plain text, and of (text, style)."""
    return Text.assemble(*(plain(p) if isinstance(p, str) else plain(*p) for p in parts))


def some(entries: list[str]) -> str:
    """The first few entries, and how many more there are."""
    shown = "".join(f"\n  {printable(entry)}" for entry in entries[:MORE])
    more = len(entries) - MORE
    return shown + (f"\n  and {more:,} more" if more > 0 else "")


def remarks(console: Console, skipped: list[str], ignored: list[str]) -> None:
    """List what was left out."""
    if skipped:
        title = f"Skipped, unreadable ({len(skipped):,}):"
        console.print(styled((title, "yellow"), some(skipped)))
    if ignored:
        console.print(plain(f"Ignored ({len(ignored):,}):{some(ignored)}"))
