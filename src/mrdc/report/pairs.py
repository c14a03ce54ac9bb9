"""Pairs of runs of the same seed: with compressed images, and with originals."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from mrdc.experiments.pairs import Arm, Difference, Number, baseline, difference, score
from mrdc.report.figures import Grid, Section
from mrdc.report.runs import Group, Json, RunRecord, by_seed, named_data
from mrdc.training.results import RunResult

CAPTION = "Mean over pairs of the same seed ± its standard error, in points; one pair has no error."


class Pairing(NamedTuple):
    """Groups of runs to compare: one with originals, and another."""

    group: Group
    base: Group
    ours: Arm
    originals: Arm

    def difference(self, number: Number = score) -> Difference | None:
        return difference(self.ours.numbers(number), self.originals.numbers(number))


def pairings(groups: Sequence[Group]) -> list[Pairing]:
    """Every finished group that has originals to compare it with."""
    arms = [Arm(group.first.decisive, group.results) for group in groups if group.results]
    known = [group for group in groups if group.results]
    found = []
    for group, arm in zip(known, arms, strict=True):
        base = baseline(arm, arms)
        if base is not None and set(arm.runs) & set(base.runs):
            place = next(n for n, other in enumerate(arms) if other is base)
            found.append(Pairing(group, known[place], arm, base))
    return found


def pairs(runs: Sequence[RunRecord]) -> Section:
    """Differences from originals."""
    found = pairings(by_seed(runs))
    names = named_data([pairing.group for pairing in found])
    rows = [name | _pair(pairing) for name, pairing in zip(names, found, strict=True)]
    grids = [Grid.of(rows, CAPTION)] if rows else []
    return Section("pairs", "Difference from originals", [*grids])


def _pair(pairing: Pairing) -> Json:
    found: dict[str, Number] = {"averaged": score, "last phase": _last}
    found |= {"forgetting": attrgetter("average_forgetting")}
    found |= {"of first classes": attrgetter("initial_forgetting")}
    if pairing.group.first.detects:
        found = {"AP": score, "AP50": lambda run: _at_end(run.ap50)}
        found["AP75"] = lambda run: _at_end(run.ap75)
    values = {name: pairing.difference(number) for name, number in found.items()}
    row: Json = {"pairs": len(set(pairing.ours.runs) & set(pairing.originals.runs))}
    row |= {name: value.value if value else "" for name, value in values.items()}
    ours, theirs = (group.first.memory.get("budget") for group in (pairing.group, pairing.base))
    return row | {"from": "" if ours == theirs else pairing.base.label}


def _last(run: RunResult) -> float:
    return run.accuracy[-1]


def _at_end(values: list[float] | None) -> float | None:
    return values[-1] if values else None
