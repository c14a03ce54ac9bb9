"""Results as JSON, and the summary of a run."""

import json
from dataclasses import replace
from typing import Any

import pytest

from mrdc.training.results import MemorySummary, PhaseResult, RunResult
from mrdc.training.settings import MemorySettings
from mrdc.training.summary import left_out, mean_choice, totals, volume_ratios

PHASE = PhaseResult(
    phase=1,
    accuracy=62.5,
    quality=None,
    memory=MemorySummary(900, 1000, 12),
    trained_images=64,
    seconds=2.5,
    parts={"train": 2.0},
    tasks=[60.0, 65.0],
)
RUN = RunResult(
    method="lucir",
    accuracy=[70.0, 62.5],
    average_incremental_accuracy=66.25,
    average_forgetting=-10.0,
    quality=[None, 50],
    memory=MemorySummary(900, 1000, 12, 4),
    seconds=5.0,
    parts={},
    trained_images=128,
    data="photos",
    budget="20/class",
    quality_rule="dynamic",
    seed=0,
    phases=(PHASE,),
)


@pytest.mark.parametrize("record", [PHASE, replace(PHASE, quality=50), RUN])
def test_results_survive_a_round_trip_through_json(record: PhaseResult | RunResult) -> None:
    """Keys of a newer version are ignored; the phases of a run are not part of its line."""
    line = json.loads(json.dumps(record.to_json()))
    assert "phases" not in line
    again = type(record).from_json(line | {"from_the_future": 1})
    assert again == (replace(record, phases=()) if isinstance(record, RunResult) else record)


def test_none_is_left_out_unless_it_means_something() -> None:
    """The quality of originals is null; fields that do not apply are absent."""
    line = PHASE.to_json()
    assert line["quality"] is None
    assert line["memory"] == {"bytes": 900, "budget_bytes": 1000, "items": 12}
    assert "ap" not in line and "first_phase_seconds" not in line
    whole = RUN.to_json()
    assert whole["memory"]["parameter_bytes"] == 4
    null = [name for name, value in whole.items() if value is None]
    assert set(null) == {"mean_choice", "paper", "commit", "gpu", "first_phase_seconds"}


def row(ratio: float | None, quality: int | None = 10, quantity: int = 5) -> dict[str, Any]:
    """A candidate as in `plan --json`."""
    return {
        "codec": "original" if quality is None else "jpeg",
        "quality": quality,
        "quantity": quantity,
        "volume_ratio": ratio,
        "ratio_per_image": None if ratio is None else ratio**0.1,
        "discrepancy": 0.1 if quality is None else 0.05,
        "excluded_classes": {} if ratio is None or quality is None else {"a": "one image"},
        "verdict": "R_q unknown" if ratio is None else "passes",
    }


def phases(*ratios: float | None) -> list[PhaseResult]:
    return [replace(PHASE, candidates=[row(1.0, None, 2), row(ratio)]) for ratio in ratios]


def test_volume_ratios_are_averaged_where_they_are_known() -> None:
    plain, jpeg = volume_ratios(phases(0.75, None, 1.25))
    assert (plain["codec"], plain["mean"], plain["quantity"]) == ("original", 1.0, [2, 2, 2])
    assert jpeg["by_phase"] == [0.75, None, 1.25] and jpeg["mean"] == 1.0
    assert volume_ratios(phases(None))[1]["mean"] is None


@pytest.mark.parametrize(("ratio", "choice"), [(3.0, "original"), (1.2, 10), (None, "original")])
@pytest.mark.parametrize("criterion", ["volume-ratio", "ratio-per-image"])
def test_mean_ratio_chooses_a_quality(
    ratio: float | None, choice: int | str, criterion: Any
) -> None:
    """r is here 3.0^0.1 = 1.12, 1.2^0.1 = 1.018 or unknown."""
    ratios, memory = volume_ratios(phases(ratio)), MemorySettings(criterion=criterion)
    assert mean_choice(memory, ratios) == choice
    assert mean_choice(memory, ratios[1:]) == (choice if choice == 10 else None)


def test_mean_ratio_names_the_codec_among_several() -> None:
    """A quality alone would not tell which; AVIF stores more here."""
    plain, jpeg = volume_ratios(phases(1.2))
    avif = jpeg | {"codec": "avif", "quantity": [2 * number for number in jpeg["quantity"]]}
    assert mean_choice(MemorySettings(), [plain, jpeg, avif]) == "avif 10"
    assert mean_choice(MemorySettings(), [plain, avif]) == 10


def test_mean_discrepancy_chooses_a_quality() -> None:
    """It is known even where R_q is not."""
    rows = volume_ratios(phases(None, 3.0))
    assert [row["mean_discrepancy"] for row in rows] == [0.1, 0.05]
    assert mean_choice(MemorySettings(criterion="discrepancy"), rows) == 10


def test_candidates_and_classes_without_a_ratio_have_a_reason() -> None:
    assert left_out(phases(1.2, None)) == {"class a": "one image", "jpeg 10": "R_q unknown"}


@pytest.mark.parametrize(("rule", "quality"), [("dynamic", [None, 50]), ("auto", 50)])
def test_totals_add_up_the_phases(rule: str, quality: object) -> None:
    """Time and images are summed; memory is from the last phase; a dynamic quality is per phase."""
    last = replace(PHASE, quality=50, memory=MemorySummary(1, 2, 3), parts={"train": 1.0, "x": 2.0})
    found = totals(MemorySettings(quality=rule), [PHASE, last])
    assert found["quality"] == quality and found["memory"].items == 3
    assert (found["seconds"], found["trained_images"]) == (5.0, 128)
    assert found["parts"] == {"train": 3.0, "x": 2.0}
    assert found["accuracy"] == [62.5, 62.5] and found["average_incremental_accuracy"] == 62.5
