"""Parts of a page: tables, strips of images, and figures safe for colour-blind readers."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

from mrdc.planning.settings import GENTLE, LIMITS, MATCHED, SYMBOLS, Limits

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555", "#000000")
DASHES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
NOT_XML = r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"  # characters that XML forbids
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "text.parse_math": False,  # names may contain dollar signs
}
Table = list[list[Any]]


@dataclass
class Figure:
    """A figure and the data it shows."""

    title: str
    alt: str  # description for people who cannot see it
    data: Table  # the plotted values, with a header row
    svg: str = ""
    small: bool = False  # two fit side by side
    file: str = ""  # path of its SVG and CSV, without the suffix


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


Part = str | Grid | Figure | Strip


@dataclass
class Section:
    """A section of the page; left out if it has no parts."""

    name: str
    title: str
    parts: list[Part] = field(default_factory=list)


@contextmanager
def drawn(
    figure: Figure, columns: int = 1, size: tuple[float, float] = (7.2, 3.6)
) -> Iterator[Any]:
    """Axes to draw on (an array of them with more columns); sets the figure's SVG on exit.

    The SVG is for embedding: no header, no date, and no unused ids.
    """
    figure.small, buffer = size[0] < 5, io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": figure.title + figure.alt}):
        canvas = Canvas(figsize=size, layout="constrained")
        yield canvas.subplots(1, columns)
        about = {"Date": None, "Creator": None}
        canvas.savefig(buffer, format="svg", metadata=about, transparent=True)
    svg = re.sub(NOT_XML, "?", buffer.getvalue())  # from names
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r'\sid="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
    figure.svg = svg.strip()


def line(
    axes: Axes,
    number: int,
    x: ArrayLike,
    y: ArrayLike,
    label: str,
    spread: Sequence[float] | None = None,
) -> None:
    """Draw one of several lines, with error bars if there is a spread."""
    n = number % len(COLOURS)
    style = {"color": COLOURS[n], "linestyle": DASHES[n], "marker": MARKS[n]}
    bars = spread if spread is not None and any(spread) else None
    axes.errorbar(x, y, bars, label=wrapped(label), capsize=3, elinewidth=1, **style)  # type: ignore[arg-type]


def wrapped(name: str, width: int = 36) -> str:
    """A name in lines for matplotlib; a leading _ would hide it in a legend."""
    text = textwrap.fill(name.encode("utf-8", "replace").decode(), width) or " "
    return f" {text}" if text.startswith("_") else text


def short(name: str, most: int = 16) -> str:
    """A name for a tick, cut in the middle if it is long."""
    half = most // 2
    return wrapped(name if len(name) <= most else f"{name[: half - 1]}…{name[-half:]}")


def legend(axes: Axes, lines: int, below: bool = False) -> None:
    """Put the legend into the axes, beside them if it is long, or below."""
    if below:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    elif lines > 4:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif lines > 1:
        axes.legend()


def label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Label each point where the text covers the fewest other labels and points; call last."""
    canvas = axes.get_figure()
    assert isinstance(canvas, Canvas)
    canvas.draw_without_rendering()
    places = axes.transData.transform([point[:2] for point in points]) * 72 / canvas.dpi
    between = [np.linspace(*ends, 12) for ends in pairwise(places)]  # along the line
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in np.concatenate([places, *between])]
    for (x, y, text), (left, low) in zip(points, places, strict=True):
        width, height = 5.5 * len(text), 9.0
        sides = [(5.0, 5.0), (5.0, -5.0 - height), (-5.0 - width, 5.0), (-5.0 - width, -14.0)]
        sides += [(-width / 2, 8.0), (-width / 2, -17.0), (8.0, -4.0), (-8.0 - width, -4.0)]
        boxes = [Bbox.from_bounds(left + dx, low + dy, width, height) for dx, dy in sides]
        best = min(range(len(sides)), key=lambda n: boxes[n].count_overlaps(taken))
        taken.append(boxes[best])
        axes.annotate(text, (x, y), sides[best], textcoords="offset points", fontsize=8.5)


def criterion_axis(axes: Axes, criterion: str, limits: Limits | None = None) -> None:
    """Name the axis after a criterion, and shade the values that pass.

    R_q is on a logarithmic axis, with numbers in full.
    """
    symbol = SYMBOLS[criterion]
    axes.set(ylabel=symbol)
    if limits is not None:
        low, high = max(limits[0], 1e-3), limits[1]
        label = f"{low:g} < {symbol} < {high:g}"
        if limits == LIMITS["ratio-per-image"]:
            label += f" (JPEG {GENTLE} or better: {MATCHED[criterion][1]:g})"
        axes.axhspan(low, high, color="#999999", alpha=0.2, lw=0, label=label)
    if criterion == "volume-ratio":
        axes.set(yscale="log")
        numbers_in_full(axes.yaxis)


def numbers_in_full(axis: Axis) -> None:
    """Numbers such as 0.5 on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
