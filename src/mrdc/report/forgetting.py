"""Forgetting of the classes of the first phase (App. E.3)."""

from collections.abc import Sequence

from mrdc.report.curves import by_phase
from mrdc.report.figures import Grid, Section
from mrdc.report.runs import Group, Json, RunRecord, by_seed, named_data, with_spread

CAPTION = "Forgetting: accuracy of the first classes after the last phase minus their best."


def forgetting(runs: Sequence[RunRecord]) -> Section:
    """Accuracy of the first classes by phase, and how much of it is lost."""
    groups = [group for group in by_seed(runs) if len(first_classes(group.first)) > 1]
    section = Section("forgetting", "Forgetting of the first classes")
    if groups:
        rows = [name | _lost(group) for name, group in zip(named_data(groups), groups, strict=True)]
        figures = by_phase(groups, "accuracy of the first classes, %", first_classes)
        section.parts += [Grid.of(rows, CAPTION), *figures]
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
