"""Regret: the accuracy that a rule for choosing a quality loses against the best of a grid.

A grid has a full run for every quality within the same bytes. Every rule sees what was measured
after the first phase, which all these runs share, and picks a quality; the grid says what it costs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from mrdc._utils.text import count
from mrdc.experiments.sweep import Cell
from mrdc.planning.choice import Candidate, best_first, choose_quality, judge
from mrdc.planning.settings import ChoiceSettings, SearchSettings
from mrdc.training.results import RunResult

Json = dict[str, Any]
Rule = Callable[[Sequence[Candidate]], Candidate | None]
RESAMPLES = 10_000  # of the bootstrap


def by(settings: SearchSettings) -> Rule:
    """The rule of a search with these settings."""

    def pick(candidates: Sequence[Candidate]) -> Candidate | None:
        best = choose_quality(judge(candidates, settings), settings.criterion)
        return None if best is None else candidates[best]

    return pick


def always(quality: int | None) -> Rule:
    """The same quality whatever was measured; None for originals."""
    return lambda candidates: next((c for c in candidates if c.quality == quality), None)


def most_images(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that stores most images; among equals, the best quality."""
    ordered = [candidates[index] for index in best_first(candidates)]
    return max(ordered, key=lambda candidate: candidate.quantity)


RULES: dict[str, Rule] = {
    "R_q": by(SearchSettings(criterion="volume-ratio")),
    "R_q as published": by(SearchSettings(criterion="volume-ratio", rule="paper")),
    "r": by(SearchSettings(criterion="ratio-per-image")),
    "r if matched": by(ChoiceSettings(matched=True)),
    "discrepancy": by(SearchSettings(criterion="discrepancy")),
    "always 50": always(50),
    "always 75": always(75),
    "most images": most_images,
    "originals": always(None),
}


@dataclass(frozen=True)
class Trial:
    """A full run at a fixed quality."""

    setting: str  # data, budget, ...: everything but the quality and the seed
    result: RunResult

    @property
    def name(self) -> str:
        """The candidate that was stored."""
        quality = self.result.quality
        return "original" if quality is None else f"{self.result.codecs[-1]} {quality}"

    @property
    def score(self) -> float:
        return self.result.ap[-1] if self.result.ap else self.result.average_incremental_accuracy

    def candidates(self) -> list[Candidate]:
        """What was measured after the first phase."""
        return [
            Candidate(
                row["codec"],
                row["quality"],
                row["quantity"][0],
                log_volume_ratio=_log(row["by_phase"][0]),
                ratio_per_image=_number(row.get("ratio_per_image", [None])[0]),
                discrepancy=_number(row.get("discrepancy", [None])[0]),
            )
            for row in self.result.volume_ratios
        ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _log(ratio: float | None) -> float:
    return math.nan if ratio is None else math.log(ratio) if ratio > 0 else -math.inf


@dataclass(frozen=True)
class Grid:
    """The runs of one setting and seed, by what they stored."""

    setting: str
    seed: int
    trials: dict[str, Trial]
    best: str  # the candidate with the highest mean score over the seeds of the setting

    def loss(self, pick: str | None) -> float | None:
        """Points that a pick loses against the best; None if it was not run."""
        if pick not in self.trials:
            return None
        return self.trials[self.best].score - self.trials[pick].score

    def measured(self) -> list[Candidate]:
        """What was measured after the first phase, in the run with originals if there is one."""
        first = next(iter(self.trials.values()))
        return self.trials.get("original", first).candidates()

    def pick(self, rule: Rule) -> str | None:
        """The candidate that a rule chooses."""
        known = self.measured()
        picked = rule(known) if known else None
        return None if picked is None else str(picked)


def grids(trials: Sequence[Trial]) -> list[Grid]:
    """Grids by setting and seed.

    The best is that of the setting, because the best of one seed is partly luck.
    """
    settings: dict[str, dict[int, dict[str, Trial]]] = {}
    for trial in trials:
        if trial.result.quality_rule not in ("auto", "dynamic"):
            seeds = settings.setdefault(trial.setting, {})
            seeds.setdefault(trial.result.seed, {}).setdefault(trial.name, trial)
    found = []
    for setting, seeds in settings.items():
        everywhere = set.intersection(*(set(runs) for runs in seeds.values()))
        if len(everywhere) < 2:
            continue  # nothing to choose from

        def score(name: str, seeds: dict[int, dict[str, Trial]] = seeds) -> float:
            return mean(runs[name].score for runs in seeds.values())

        best = max(sorted(everywhere), key=score)
        found += [Grid(setting, seed, runs, best) for seed, runs in sorted(seeds.items())]
    return found


def by_grid(found: Sequence[Grid]) -> list[Json]:
    """A row for each grid: its best, and what every rule picks and loses."""
    rows = []
    for one in found:
        picks = {name: one.pick(rule) for name, rule in RULES.items()}
        rules = {name: {"pick": pick, "loss": one.loss(pick)} for name, pick in picks.items()}
        score = one.trials[one.best].score
        rows.append(
            {"setting": one.setting, "seed": one.seed, "best": one.best, "score": score} | rules
        )
    return rows


def by_rule(rows: Sequence[Json]) -> list[Json]:
    """A row for each rule: its mean loss over the grids with a 95 % interval, and its worst."""
    found = []
    for rule in RULES:
        losses = [row[rule]["loss"] for row in rows if row[rule]["loss"] is not None]
        low, high = interval(losses)
        found.append(
            {
                "rule": rule,
                "grids": len(losses),
                "mean": mean(losses) if losses else None,
                "low": low,
                "high": high,
                "worst": max(losses, default=None),
            }
        )
    return found


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95 % bootstrap interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None, None
    draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return low, high


def regret(trials: Sequence[Trial]) -> Json:
    """The regret table, by rule and by grid."""
    rows = by_grid(grids(trials))
    return {"rules": by_rule(rows), "grids": rows}


def sentence(rules: Sequence[Json]) -> str:
    """The rules in the order of their mean loss."""
    known = sorted((row for row in rules if row["grids"]), key=lambda row: float(row["mean"]))
    if not known:
        return ""
    losses = ", ".join(f"{row['rule']} {row['mean']:.2f}" for row in known)
    most = max(row["grids"] for row in known)
    return f"Points lost on average over {count(most, 'grid')}: {losses}."


def of_study(made: Sequence[Cell], results: Sequence[RunResult]) -> Json:
    """The regret table of a study, and its sentence."""
    trials = []
    for cell, result in zip(made, results, strict=True):
        place = [v for axis, v in cell.place.items() if axis not in ("memory.quality", "seed")]
        trials.append(Trial(", ".join([result.data, *place]), result))
    found = regret(trials)
    return {"regret": found, "answer": sentence(found["rules"])}
