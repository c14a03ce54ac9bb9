"""Time by kind of work, and confusion between tasks."""

from collections.abc import Sequence

import numpy as np

from mrdc.report.figures import COLOURS, Figure, drawn, wrapped
from mrdc.report.groups import Group, group_by_seed
from mrdc.report.parts import Grid, Section
from mrdc.report.runs import RunRecord

PARTS = ("train", "taken_over", "decode", "select", "volume_ratio", "encode", "evaluate")
TAKEN_OVER = "Taken over: a first phase that another run trained and this one shares."


def times(runs: Sequence[RunRecord]) -> Section:
    """Time and training speed of each group; means over seeds."""
    groups = group_by_seed(runs)
    figure = _times(groups)
    caption = TAKEN_OVER if "taken_over" in figure.data[0] else ""
    return Section("time", "Time", [figure, Grid.of([_speed(g) for g in groups], caption)])


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
        left = np.zeros(len(groups))
        places = range(len(groups))
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
    found = dict.fromkeys([*PARTS, "other"], 0.0)
    for phase in run.phases:
        for part, seconds in phase.parts.items():
            found[part if part in PARTS else "other"] += seconds
    return found


def _speed(group: Group) -> dict[str, object]:
    """Time and images/s, not counting first phases that other runs trained."""
    phases = [phase for run in group.runs for phase in run.phases]
    own = [phase for phase in phases if "taken_over" not in phase.parts]
    seconds = sum(phase.parts.get("train", 0.0) for phase in own)
    images = sum(phase.trained_images for phase in own)
    trained = sum(phase.trained_images for phase in phases) / len(group.runs)
    return {
        "run": group.label,
        "seconds": f"{group.mean(lambda run: run.seconds):.0f}",
        "trained images": f"{trained:,.0f}",
        "images/s in training": f"{images / seconds:,.0f}" if seconds and images else "",
    }


def confusion(runs: Sequence[RunRecord]) -> Section:
    """Tasks that images of each task are assigned to, for the first seed of each group."""
    groups = [g for g in group_by_seed(runs) if len(g.first.last.confusion or []) > 1]
    return Section(
        "confusion", "Confusion by task (first seed)", [_confusion(group) for group in groups]
    )


def _confusion(group: Group) -> Figure:
    run = group.first
    counts = np.array(run.last.confusion)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(
        f"{run.data}, {group.label}",
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
