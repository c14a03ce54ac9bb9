"""Fixtures for tests of commands."""

from pathlib import Path

import pytest

from tests.processes import Cli
from tests.processes import cli as cli

FAST = ["--select", "random_choice", "--quality", "50"]  # needs no network


@pytest.fixture
def memory(photos: Path, tmp_path: Path, cli: Cli) -> Path:
    """A memory file of three classes."""
    assert cli("pack", photos, "--budget", "4/class", "-o", tmp_path / "a.mrdc", *FAST) == 0
    return tmp_path / "a.mrdc"
