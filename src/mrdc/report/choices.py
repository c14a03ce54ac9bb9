"""Losses of the rules for choosing a quality, and their predictions."""

from collections import Counter
from collections.abc import Sequence

from mrdc.experiments.choice import RULES, Trial, grids, regret
from mrdc.experiments.choice import Grid as QualityGrid
from mrdc.planning.choice import Candidate
from mrdc.planning.settings import SYMBOLS
from mrdc.report.criteria import MEASURED
from mrdc.report.figures import (
    COLOURS,
    MARKS,
    Figure,
    Grid,
    Section,
    drawn,
    numbers_in_full,
    wrapped,
)
from mrdc.report.runs import Json, RunRecord, by_seed, quality_grids

CAPTION = (
    "Points of accuracy lost against the quality that is best on average over the seeds; with a "
    "95 % bootstrap interval."
)


def choice(runs: Sequence[RunRecord]) -> Section:
    """Tables of regret, and predicted against measured."""
    section = Section("choice", "Rules for choosing a quality")
    found = trials(runs)
    table = regret(found)
    if table["grids"]:
        rules, rows = (
            [rule_row(row) for row in table["rules"]],
            [_grid(row) for row in table["grids"]],
        )
        picks = "What each rule picks, and the points it loses."
        section.parts += [Grid.of(rules, CAPTION), Grid.of(rows, picks), predicted(grids(found))]
    return section


def trials(runs: Sequence[RunRecord]) -> list[Trial]:
    """The runs of every grid of qualities, by a setting that tells grids apart."""
    found: list[Trial] = []
    count: Counter[str] = Counter()
    names = len({run.name for run in runs}) > 1
    for grid in quality_grids(by_seed(runs)):
        run = next(iter(grid.values())).first
        parts = [run.data, str(run.memory["budget"]), f"{run.settings['phases']} phases"]
        label = ", ".join(parts + ([run.name] if names else []))
        count[label] += 1
        setting = label if count[label] == 1 else f"{label} ({count[label]})"
        members = [run for group in grid.values() for run in group.runs]
        found += [Trial(setting, run.result) for run in members if run.result]
    return found


def rule_row(row: Json) -> Json:
    """Loss of a rule, as shown."""
    known = row["low"] is not None
    return {
        "rule": row["rule"],
        "grids": row["grids"],
        "mean": "" if row["mean"] is None else f"{row['mean']:.2f}",
        "interval": f"{row['low']:.2f} to {row['high']:.2f}" if known else "",
        "worst": "" if row["worst"] is None else f"{row['worst']:.2f}",
    }


def _grid(row: Json) -> Json:
    cells = {"setting": row["setting"], "seed": row["seed"]}
    cells["best"] = f"{row['best']} ({row['score']:.2f})"
    return cells | {rule: shown(row[rule]) for rule in RULES}


def shown(cell: Json) -> str:
    """A pick and what it loses: jpeg 25 (0.31)."""
    if cell["pick"] is None:
        return "?"
    return f"{cell['pick']} ({'not run' if cell['loss'] is None else format(cell['loss'], '.2f')})"


def predicted(found: Sequence[QualityGrid]) -> Figure:
    """Each criterion after the first phase against accuracy, a point for each candidate."""
    figure = Figure(
        "Predicted after the first phase against measured by training, a point for each candidate",
        "Points relative to the best of the grid, by R_q, by r and by discrepancy",
        [["setting", "seed", "candidate", *SYMBOLS.values(), "points relative to the best"]],
    )
    points: dict[str, list[tuple[Candidate, float]]] = {}
    for grid in found:
        for candidate in grid.measured():
            if (loss := grid.loss(str(candidate))) is not None:
                points.setdefault(grid.setting, []).append((candidate, -loss))
                values = [getattr(candidate, name) for name in MEASURED.values()]
                figure.data.append([grid.setting, grid.seed, str(candidate), *values, -loss])
    with drawn(figure, len(MEASURED), (9.6, 4.2)) as panels:
        for axes, (criterion, name) in zip(panels, MEASURED.items(), strict=True):
            for number, (setting, pairs) in enumerate(points.items()):
                n = number % len(COLOURS)
                x, y = zip(*((getattr(one, name), score) for one, score in pairs), strict=True)
                axes.plot(x, y, MARKS[n], color=COLOURS[n], label=wrapped(setting))
            axes.set(xlabel=SYMBOLS[criterion])
            if criterion == "volume-ratio":
                axes.set(xscale="log")
                numbers_in_full(axes.xaxis)
        panels[0].set(ylabel="points relative to the best")
        panels[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return figure
