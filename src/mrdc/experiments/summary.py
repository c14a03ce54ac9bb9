"""What a run comes to, of classes or of scenes: fields that every result has."""

import math
import sys
from pathlib import Path
from typing import Any

from mrdc.experiments.settings import AnySettings
from mrdc.planning.choice import Candidate, choose_quality, judge
from mrdc.training.exemplars import ORIGINAL
from mrdc.training.metrics import average_incremental_accuracy
from mrdc.training.settings import MemorySettings


def totals(settings: AnySettings, phases: list[dict[str, Any]]) -> dict[str, Any]:
    """From what was measured after each phase; a detector's accuracy is its AP."""
    memory = settings.memory
    accuracy = [phase["accuracy"] for phase in phases]
    qualities = [phase["quality"] for phase in phases]
    ratios = volume_ratios(phases)
    return {
        "method": settings.method,
        "accuracy": accuracy,
        "average_incremental_accuracy": average_incremental_accuracy(accuracy),
        "quality": qualities if memory.quality == "dynamic" else qualities[-1],
        "memory": phases[-1]["memory"],
        "report": phases[-1].get("report", {}),
        "seconds": sum(phase["seconds"] for phase in phases),
        "volume_ratios": ratios,
        "mean_choice": mean_choice(memory, ratios),
        "left_out": left_out(phases),
        "parts": total_parts(phases),
        "trained_images": sum(phase["trained_images"] for phase in phases),
        "data": Path(settings.data).name,
        "budget": memory.budget,
        "quality_rule": memory.quality,
        "seed": settings.seed,
    }


def total_parts(phases: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each part of the work, over all phases."""
    parts: dict[str, float] = {}
    for phase in phases:
        for part, seconds in phase["parts"].items():
            parts[part] = parts.get(part, 0.0) + seconds
    return parts


def volume_ratios(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """R_q of every candidate after every phase, and the mean over the phases that know it."""
    rows = []
    for place, candidate in enumerate(phases[0]["candidates"]):
        ratios = [phase["candidates"][place]["volume_ratio"] for phase in phases]
        known = [ratio for ratio in ratios if ratio is not None]
        rows.append(
            {
                "codec": candidate["codec"],
                "quality": candidate["quality"],
                "quantity": [phase["candidates"][place]["quantity"] for phase in phases],
                "by_phase": ratios,
                "mean": sum(known) / len(known) if known else None,
            }
        )
    return rows


def left_out(phases: list[dict[str, Any]]) -> dict[str, str]:
    """What R_q could not be measured of, and why: candidates, and classes of other candidates."""
    found: dict[str, str] = {}
    for row in (row for phase in phases for row in phase["candidates"]):
        if row["volume_ratio"] is None:
            name = row["codec"] if row["quality"] is None else f"{row['codec']} {row['quality']}"
            found[name] = row["verdict"]
        found |= {f"class {name}": why for name, why in row.get("excluded_classes", {}).items()}
    return found


def mean_choice(memory: MemorySettings, ratios: list[dict[str, Any]]) -> int | str | None:
    """The quality that R_q averaged over the phases would choose; None where none passes."""
    candidates = [
        Candidate(row["codec"], row["quality"], sum(row["quantity"]), 0, log(row["mean"]), {})
        for row in ratios
        if row["mean"] is not None
    ]
    if not any(c.feasible for c in judge(candidates, memory.rule, memory.epsilon)):
        return None
    chosen = choose_quality(candidates, memory.rule, memory.epsilon)
    return ORIGINAL if chosen.quality is None else chosen.quality


def log(ratio: float) -> float:
    """Of a ratio that may be too small for a float."""
    return math.log(max(ratio, sys.float_info.min))
