"""Conclusions of a study: a row for each kind of run, and a sentence."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import mean
from typing import Any

from mrdc.experiments.sweep import Cell, Outcome, averages, by_place
from mrdc.training.results import RunResult

Json = dict[str, Any]


def study_table(made: Sequence[Cell], outcomes: Sequence[Outcome]) -> list[Json]:
    """The rows of a sweep, with the mean R_q of what was stored and what it picks."""
    rows = []
    for place, runs in by_place(made, outcomes).items():
        known = [ratio for run in runs if (ratio := stored_ratio(run)) is not None]
        lost = [run.initial_forgetting for run in runs if run.initial_forgetting is not None]
        about = {
            "volume_ratio": mean(known) if known else None,
            "picks": sorted({str(run.mean_choice) for run in runs if run.mean_choice is not None}),
            "initial_forgetting": mean(lost) if lost else None,
        }
        rows.append(dict(place) | averages(runs) | about)
    return rows


def stored_ratio(run: RunResult) -> float | None:
    """R_q of the stored quality, averaged over the phases; None if it was not measured."""
    chosen, phases = run.quality, len(run.accuracy)
    qualities = chosen if isinstance(chosen, list) else [chosen] * phases
    measured = {(row["codec"], row["quality"]): row["by_phase"] for row in run.volume_ratios}
    stored = enumerate(zip(run.codecs, qualities, strict=False))
    values = [measured[pair][phase] for phase, pair in stored if pair in measured]
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def row_name(row: Json, without: str = "") -> str:
    """The place of a row in the grid, except on one axis."""
    axes = list(row)[: list(row).index("runs")]
    return ", ".join(str(row[axis]) for axis in axes if axis != without)


def answer(rows: Sequence[Json], kind: str) -> str:
    """R_q compared with training, in a sentence; empty if the study does not ask."""
    if kind == "grid":
        return best_of_grid(rows)
    if kind == "images":
        return orders(rows, "images held within R_q's bound", lambda row: row["items"])
    if kind == "nearness":
        return orders(rows, "R_q nearest to 1", lambda row: -abs(math.log(row["volume_ratio"])))
    return ""


def best_of_grid(rows: Sequence[Json]) -> str:
    """The best quality by training, and the one R_q picks along the run with originals."""
    grids: dict[str, list[Json]] = {}
    for row in rows:
        grids.setdefault(row_name(row, "memory.quality"), []).append(row)
    sentences = []
    for name, grid in grids.items():
        said = []
        if len(grid) > 1:
            best = max(grid, key=lambda row: float(row["average_incremental_accuracy"]))
            score = best["average_incremental_accuracy"]
            said.append(f"the best of the grid is {best['memory.quality']} ({score:.2f} %)")
        picks = [" or ".join(row["picks"]) for row in grid if row["memory.quality"] == "original"]
        if any(picks):
            said.append(f"R_q, measured along the run with originals, picks {picks[0]}")
        text = "; ".join(said)
        if text:
            sentences.append(f"{name}: {text}." if name else f"{text[0].upper()}{text[1:]}.")
    return " ".join(sentences)


def orders(rows: Sequence[Json], by: str, predicted: Callable[[Json], float]) -> str:
    """The order of rows by R_q and by training, and the pairs they agree on."""
    known = [row for row in rows if row["volume_ratio"]]
    if len(known) < 2:
        return ""

    def trained(row: Json) -> float:
        return float(row["average_incremental_accuracy"])

    def order(score: Callable[[Json], float]) -> str:
        return " > ".join(row_name(row) for row in sorted(known, key=score, reverse=True))

    pairs = list(combinations(known, 2))
    agree = sum((predicted(a) - predicted(b)) * (trained(a) - trained(b)) > 0 for a, b in pairs)
    return (
        f"By {by}: {order(predicted)}. By training: {order(trained)}. "
        f"They agree on {agree} of {len(pairs)} pairs."
    )
