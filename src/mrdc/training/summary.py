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
        sizes=list(stream.sizes),
        first_phase_seconds=phases[0].first_phase_seconds,
        strict_budget=settings.memory.strict_budget,
        held_out=stream.held_out,
        ignored=stream.ignored,
        **totals(settings.memory, phases),
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
        "phases": tuple(phases),
        "data": "",
    }


def volume_ratios(phases: Sequence[PhaseResult]) -> list[Json]:
    """R_q of every candidate by phase, and its mean over the phases where it is known."""
    rows = []
    for place, candidate in enumerate(phases[0].candidates):
        ratios = [phase.candidates[place]["volume_ratio"] for phase in phases]
        known = [ratio for ratio in ratios if ratio is not None]
        rows.append(
            {
                "codec": candidate["codec"],
                "quality": candidate["quality"],
                "quantity": [phase.candidates[place]["quantity"] for phase in phases],
                "by_phase": ratios,
                "mean": sum(known) / len(known) if known else None,
            }
        )
    return rows


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
    """The quality that R_q averaged over the phases chooses; None if nothing passes.

    Every row gets the verdict on its mean.
    """
    candidates = [
        Candidate(
            row["codec"],
            row["quality"],
            sum(row["quantity"]),
            log_volume_ratio=math.log(max(row["mean"], sys.float_info.min))
            if row["mean"] is not None
            else math.nan,
        )
        for row in ratios
    ]
    judged = judge(candidates, memory.rule, memory.epsilon)
    for row, candidate in zip(ratios, judged, strict=True):
        row["verdict"] = candidate.verdict
    best = choose_quality(judged)
    if best is None:
        return None
    return ORIGINAL if judged[best].quality is None else judged[best].quality
