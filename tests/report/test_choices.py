"""The section on rules for choosing a quality."""

from pathlib import Path

from mrdc.report.choices import choice, trials
from mrdc.report.figures import Figure, Grid
from mrdc.report.runs import find_runs
from tests.experiments.test_choice import ROWS
from tests.report.folders import made


def folders(where: Path, budget: str, scores: dict[str, float]) -> None:
    """A run for each quality within a budget."""
    for quality, score in scores.items():
        stored = None if quality == "original" else int(quality)
        result = {
            "quality": stored,
            "quality_rule": quality,
            "codecs": ["original" if stored is None else "jpeg"] * 2,
            "average_incremental_accuracy": score,
            "volume_ratios": ROWS,
        }
        memory = {"quality": quality, "budget": budget}
        folder = where / budget.replace("/", "-") / quality
        made(folder, (score, score), quality=stored, memory=memory, result=result)


def test_tables_and_a_point_for_each_candidate(tmp_path: Path) -> None:
    """Two budgets are two settings; candidates that were not run have no point."""
    folders(tmp_path, "5/class", {"original": 40.0, "75": 42.0, "25": 45.0})
    folders(tmp_path, "20/class", {"original": 50.0, "75": 52.0, "25": 51.0})
    runs = find_runs([tmp_path])
    settings = ["photos, 5/class, 1 phases", "photos, 20/class, 1 phases"]
    assert list(dict.fromkeys(trial.setting for trial in trials(runs))) == settings
    rules, picks, figure = choice(runs).parts
    assert isinstance(rules, Grid) and isinstance(picks, Grid) and isinstance(figure, Figure)
    assert rules.rows[0] == ["rule", "grids", "mean", "interval", "worst"]
    assert ["r", 2, "0.50", "0.00 to 1.00", "1.00"] in rules.rows
    assert [row[2] for row in picks.rows[1:]] == ["jpeg 25 (45.00)", "jpeg 75 (52.00)"]
    assert "jpeg 50 (not run)" in picks.rows[1]
    assert len(figure.data) == 1 + 2 * 3 and figure.svg
    assert figure.data[1][2:] == ["original", 1.0, 1.0, 0.11, -5.0]


def test_no_grid_no_section(tmp_path: Path) -> None:
    made(tmp_path / "alone")
    assert choice(find_runs([tmp_path])).parts == []
