"""The sentence at the top of a page."""

from pathlib import Path

import pytest

from mrdc.report.lead import lead_text
from mrdc.report.runs import find_runs
from mrdc.training.results import MemorySummary
from tests.report.folders import grid, made, phase, scenes


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (
            {"original": [0.0] * 3, "90": [30.0, 40.0, 50.0], "50": [39.0, 50.0, 61.0]},
            "Best averaged accuracy of the 3 qualities: 50.00 ± 11.00 % for 50, 10.00 points "
            "(standard error 0.58) above 90 (40.00 ± 10.00 %; 3 seeds). Along the run with "
            "originals, R_q picks 50.",
        ),
        (
            {"90": [50.0, 52.0], "50": [50.0, 54.0], "10": [40.0, 42.0]},
            "None of the 3 qualities is clearly best by averaged accuracy: 50 (52.00 ± 2.83 %) and "
            "90 (51.00 ± 1.41 %) differ by less than two standard errors (2 seeds).",
        ),
        (
            {"90": [50.0, 60.0], "50": [51.0, 61.0], "10": [40.0, 42.0]},
            "Highest averaged accuracy of the 3 qualities: 56.00 ± 7.07 % for 50, 1.00 points "
            "(standard error 0.00) above 90 (55.00 ± 7.07 %; 2 seeds).",
        ),
        (
            {"90": [50.0], "50": [51.0], "10": [40.0]},
            "Highest averaged accuracy of the 3 qualities: 51.00 % for 50, 1.00 points above "
            "90 (50.00 %; one seed).",
        ),
        (
            {"90": [50.0], "50": [50.0], "10": [40.0]},
            "None of the 3 qualities is clearly best by averaged accuracy: 90 (50.00 %) and "
            "50 (50.00 %) are equal (one seed).",
        ),
        (
            {"original": [50.0], "50": [53.0]},
            "Difference of averaged accuracy from originals: “lucir-mrdc, quality 50” +3.00 "
            "(1 pair).",
        ),
        (
            {"50": [50.0]},
            "lucir-mrdc, quality 50 on photos reaches an averaged accuracy of 50.00 % (one seed); "
            "its memory holds 7 images as jpeg 50, 90 B of 100 B.",
        ),
    ],
)
def test_the_lead_answers_the_question(
    scores: dict[str, list[float]], expected: str, tmp_path: Path
) -> None:
    """There is no best if pairs of the same seed differ by less than two standard errors."""
    assert lead_text(find_runs(grid(tmp_path, scores))) == expected


def test_only_runs_of_equal_budgets_are_compared(tmp_path: Path) -> None:
    """Unfinished runs are not compared."""
    for budget in ("4/class", "8/class"):
        for name in ("lucir", "podnet"):
            made(tmp_path / f"{name}-{budget[0]}", name=name, memory={"budget": budget})
    made(tmp_path / "going", done=False)
    first, second, last = lead_text(find_runs([tmp_path])).splitlines()
    assert first.startswith("4/class: None of the 2") and second.startswith("8/class: None of")
    assert last == "Not counted: 1 unfinished run."


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    assert lead_text(find_runs([made(tmp_path / "a", done=False)])) == "No run has finished yet."
    bare = made(tmp_path / "b", events=[phase(0, 60.0, memory=MemorySummary())], name="finetune")
    assert lead_text(find_runs([bare])).endswith("60.00 % (one seed) and stores no images.")
    assert "reaches an AP of 30.00 (" in lead_text(find_runs([scenes(tmp_path / "c", 30.0, {})]))
    for n in range(5):
        made(tmp_path / "d" / str(n), data=f"data-{n}")
    said = lead_text(find_runs([tmp_path / "d"])).splitlines()
    assert said[0].startswith("data-0: ")
    assert said[3] == "The tables below have the other comparisons."
