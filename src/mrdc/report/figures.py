"""Figures as SVG text: one style, colour-blind safe, told apart in grey by dashes and marks."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555", "#000000")
DASHES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10.0, "axes.grid": True,
    "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False,
    "axes.titlesize": 10.5, "lines.linewidth": 1.8, "lines.markersize": 5.0,
    "text.parse_math": False,  # a name may have dollars
}  # fmt: skip
Table = list[list[object]]


@dataclass
class Figure:
    """A finished figure.

    Attributes:
        name: of its files, and on the page.
        alt: what it shows, for those who cannot see it.
        data: what was drawn, a header row first.
    """

    name: str
    title: str
    alt: str
    svg: str = ""
    data: Table = field(default_factory=list)
    small: bool = False  # two fit beside each other
    file: str = ""  # where its SVG and CSV lie, without their endings


@contextmanager
def drawn(
    figure: Figure, columns: int = 1, size: tuple[float, float] = (7.2, 3.6)
) -> Iterator[Any]:
    """Axes to draw on (several, with more columns); the figure has its SVG afterwards."""
    figure.small = size[0] < 5
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": figure.name}):
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots(1, columns)
        yield axes
        figure.svg = as_svg(canvas)


def as_svg(canvas: Canvas) -> str:
    """SVG to put into a page: no header, no date, no names that another figure may have, too."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    return re.sub(
        r'\sid="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg
    ).strip()


def line(axes: Axes, number: int, x: Sequence[float], y: Sequence[float], label: str) -> None:
    """One of several lines, told apart by colour, dashes and marks."""
    n = number % len(COLOURS)
    shown = in_legend(label)
    axes.plot(x, y, color=COLOURS[n], linestyle=DASHES[n], marker=MARKS[n], label=shown)


def in_legend(name: str) -> str:
    """A name of any letters, as a legend takes it: one that begins with _ would be left out."""
    text = textwrap.fill(name.encode("utf-8", "replace").decode(), 36) or " "
    return f" {text}" if text.startswith("_") else text


def legend(axes: Axes, lines: int, below: bool = False) -> None:
    """Beside the axes, or below, where there are many."""
    if below:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8.5)
    elif lines > 4:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
    elif lines > 1:
        axes.legend(fontsize=9)


def whole_numbers(*sides: Axis) -> None:
    """No ticks between the numbers of phases, tasks or classes."""
    for side in sides:
        side.set_major_locator(MaxNLocator(integer=True))


def log_scale(axes: Axes) -> None:
    """Of y, with its numbers in full."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
