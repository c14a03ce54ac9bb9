"""Parts of a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from mrdc.report.figures import Figure, Table


@dataclass
class Grid:
    """A table that readers can sort; the first row is the header. Empty columns are dropped."""

    rows: Table
    caption: str = ""

    def __post_init__(self) -> None:
        columns = list(zip(*self.rows, strict=True))
        kept = [column for column in columns if any(cell not in ("", None) for cell in column[1:])]
        self.rows = [list(row) for row in zip(*kept, strict=True)]

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], caption: str = "") -> Self:
        """A table of rows by column."""
        heads = list(dict.fromkeys(head for row in rows for head in row))
        return cls([heads, *([row.get(head) for head in heads] for row in rows)], caption)

    @property
    def numbers(self) -> list[bool]:
        """Columns that hold numbers, which are aligned to the right."""
        return [
            all(str(cell)[:1] in "0123456789-+" for cell in column if cell not in ("", None))
            for column in zip(*self.rows[1:], strict=True)
        ]


@dataclass
class Strip:
    """A row of images under a heading: (data address, caption) each."""

    heading: str
    images: list[tuple[str, str]]


@dataclass
class Section:
    """A section of the page; left out if it has no parts."""

    name: str
    title: str
    parts: "list[Part]" = field(default_factory=list)


Part = str | Grid | Figure | Strip
