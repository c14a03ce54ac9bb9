"""`benchmarks/card.py`: which run to start next."""

from pathlib import Path

import pytest

from mrdc.experiments.presets import preset
from tests.test_documents import ROOT, module

card = module("benchmarks/card.py")
RUNS = ROOT / "benchmarks" / "cub.toml"


def test_the_first_run_that_is_ready_and_can_end_is_started(tmp_path: Path) -> None:
    jobs = [
        {"name": "begun", "command": "", "seconds": 1},
        {"name": "long", "command": "", "seconds": 100},
        {"name": "without data", "command": "", "seconds": 1, "needs": str(tmp_path / "data")},
        {"name": "next", "command": "", "seconds": 5},
    ]

    def name(left: float) -> str | None:
        job = card.startable(jobs, {"begun"}, left)
        return None if job is None else str(job["name"])

    assert name(left=100) == "long"
    assert name(left=99) == "next"
    assert name(left=4) is None
    (tmp_path / "data").mkdir()
    assert name(left=4) == "without data"


def test_a_list_that_is_being_written_names_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.toml"
    assert card.listed(file) == []
    file.write_text('[[run]]\nname = "a')
    assert card.listed(file) == []
    file.write_text('[[run]]\nname = "a"\ncommand = "lucir"\n')
    assert card.listed(file) == []
    assert "a run has no seconds" in capsys.readouterr().out
    file.write_text(file.read_text() + "seconds = 1\n")
    assert [job["name"] for job in card.listed(file)] == ["a"]


def test_the_list_of_runs_that_are_due_is_complete() -> None:
    """Every run has a name of its own, a command of a known recipe, and a time."""
    jobs = card.listed(RUNS)
    assert len({job["name"] for job in jobs}) == len(jobs) > 0
    for job in jobs:
        assert job["seconds"] > 0
        preset(job["command"].split()[0])
