"""Results made without training."""

from typing import Any

from mrdc.training.results import MemorySummary, RunResult

BLANK: dict[str, Any] = {"method": "lucir", "parts": {}, "trained_images": 1, "data": "x"}
BLANK |= {"budget": "8/class", "quality_rule": "auto", "seed": 0, "quality": 50, "seconds": 3.0}

RATIOS = [
    {"codec": "original", "quality": None, "quantity": [9, 9], "by_phase": [1.0, 1.0]},
    {"codec": "jpeg", "quality": 75, "quantity": [20, 9], "by_phase": [1.2, 1.4]},
    {"codec": "jpeg", "quality": 50, "quantity": [30, 9], "by_phase": [3.0, None]},
]


def result(score: float = 50.0, last: float = 40.0, items: int = 30, **more: Any) -> RunResult:
    given: dict[str, Any] = {"accuracy": [99.0, last], "average_incremental_accuracy": score}
    given |= {"average_forgetting": -3.0, "memory": MemorySummary(1, 2, items)}
    given = BLANK | given | more
    stored = given["quality"] if isinstance(given["quality"], list) else [given["quality"]] * 2
    codecs = ["original" if quality is None else "jpeg" for quality in stored]
    return RunResult(**{"codecs": codecs} | given)
