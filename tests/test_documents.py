"""What documents say is what the repository's commands print."""

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def module(path: str) -> Any:
    loader = SourceFileLoader(Path(path).stem, str(ROOT / path))
    found = importlib.util.spec_from_loader(loader.name, loader)
    assert found is not None
    made = importlib.util.module_from_spec(found)
    loader.exec_module(made)
    return made


def test_tables_are_those_of_the_result_files() -> None:
    """`python benchmarks/tables.py` would change nothing."""
    tables = module("benchmarks/tables.py")
    page = (ROOT / "REPRODUCTION.md").read_text()
    assert tables.filled(page) == page
    assert all(f"<!-- table {name} -->" in page for name in tables.TABLES)


def test_commands_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scripts/commands` would change nothing."""
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.setenv(name, "")  # put back what the script sets
    assert module("scripts/commands").page() == (ROOT / "docs" / "commands.md").read_text()


def test_links_between_documents_lead_somewhere() -> None:
    """Files that are named are there."""
    pages = [ROOT / "README.md", ROOT / "REPRODUCTION.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
