"""Boxes on the command line."""

from pathlib import Path

import pytest

from tests.cli.test_cli import run, said
from tests.memory.test_scenes import road

__all__ = ["road"]  # a fixture
FAST = ["--quality", "50"]  # random_choice, so no network


def test_commands_report_boxes(
    road: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their number, their classes, and what was left out."""
    assert run("pack", road, "--budget", "1MB", "-o", tmp_path / "a", *FAST) == 0
    out = capsys.readouterr().out
    assert "19 boxes of 2 classes; 1 below 1 pixel left out; 1 crowd region left out" in out
    assert "19 boxes held" in out
    assert run("info", tmp_path / "a") == 0
    shown = capsys.readouterr().out
    assert "19 of 2 classes (cat, dog)" in shown and "per class" not in shown
    about = said(capsys, "info", tmp_path / "a")
    assert (about["boxes"], about["box_classes"]) == (19, ["cat", "dog"])
    assert about["notes"]["select"] == "random_choice"
    assert said(capsys, "audit", tmp_path / "a")["ok"] is True
    argument = ["pack", road / "train.json", "--budget", "1MB", "-o", tmp_path / "b", *FAST]
    assert said(capsys, *argument)["boxes"]["held"] == 19
