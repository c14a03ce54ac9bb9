"""Tables of rules for choosing a quality: what they choose, and what that loses."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any
from unittest.mock import patch

from common import Row, read, table
from mrdc._utils.text import ratio
from mrdc.experiments.choice import Grid as QualityGrid
from mrdc.experiments.choice import by_grid, by_rule, grids
from mrdc.experiments.choice import regret as losses
from mrdc.planning.choice import Candidate
from mrdc.planning.settings import LIMITS
from mrdc.report.choices import choice, rule_row, shown
from mrdc.report.choices import trials as grid_runs
from mrdc.report.figures import Grid
from runs import records

LIMITS_TRIED = (
    *((0.95, high) for high in (1.02, 1.03, 1.04, 1.05)),
    *((1 - both, 1 + both) for both in (0.02, 0.03, 0.06, 0.08, 0.1, 0.2, 0.5)),
)


MEASURING = ("R_q", "R_q as published", "r", "discrepancy")  # rules that look at features


@dataclass(frozen=True)
class PlannedGrid(QualityGrid):
    """A grid whose rules see what `plan` measured, instead of the network of the first phase."""

    planned: tuple[Candidate, ...]

    def measured(self) -> list[Candidate]:
        return list(self.planned)


def regret(*labels: str, by_grid: bool = True) -> str:
    """Losses of every rule for choosing a quality against grids of full runs."""
    parts = choice(records(*labels)).parts
    grids = [part for part in parts if isinstance(part, Grid)]
    shown = grids if by_grid else grids[:1]
    return "\n".join(f"{part.caption}\n\n{table(*part.rows)}" for part in shown)


def bounds(*labels: str) -> str:
    """Losses of r with other limits: the row of r in the table of `regret`."""
    rows: list[list[object]] = [["r between", "mean", "interval", "worst"]]
    found = grid_runs(records(*labels))

    def lost(limits: tuple[float, float], more: str = "") -> list[object]:
        with patch.dict(LIMITS, {"ratio-per-image": limits}):
            row = next(row for row in losses(found)["rules"] if row["rule"] == "r")
        span = "{:g} and {:g}".format(*limits) + more
        return [span, *(rule_row(row)[str(name)] for name in rows[0][1:])]

    rows += map(lost, LIMITS_TRIED)
    with alike():
        rows.append(lost(LIMITS["ratio-per-image"], " at every quality"))
    return table(*rows)


def alike() -> AbstractContextManager[Any]:
    """The same limits for every quality."""
    return patch("mrdc.planning.settings.GENTLE", 101)


def planned(budget: str, labels: dict[str, str]) -> str:
    """Losses of the rules of `plan` against grids of full runs; `labels` names plan and runs."""
    plans = {row["label"]: row for row in read("plan") if row["budget"]["text"] == budget}
    found = [
        PlannedGrid(**vars(grid), planned=tuple(map(measured, plans[label]["candidates"])))
        for label, runs in labels.items()
        for grid in grids(grid_runs(records(runs)))
        if f", {budget}," in grid.setting
    ]
    rows = by_grid(found)
    head = ["data", "seed", "best", *MEASURING]
    picks: list[list[object]] = [list(head)]
    for row in rows:
        data, best = row["setting"].split(",")[0], f"{row['best']} ({row['score']:.2f})"
        picks.append([data, row["seed"], best, *(shown(row[rule]) for rule in MEASURING)])
    return f"{summary(found, MEASURING)}\n{table(*picks)}"


def since(*labels: str) -> str:
    """Losses of the rules on sets that were run after the limits of r had been set."""
    return summary(grids(grid_runs(records(*labels))), (*MEASURING, "most images"))


def summary(found: Sequence[QualityGrid], rules: Sequence[str]) -> str:
    """Losses of some rules, and of r with one limit for all qualities."""
    rows = [row for row in by_rule(by_grid(found)) if row["rule"] in rules]
    with alike():
        strict = next(row for row in by_rule(by_grid(found)) if row["rule"] == "r")
    rows.append(strict | {"rule": "r, 1.03 at every quality"})
    shown_rows = list(map(rule_row, rows))
    return table(list(shown_rows[0]), *(list(row.values()) for row in shown_rows))


def measured(row: Row) -> Candidate:
    """A candidate of a plan."""
    known = {field.name for field in fields(Candidate)} & row.keys()
    return Candidate(**{name: row[name] for name in known})


def name(candidate: Row) -> str:
    quality = candidate["quality"]
    return candidate["codec"] if quality is None else f"{candidate['codec']} {quality}"


def plans() -> str:
    """Every plan: images and R_q by candidate, the choice in bold."""
    parts = []
    for plan in read("plan"):
        exact = any("l2" in candidate for candidate in plan["candidates"])
        parts.append(
            f"{plan['label']}, {plan['budget']['text']}, r {allowed(plan)}, "
            f"{plan['seconds']:.0f} s\n(commit {plan['commit']}, {plan['gpu'] or plan['cpu']})\n"
        )
        head = ["candidate", "bytes/image", "images", "R_q", "r", "discrepancy", "verdict"]
        rows: list[list[object]] = [[*head, *(["log Z_q", "L_2"] if exact else [])]]
        for c in plan["candidates"]:
            label = f"**{name(c)}**" if c["verdict"] == "chosen" else name(c)
            each = f"{c['bytes'] / c['quantity']:,.0f}"
            ratios = [ratio(c["volume_ratio"]), f"{c['ratio_per_image']:.4f}"]
            measured = [*ratios, f"{c['discrepancy']:.4f}"]
            cells = [label, each, f"{c['quantity']:,}", *measured, c["verdict"]]
            if exact:
                cells += [f"{c['log_z']:.2f}", f"{c['l2']:.3f}"] if "l2" in c else ["", ""]
            rows.append(list(cells))
        file = plan["audit"]
        parts.append(table(*rows))
        parts.append(
            f"`pack` wrote {file['items']:,} images, {file['payload_bytes']:,} of "
            f"{file['budget_bytes']:,} budget bytes, in a file of {file['file_bytes']:,}; "
            f"audit: {'sound' if file['ok'] else file['problems']}.\n"
        )
    return "\n".join(parts)


def allowed(plan: Row) -> str:
    """Where r had to lie; it was an equal distance from 1 at first."""
    if "limits" in plan:
        return "between {} and {}".format(*plan["limits"])
    return f"within {plan['epsilon']} of 1"


def samples() -> str:
    """Plans on some classes: how often they agree with the plan on all, for how much work."""
    head = ["data", "classes", "drawn", "chosen by all", "same choice", "sure", "sure and right"]
    rows: list[list[object]] = [[*head, "error of r at 10", "images embedded"]]
    for row in read("sample"):
        of = f"of {row['runs']}"
        rows.append(
            [
                row["label"],
                row["classes"],
                row["sample"],
                row["chosen"],
                f"{row['same']} {of}",
                f"{row['sure']} {of}",
                f"{row['sure_and_same']} of {row['sure']}",
                f"{row['error']:.4f}",
                f"{100 * row['work']:.0f} %",
            ]
        )
    return table(*rows)
