"""The documents agree with the code and the result files."""

import ast
import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
OTHERS = {"--tyro-print-completion", "--strict", "--adapters", "--cases", "--only"}
BENCHMARKS = {"--photos", "--label", "--epochs", "--seeds"}
TORCHRUN = {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint"}
SLURM = {"--nodes", "--ntasks-per-node", "--gpus-per-node", "--cpus-per-task", "--requeue"}


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages_without(*names: str) -> list[Path]:
    return [page for page in PAGES if named(page) not in names]


def anchors(page: str) -> list[str]:
    """What links to the headings of a page end in, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def module(path: str) -> Any:
    """Import a script."""
    loader = SourceFileLoader(Path(path).stem, str(ROOT / path))
    found = importlib.util.spec_from_loader(loader.name, loader)
    assert found is not None
    made = importlib.util.module_from_spec(found)
    loader.exec_module(made)
    return made


def test_tables_agree_with_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python benchmarks/tables.py` would change nothing; each table is in one place."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tables = module("benchmarks/tables.py")
    pages = [page.read_text() for page in tables.PAGES]
    assert [tables.filled(page) for page in pages] == pages
    text = "".join(pages)
    assert all(text.count(f"<!-- table {name} -->") == 1 for name in tables.TABLES)


def test_command_reference_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scripts/commands` would change nothing."""
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.setenv(name, "")  # restored after the script sets it
    assert module("scripts/commands").page() == (ROOT / "docs" / "commands.md").read_text()


def test_api_reference_is_up_to_date() -> None:
    """`scripts/api` would change nothing."""
    assert module("scripts/api").page() == (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Linked files exist, and linked headings of this and other pages, too."""
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if heading:
            assert heading in anchors(linked.read_text())


@pytest.mark.parametrize("page", pages_without("docs/speed.md"), ids=named)
def test_flags_exist(page: Path) -> None:
    """Flags of mrdc in the documents are flags of the command line."""
    known = set(re.findall(r"--[a-z][\w.-]*\w", (ROOT / "docs" / "commands.md").read_text()))
    used = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", page.read_text()))
    assert used - known <= OTHERS | BENCHMARKS | TORCHRUN | SLURM


@pytest.mark.parametrize("page", pages_without("docs/api.md"), ids=named)
def test_python_in_documents_is_valid(page: Path) -> None:
    """Code blocks parse, and use names of mrdc that are public."""
    import mrdc

    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mrdc":
                assert node.attr in mrdc.__all__
            if isinstance(node, ast.ImportFrom) and node.module == "mrdc":
                assert {alias.name for alias in node.names} <= set(mrdc.__all__)
