"""Summarise the phases of a run."""

import math
import sys
from collections.abc import Sequence
from typing import Any

from mrdc._utils.clock import Clock
from mrdc.data.stream import Stream
from mrdc.planning.choice import Candidate, choose_quality, judge
from mrdc.training.exemplars import ORIGINAL
from mrdc.training.metrics import average_forgetting, average_incremental_accuracy, forgetting
from mrdc.training.results import Json, PhaseResult, RunResult
from mrdc.training.settings import LearnSettings, MemorySettings

MEANS = {
    "mean": "by_phase",  # R_q
    "mean_ratio_per_image": "ratio_per_image",
    "mean_discrepancy": "discrepancy",
}


def summarise_classes(
    name: str, settings: LearnSettings, phases: Sequence[PhaseResult], stream: Stream
) -> RunResult:
    """The result of a run on classes."""
    head = [phase.head_accuracy or 0.0 for phase in phases]
    tasks = [phase.tasks or [] for phase in phases]
    return RunResult(
        method=name,
        seed=settings.seed,
        average_forgetting=average_forgetting(tasks),
        initial_forgetting=forgetting(tasks, 0),
        head_accuracy=head,
        head_average_incremental_accuracy=average_incremental_accuracy(head),
        tasks=tasks,
        old_as_old=[phase.old_as_old for phase in phases],
        new_as_new=[phase.new_as_new for phase in phases],
        networks_bytes=phases[-1].networks_bytes,
        sizes=list(stream.sizes),
        first_phase_seconds=phases[0].first_phase_seconds,
        match=settings.train.match,
        strict_budget=settings.memory.strict_budget,
        held_out=stream.held_out,
        ignored=stream.ignored,
        **totals(settings.choice, phases),
    )


def totals(memory: MemorySettings, phases: Sequence[PhaseResult]) -> dict[str, Any]:
    """Fields that every result has."""
    accuracy, ratios = [phase.accuracy for phase in phases], volume_ratios(phases)
    qualities = [phase.quality for phase in phases]
    clock = Clock()
    for phase in phases:
        clock.add(phase.parts)
    return {
        "accuracy": accuracy,
        "average_incremental_accuracy": average_incremental_accuracy(accuracy),
        "quality": qualities if memory.quality == "dynamic" else qualities[-1],
        "codecs": [phase.codec for phase in phases],
        "memory": phases[-1].memory,
        "report": phases[-1].report,
        "seconds": sum(phase.seconds for phase in phases),
        "volume_ratios": ratios,
        "mean_choice": mean_choice(memory, ratios),
        "left_out": left_out(phases),
        "parts": clock.seconds,
        "trained_images": sum(phase.trained_images for phase in phases),
        "budget": memory.budget,
        "quality_rule": memory.quality,
        "criterion": memory.criterion,
        "phases": tuple(phases),
        "data": "",
    }


def volume_ratios(phases: Sequence[PhaseResult]) -> list[Json]:
    """R_q, r and discrepancy of every candidate by phase.

    Their means are over the phases where they are known.
    """
    rows = []
    for place, candidate in enumerate(phases[0].candidates):
        found = [phase.candidates[place] for phase in phases]
        row = {
            "codec": candidate["codec"],
            "quality": candidate["quality"],
            "quantity": [one["quantity"] for one in found],
            "by_phase": [one["volume_ratio"] for one in found],
            "ratio_per_image": [one["ratio_per_image"] for one in found],
            "discrepancy": [one["discrepancy"] for one in found],
        }
        rows.append(row | {mean: _mean(row[name]) for mean, name in MEANS.items()})
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def left_out(phases: Sequence[PhaseResult]) -> dict[str, str]:
    """Candidates and classes without R_q, and why."""
    found: dict[str, str] = {}
    for row in (row for phase in phases for row in phase.candidates):
        if row["volume_ratio"] is None:
            name = row["codec"] if row["quality"] is None else f"{row['codec']} {row['quality']}"
            found[name] = row["verdict"]
        found |= {f"class {name}": why for name, why in row["excluded_classes"].items()}
    return found


def mean_choice(memory: MemorySettings, ratios: Sequence[Json]) -> int | str | None:
    """The quality that the means over the phases choose; None if nothing passes.

    Among several codecs, its codec is named too. Every row gets the verdict on its means.
    """

    def known(value: float | None) -> float:
        return math.nan if value is None else value

    candidates = [
        Candidate(
            row["codec"],
            row["quality"],
            sum(row["quantity"]),
            log_volume_ratio=math.log(known(row["mean"]) or sys.float_info.min),
            ratio_per_image=known(row["mean_ratio_per_image"]),
            discrepancy=known(row["mean_discrepancy"]),
        )
        for row in ratios
    ]
    judged = judge(candidates, memory)
    for row, candidate in zip(ratios, judged, strict=True):
        row["verdict"] = candidate.verdict
    best = choose_quality(judged, memory.criterion)
    if best is None:
        return None
    codecs = {candidate.codec for candidate in judged} - {ORIGINAL}
    if len(codecs) > 1 or judged[best].quality is None:
        return str(judged[best])
    return judged[best].quality
