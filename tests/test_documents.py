"""What documents say is what the repository's commands print."""

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def module(path: str) -> Any:
    found = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert found is not None and found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def test_tables_are_those_of_the_result_files() -> None:
    """`python benchmarks/tables.py` would change nothing."""
    tables = module("benchmarks/tables.py")
    page = (ROOT / "REPRODUCTION.md").read_text()
    assert tables.filled(page) == page
    assert all(f"<!-- table {name} -->" in page for name in tables.TABLES)
