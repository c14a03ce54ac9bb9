"""Curves: accuracy by phase, accuracy by quality, and R_q by phase."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

import numpy as np

from mrdc.data.images import some_of
from mrdc.report.figures import (
    COLOURS,
    Figure,
    drawn,
    label_points,
    legend,
    line,
    passing_band,
    phase_axis,
)
from mrdc.report.groups import Group, group_by_seed, quality_grids, spread
from mrdc.report.lead import picked, verdict
from mrdc.report.parts import Part, Section
from mrdc.report.runs import RunRecord


def accuracy(runs: Sequence[RunRecord]) -> Section:
    """Figures for each data set and number of phases, with a line for each group."""
    streams: dict[tuple[str, int], list[Group]] = {}
    for group in group_by_seed(runs):
        key = group.first.data, group.first.settings["phases"]
        streams.setdefault(key, []).append(group)
    parts = [part for groups in streams.values() for part in evenly(groups, len(COLOURS))]
    return Section("accuracy", "Accuracy by phase", [_accuracy(part) for part in parts])


def _accuracy(groups: Sequence[Group]) -> Figure:
    run = groups[0].first
    what = "AP" if run.detects else "accuracy of the classes seen, %"
    seeds = "; bars: standard deviation over seeds" if any(len(g.runs) > 1 for g in groups) else ""
    figure = Figure(
        f"{run.data}, {run.settings['phases']} phases: {what} after each{seeds}",
        f"Lines of {what} by phase for {', '.join(group.label for group in groups)}",
        [["run", "phase", what, "standard deviation"]],
    )
    with drawn(figure) as axes:
        for number, group in enumerate(groups):
            points = list(zip(*(run.accuracy for run in group.runs), strict=False))
            means, spreads = [mean(p) for p in points], [spread(p) for p in points]
            line(axes, number, range(len(points)), means, group.label, spreads)
            rows = zip(range(len(points)), means, spreads, strict=True)
            figure.data += [[group.label, *row] for row in rows]
        axes.set(ylabel=what)
        phase_axis(axes)
        legend(axes, len(groups))
    return figure


def evenly(groups: Sequence[Group], most: int) -> list[Sequence[Group]]:
    """Parts of at most `most` groups, and of about equal size."""
    count = -(-len(groups) // most)
    cuts = [len(groups) * part // count for part in range(count + 1)]
    return [groups[start:end] for start, end in pairwise(cuts)]


def trade_off(runs: Sequence[RunRecord]) -> Section:
    """Quality against quantity: groups that differ only in quality."""
    section = Section("trade-off", "Quality against quantity")
    for grid in quality_grids(group_by_seed(runs)):
        section.parts += [_trade_off(grid), verdict(grid, "qualities") + picked(grid)]
    return section


def _trade_off(grid: dict[str, Group]) -> Figure:
    run = next(iter(grid.values())).first
    order, groups = list(grid), list(grid.values())
    figure = Figure(
        f"{run.data}, {run.settings['method']}, {run.memory['budget']}: accuracy by quality",
        f"Averaged accuracy and number of images held for the qualities {', '.join(order)}",
        [["quality", "images held", "averaged", "last", "deviation of averaged"]],
    )
    held = [group.mean(lambda run: run.last.memory.items) for group in groups]
    average = [group.mean(lambda run: run.average) for group in groups]
    last = [group.mean(lambda run: run.accuracy[-1]) for group in groups]
    spreads = [spread([run.average for run in group.runs]) for group in groups]
    last_spreads = [spread([run.accuracy[-1] for run in group.runs]) for group in groups]
    figure.data += [list(row) for row in zip(order, held, average, last, spreads, strict=True)]
    if any(spreads):
        figure.title += "; bars: standard deviation over seeds"
    with drawn(figure, 2) as (left, right):
        line(left, 0, range(len(order)), average, "averaged over the phases", spreads)
        line(left, 1, range(len(order)), last, "after the last phase", last_spreads)
        left.set_xticks(range(len(order)), order)
        left.set(xlabel="quality", ylabel="AP" if run.detects else "accuracy, %")
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        line(right, 0, held, average, "averaged", spreads)
        right.set(xlabel="images held (labels: quality)", ylabel="averaged over the phases")
        right.margins(x=0.12, y=0.12)
        label_points(right, list(zip(held, average, order, strict=True)))
    return figure


def volume_ratios(runs: Sequence[RunRecord]) -> Section:
    """R_q by phase and candidate, for the first seed of each group."""
    groups = [group for group in group_by_seed(runs) if group.first.last.candidates]
    notes: list[Part] = []
    for group in groups:
        run = group.first
        lines = (
            [f"{what} ({why})" for what, why in run.result.left_out.items()] if run.result else []
        )
        if lines:
            notes.append(f"{run.data}, {group.label}: left out of R_q: {some_of(lines)}.")
    return Section(
        "volume-ratio", "R_q by phase (first seed)", [*map(_volume_ratios, groups), *notes]
    )


def _volume_ratios(group: Group) -> Figure:
    run = group.first
    used = run.quality or "chosen in each phase"
    figure = Figure(
        f"{run.data}, {group.label}; quality in use: {used}",
        "R_q of each quality after each phase, with the band in which a quality passes",
        [["codec", "quality", "phase", "R_q"]],
    )
    rows = [(n, row) for n, row in enumerate(run.last.candidates) if row["quality"] is not None]
    with drawn(figure, size=(4.7, 3.7)) as axes:
        passing_band(axes, float(run.memory.get("epsilon", 0.5)))
        for number, (place, row) in enumerate(rows):
            ratios = [phase.candidates[place]["volume_ratio"] for phase in run.phases]
            known = [(x, y) for x, y in enumerate(ratios) if y is not None]
            x, y = np.array(known).reshape(-1, 2).T
            line(axes, number, x, y, f"quality {row['quality']}")
            figure.data += [[row["codec"], row["quality"], *point] for point in known]
        phase_axis(axes)
        legend(axes, len(rows) + 1, below=True)
    return figure
