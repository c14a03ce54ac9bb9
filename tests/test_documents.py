"""The documents agree with the code and the result files."""

import ast
import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
OTHERS = {"--tyro-print-completion", "--strict", "--adapters", "--photos", "--cases", "--only"}
TORCHRUN = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint"}
SLURM = {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task", "--requeue"}


def pages_without(*names: str) -> list[Path]:
    return [page for page in PAGES if page.name not in names]


def module(path: str) -> Any:
    """Import a script."""
    loader = SourceFileLoader(Path(path).stem, str(ROOT / path))
    found = importlib.util.spec_from_loader(loader.name, loader)
    assert found is not None
    made = importlib.util.module_from_spec(found)
    loader.exec_module(made)
    return made


def test_tables_agree_with_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python benchmarks/tables.py` would change nothing."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tables = module("benchmarks/tables.py")
    pages = [page.read_text() for page in tables.PAGES]
    assert [tables.filled(page) for page in pages] == pages
    assert all(f"<!-- table {name} -->" in "".join(pages) for name in tables.TABLES)


def test_command_reference_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scripts/commands` would change nothing."""
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.setenv(name, "")  # restored after the script sets it
    assert module("scripts/commands").page() == (ROOT / "docs" / "commands.md").read_text()


def test_api_reference_is_up_to_date() -> None:
    """`scripts/api` would change nothing."""
    assert module("scripts/api").page() == (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Linked files exist, and linked headings of other pages, too."""
    for target, heading in re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#([^)]+))?", page.read_text()):
        assert (page.parent / target).exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.MULTILINE)
            assert heading in [title.lower().replace(" ", "-") for title in titles]


@pytest.mark.parametrize(
    "page", pages_without("REPRODUCTION.md", "speed.md"), ids=lambda page: page.name
)
def test_flags_exist(page: Path) -> None:
    """Flags of mrdc in the documents are flags of the command line."""
    known = set(re.findall(r"--[a-z][\w.-]*\w", (ROOT / "docs" / "commands.md").read_text()))
    used = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", page.read_text()))
    assert used - known <= OTHERS | TORCHRUN | SLURM


@pytest.mark.parametrize("page", pages_without("api.md"), ids=lambda page: page.name)
def test_python_in_documents_is_valid(page: Path) -> None:
    """Code blocks parse, and use names of mrdc that are public."""
    import mrdc

    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mrdc":
                assert node.attr in mrdc.__all__
            if isinstance(node, ast.ImportFrom) and node.module == "mrdc":
                assert {alias.name for alias in node.names} <= set(mrdc.__all__)
