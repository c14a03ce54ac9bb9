"""Accuracy against bytes, of originals and of compressed memories."""

from collections.abc import Sequence
from statistics import mean

from mrdc.experiments.worth import ORIGINAL, Point, Worth, point, worth
from mrdc.report.figures import Figure, Grid, Section, drawn, line, numbers_in_full
from mrdc.report.runs import RunRecord, by_seed, spread, with_spread

CAPTION = (
    "Factor: bytes that originals need for the same accuracy, for each byte of this memory; "
    "interpolated between budgets, geometric mean and range over seeds."
)
MEGA = 1e6


def bytes_against_accuracy(runs: Sequence[RunRecord]) -> Section:
    """A figure and a table for each data set, method and number of phases."""
    section = Section("bytes", "Bytes against accuracy")
    streams: dict[tuple[str, str, int], list[Point]] = {}
    for group in by_seed([run for run in runs if run.result and run.replays]):
        first = group.first
        key = first.data, str(first.settings["method"]), int(first.settings["phases"])
        budget, original = str(first.memory["budget"]), first.memory["quality"] == ORIGINAL
        arm = group.label.replace(f", {budget}", "", 1)
        here = [point(run, arm, budget, original) for run in group.results.values()]
        streams.setdefault(key, []).extend(here)
    for (data, method, phases), points in streams.items():
        found = worth(points)
        if len({one.budget for one in found}) > 1:
            title = f"{data}, {method}, {phases} phases"
            section.parts += [_figure(title, found), Grid.of([*map(_row, found)], CAPTION)]
    return section


def _row(one: Worth) -> dict[str, str]:
    return {
        "memory": one.arm,
        "budget": one.budget,
        "MB": f"{one.bytes / MEGA:.2f}",
        "MB with networks": f"{(one.bytes + one.networks) / MEGA:.2f}",
        "accuracy, %": with_spread(one.scores),
        "factor": one.text,
    }


def _figure(title: str, found: Sequence[Worth]) -> Figure:
    figure = Figure(
        f"{title}: averaged accuracy against bytes; bars: standard deviation over seeds",
        "Left: the memory alone. Right: with the network and its teacher",
        [["memory", "budget", "bytes", "bytes with networks", "mean", "standard deviation"]],
    )
    arms = {one.arm: [other for other in found if other.arm == one.arm] for one in found}
    with drawn(figure, 2, (9.6, 4.2)) as (left, right):
        for number, (arm, members) in enumerate(arms.items()):
            members = sorted(members, key=lambda one: one.bytes)
            means, spreads = zip(
                *((mean(m.scores), spread(m.scores)) for m in members), strict=True
            )
            for axes, extra in ((left, 0), (right, 1)):
                sizes = [(m.bytes + extra * m.networks) / MEGA for m in members]
                line(axes, number, sizes, means, arm, spreads)
            for m, centre, error in zip(members, means, spreads, strict=True):
                figure.data.append([arm, m.budget, m.bytes, m.bytes + m.networks, centre, error])
        for axes, what in ((left, "MB of memory"), (right, "MB of memory, network and teacher")):
            axes.set(xscale="log", xlabel=what)
            numbers_in_full(axes.xaxis)
        left.set(ylabel="averaged accuracy, %")
        left.legend(loc="upper center", bbox_to_anchor=(1.0, -0.16), ncols=3)
    return figure
