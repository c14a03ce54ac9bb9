"""Figures of runs: accuracy, quality against quantity, confusion and time."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean

import numpy as np
from matplotlib.ticker import MaxNLocator

from mrdc.report.figures import (
    COLOURS,
    Figure,
    Grid,
    Part,
    Section,
    drawn,
    label_points,
    legend,
    line,
    wrapped,
)
from mrdc.report.lead import picked, verdict
from mrdc.report.runs import (
    Group,
    RunRecord,
    by_seed,
    named_data,
    quality_grids,
    spread,
    with_spread,
)

KINDS = ("train", "taken_over", "decode", "select", "volume_ratio", "encode", "evaluate")
TAKEN_OVER = "Taken over: a first phase that another run trained and this one shares."
BOTH_SIDES = (
    "Test images of old classes assigned to any old class, and of new ones to any new class; mean "
    "over the phases after the first."
)
SIDES: dict[str, Callable[[RunRecord], list[float]]] = {
    "old as old, %": lambda run: [p.old_as_old for p in run.phases if p.old_as_old is not None],
    "new as new, %": lambda run: [p.new_as_new for p in run.phases if p.new_as_new is not None],
}


def accuracy(runs: Sequence[RunRecord]) -> Section:
    """Accuracy of the classes seen, or AP."""
    section = Section("accuracy", "Accuracy by phase")
    groups, seen = by_seed(runs), "accuracy of the classes seen, %"
    for detects, what in ((False, seen), (True, "AP")):
        these = [group for group in groups if group.first.detects == detects]
        section.parts += by_phase(these, what, lambda run: run.accuracy)
    return section


def by_phase(
    groups: Sequence[Group],
    what: str,
    values: Callable[[RunRecord], Sequence[float]],
    first: int = 0,
) -> list[Figure]:
    """Figures for each data set and number of phases, with a line for each group.

    Lines are spread evenly over figures with at most as many as there are colours. Values
    start with phase `first`.
    """
    streams: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        streams.setdefault((group.first.data, group.first.settings["phases"]), []).append(group)
    found = []
    for here in streams.values():
        count = -(-len(here) // len(COLOURS))
        cuts = [len(here) * part // count for part in range(count + 1)]
        found += [_by_phase(here[start:end], what, values, first) for start, end in pairwise(cuts)]
    return found


def _by_phase(
    groups: Sequence[Group],
    what: str,
    values: Callable[[RunRecord], Sequence[float]],
    first: int,
) -> Figure:
    run = groups[0].first
    seeds = "; bars: standard deviation over seeds" if any(len(g.runs) > 1 for g in groups) else ""
    figure = Figure(
        f"{run.data}, {run.settings['phases']} phases: {what} after each{seeds}",
        f"Lines of {what} by phase for {', '.join(group.label for group in groups)}",
        [["run", "phase", what, "standard deviation"]],
    )
    with drawn(figure) as axes:
        for number, group in enumerate(groups):
            points = list(zip(*map(values, group.runs), strict=False))
            means, spreads = [mean(p) for p in points], [spread(p) for p in points]
            places = range(first, first + len(points))
            line(axes, number, places, means, group.label, spreads)
            rows = enumerate(zip(means, spreads, strict=True), first)
            figure.data += [[group.label, place, *row] for place, row in rows]
        axes.set(ylabel=what, xlabel="phase")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes, len(groups))
    return figure


def trade_off(runs: Sequence[RunRecord]) -> Section:
    """Quality against quantity: groups that differ only in quality."""
    section = Section("trade-off", "Quality against quantity")
    for grid in quality_grids(by_seed(runs)):
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
        scores = (last, last_spreads) if run.detects else (average, spreads)
        line(right, 1 if run.detects else 0, held, scores[0], "", scores[1])
        what = "after the last phase" if run.detects else "averaged over the phases"
        right.set(xlabel="images held (labels: quality)", ylabel=what)
        right.margins(x=0.12, y=0.12)
        label_points(right, list(zip(held, scores[0], order, strict=True)))
    return figure


def confusion(runs: Sequence[RunRecord]) -> Section:
    """Test images assigned to old and new classes, and by task for the first seed of each group."""
    groups = [g for g in by_seed(runs) if len(g.first.last.confusion or []) > 1]
    return Section("confusion", "Confusion", [*old_and_new(groups), *map(_confusion, groups)])


def old_and_new(groups: Sequence[Group]) -> list[Part]:
    """Shares of old test images assigned to any old class, and of new ones to any new class."""
    known = [g for g in groups if all(values(run) for run in g.runs for values in SIDES.values())]
    if not known:
        return []
    rows = [
        name | {what: with_spread([mean(of(run)) for run in g.runs]) for what, of in SIDES.items()}
        for name, g in zip(named_data(known), known, strict=True)
    ]
    lines = [figure for what, of in SIDES.items() for figure in by_phase(known, what, of, first=1)]
    return [Grid.of(rows, BOTH_SIDES), *lines]


def _confusion(group: Group) -> Figure:
    run = group.first
    counts = np.array(run.last.confusion)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(
        f"{run.data}, {group.label}: confusion by task after the last phase (first seed)",
        "Percentage of the images of each task that are assigned to classes of each task",
        [["true task", "predicted task", "percent"]],
    )
    with drawn(figure, size=(4.7, 3.9)) as axes:
        places = np.arange(len(shares))
        ticks = places[:: -(-len(shares) // 12)]
        axes.pcolormesh(places, places, shares, cmap="Blues", vmin=0, vmax=100, ec="white")
        axes.invert_yaxis()
        style = {"ha": "center", "va": "center", "fontsize": 8.5 if len(shares) < 9 else 6}
        for (row, column), value in np.ndenumerate(shares):
            colour = "white" if value > 55 else "black"
            axes.text(column, row, f"{value:.0f}", color=colour, **style)
            figure.data.append([row, column, float(value)])
        axes.grid(False)
        axes.set(xlabel="predicted task", ylabel="true task", xticks=ticks, yticks=ticks)
    return figure


def times(runs: Sequence[RunRecord]) -> Section:
    """Time and images/s of each group, means over seeds; speed only of phases trained here."""
    groups, rows = by_seed(runs), []
    for group in groups:
        phases = [phase for run in group.runs for phase in run.phases]
        own = [phase for phase in phases if "taken_over" not in phase.parts]
        seconds = sum(phase.parts.get("train", 0.0) for phase in own)
        images = sum(phase.trained_images for phase in own)
        trained = sum(phase.trained_images for phase in phases) / len(group.runs)
        rows.append(
            {
                "run": group.label,
                "seconds": f"{group.mean(lambda run: run.seconds):.0f}",
                "trained images": f"{trained:,.0f}",
                "images/s in training": f"{images / seconds:,.0f}" if seconds and images else "",
            }
        )
    figure = _times(groups)
    caption = TAKEN_OVER if "taken_over" in figure.data[0] else ""
    return Section("time", "Time", [figure, Grid.of(rows, caption)])


def _times(groups: Sequence[Group]) -> Figure:
    spent = [[seconds_by_part(run) for run in group.runs] for group in groups]
    means = {p: np.array([np.mean([run[p] for run in g]) for g in spent]) for p in spent[0][0]}
    names = [part for part in means if any(means[part])]
    figure = Figure(
        "Seconds of a run by kind of work (mean over seeds)",
        "Stacked bars of seconds by kind of work, one bar for each group of runs",
        [["run", *names]],
    )
    for place, group in enumerate(groups):
        figure.data.append([group.label, *(f"{means[part][place]:.2f}" for part in names)])
    with drawn(figure, size=(7.2, 1.3 + 0.42 * len(groups))) as axes:
        left, places = np.zeros(len(groups)), range(len(groups))
        for part, colour in zip(names, COLOURS, strict=False):
            label = part.replace("_", " ")
            axes.barh(places, means[part], 0.6, left, label=label, color=colour, edgecolor="white")
            left += means[part]
        axes.set_yticks(places, [wrapped(group.label, 30) for group in groups], fontsize=8.5)
        axes.invert_yaxis()
        axes.set(xlabel="seconds")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def seconds_by_part(run: RunRecord) -> dict[str, float]:
    """Seconds of a run by kind of work; small kinds are summed as "other"."""
    found = dict.fromkeys([*KINDS, "other"], 0.0)
    for phase in run.phases:
        for part, seconds in phase.parts.items():
            found[part if part in KINDS else "other"] += seconds
    return found
