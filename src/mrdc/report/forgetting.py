"""Forgetting of the classes of the first phase (App. E.3)."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

from matplotlib.ticker import MaxNLocator

from mrdc.report.figures import COLOURS, Figure, Grid, Section, drawn, legend, line
from mrdc.report.runs import Group, Json, RunRecord, by_seed, named_data, spread, with_spread

CAPTION = "Forgetting: accuracy of the first classes after the last phase minus their best."


def forgetting(runs: Sequence[RunRecord]) -> Section:
    """Accuracy of the first classes by phase, and what is lost of it."""
    section = Section("forgetting", "Forgetting of the first classes")
    groups = [group for group in by_seed(runs) if len(first_classes(group.first)) > 1]
    if not groups:
        return section
    rows = [name | _lost(group) for name, group in zip(named_data(groups), groups, strict=True)]
    section.parts.append(Grid.of(rows, CAPTION))
    streams: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        streams.setdefault((group.first.data, group.first.settings["phases"]), []).append(group)
    for here in streams.values():
        places = [*range(0, len(here), len(COLOURS)), len(here)]
        section.parts += [_curves(here[start:end]) for start, end in pairwise(places)]
    return section


def first_classes(run: RunRecord) -> list[float]:
    """Accuracy of the classes of the first phase after each phase."""
    return [phase.tasks[0] for phase in run.phases if phase.tasks]


def _lost(group: Group) -> Json:
    curves = [first_classes(run) for run in group.runs]
    return {
        "seeds": len(group.runs),
        "after phase 0, %": with_spread([curve[0] for curve in curves]),
        "after the last, %": with_spread([curve[-1] for curve in curves]),
        "forgetting": with_spread([curve[-1] - max(curve) for curve in curves]),
    }


def _curves(groups: Sequence[Group]) -> Figure:
    run = groups[0].first
    seeds = "; bars: standard deviation over seeds" if any(len(g.runs) > 1 for g in groups) else ""
    figure = Figure(
        f"{run.data}, {run.settings['phases']} phases: accuracy of the first classes, %{seeds}",
        f"Lines of the accuracy of the first classes by phase for {len(groups)} kinds of runs",
        [["run", "phase", "accuracy of the first classes, %", "standard deviation"]],
    )
    with drawn(figure) as axes:
        for number, group in enumerate(groups):
            points = list(zip(*map(first_classes, group.runs), strict=False))
            means, spreads = [mean(p) for p in points], [spread(p) for p in points]
            line(axes, number, range(len(points)), means, group.label, spreads)
            rows = enumerate(zip(means, spreads, strict=True))
            figure.data += [[group.label, place, *row] for place, row in rows]
        axes.set(ylabel="accuracy, %", xlabel="phase")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes, len(groups))
    return figure
