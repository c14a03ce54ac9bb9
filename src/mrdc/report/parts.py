"""What a page is made of."""

from dataclasses import dataclass, field

from mrdc.report.figures import Figure, Table


@dataclass
class Grid:
    """A table that readers can sort."""

    rows: Table  # the first is the header
    caption: str = ""

    def __post_init__(self) -> None:
        """Columns in which nobody has anything are left out."""
        columns = list(zip(*self.rows, strict=True))
        kept = [column for column in columns if any(cell not in ("", None) for cell in column[1:])]
        self.rows = [list(row) for row in zip(*kept, strict=True)]

    @property
    def numbers(self) -> list[bool]:
        """Which columns hold numbers, and stand to the right."""
        return [
            all(str(cell)[:1] in "0123456789-+" for cell in column if cell not in ("", None))
            for column in zip(*self.rows[1:], strict=True)
        ]


@dataclass
class Strip:
    """Images beside each other: (data address, caption) each, under a heading."""

    heading: str
    images: list[tuple[str, str]]


@dataclass
class Section:
    """A part of the page."""

    name: str
    title: str
    parts: "list[Part]" = field(default_factory=list)


Part = str | Grid | Figure | Strip
