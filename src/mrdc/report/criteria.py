"""The criteria of the choice, phase by phase: R_q, r and discrepancy (Fig. 5, App. D)."""

from collections.abc import Sequence
from statistics import mean

import numpy as np
from matplotlib.axes import Axes

from mrdc.data.images import some_of
from mrdc.planning.settings import LIMITS, MATCHED, SYMBOLS, Limits
from mrdc.report.figures import (
    COLOURS,
    MARKS,
    Figure,
    Section,
    criterion_axis,
    drawn,
    legend,
    line,
)
from mrdc.report.runs import Group, RunRecord, by_seed, quality_grids

MEASURED = {name: name.replace("-", "_") for name in SYMBOLS}  # keys of a candidate
HIGHEST = 100  # R_q that is shown
TICKS = 8  # phases that are numbered
Values = list[float | None]


def criteria(runs: Sequence[RunRecord]) -> Section:
    """R_q, r and discrepancy by phase and candidate, for the first seed of each group.

    In a grid of qualities they are shown along the run with originals, as the paper measures R_q.
    """
    found = by_seed(runs)
    grids = [list(grid.values()) for grid in quality_grids(found) if "original" in grid]
    others = [run.path for _, *more in grids for group in more for run in group.runs]
    groups = [g for g in found if g.first.last.candidates and g.first.path not in others]
    title = "Criteria by phase (first seed)"
    section = Section("volume-ratio", title, [*map(_figure, groups)])
    for group in groups:
        run = group.first
        left_out = run.result.left_out if run.result else {}
        lines = [f"{what} ({why})" for what, why in left_out.items()]
        note = f"{run.data}, {group.label}: left out of R_q: {some_of(lines)}."
        section.parts += [note] if lines else []
    return section


def _figure(group: Group) -> Figure:
    run = group.first
    used = run.quality or "chosen in each phase"
    rows = {n: row for n, row in enumerate(run.last.candidates) if row["quality"] is not None}
    shown = {name: key for name, key in MEASURED.items() if any(key in r for r in rows.values())}
    symbols = [SYMBOLS[name] for name in shown]
    figure = Figure(
        f"{run.data}, {group.label}; quality in use: {used}",
        f"{', '.join(symbols)} of each quality after each phase and its mean, with the band in "
        "which a quality passes",
        [["codec", "quality", "phase", *symbols]],
    )
    by_phase = {  # criterion and candidate
        (name, n): [phase.candidates[n].get(key) for phase in run.phases]
        for name, key in shown.items()
        for n in rows
    }
    for n, row in rows.items():
        columns = [[*by_phase[name, n], average(by_phase[name, n])] for name in shown]
        places = [*(phase.phase for phase in run.phases), "mean"]
        table = zip(places, *columns, strict=True)
        figure.data += [[row["codec"], row["quality"], *cells] for cells in table]
    limits = _limits(run)
    size = (4.7, 3.7) if len(shown) == 1 else (9.6, 3.7)
    with drawn(figure, max(1, len(shown)), size) as made:
        panels = np.atleast_1d(made)
        for axes, name in zip(panels, shown, strict=False):
            criterion_axis(axes, name, limits.get(name))
            for number, (n, row) in enumerate(rows.items()):
                _draw(axes, number, by_phase[name, n], f"{row['codec']} {row['quality']}")
            if name == "volume-ratio" and _cut(axes):
                figure.title += f"; R_q above {HIGHEST} is not shown"
        legend(panels[len(shown) // 2], len(rows) + 1, below=True)
    return figure


def _limits(run: RunRecord) -> dict[str, Limits]:
    """Where a run wants each ratio."""
    usual = MATCHED if run.settings.get("train", {}).get("match") == 1 else LIMITS
    epsilon = run.memory.get("epsilon")
    if epsilon is None:
        return usual
    return usual | {run.memory["criterion"]: (1 - epsilon, 1 + epsilon)}


def average(values: Values) -> float | None:
    """Mean of the known values."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _draw(axes: Axes, number: int, values: Values, label: str) -> None:
    """A line over the phases, and the mean beside it."""
    known = [(phase, value) for phase, value in enumerate(values) if value is not None]
    x, y = np.array(known).reshape(-1, 2).T
    line(axes, number, x, y, label)
    centre, n, phases = average(values), number % len(COLOURS), len(values)
    if centre is not None:
        axes.plot(phases, centre, color=COLOURS[n], marker=MARKS[n], mfc="white", mew=1.6)
    ticks = range(0, phases, -(-phases // TICKS))
    axes.set_xticks([*ticks, phases], [*map(str, ticks), "mean"])
    axes.set(xlabel="phase")


def _cut(axes: Axes) -> bool:
    """Limit the axis of R_q; returns whether something lies above."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 1 / HIGHEST), min(high, HIGHEST))
    return high > HIGHEST
