"""Imports point one way: a module may import only the modules before it in this list."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mrdc
from mrdc._utils.extras import TRAIN

ORDER = [
    "_utils",
    "distributed",
    "codec",
    "data",
    "memory",
    "nn",
    "planning",
    "adapters",
    "methods",
    "training",
    "detection",
    "experiments",
    "report",
    "cli",
    "__main__",
]
ROOT = Path(mrdc.__file__).parent


def layer(module: str) -> int:
    return ORDER.index(module.split(".")[1])


def imported(file: Path) -> list[str]:
    """Modules of the package that a file imports, anywhere in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += (
                [f"mrdc.{a.name}" for a in node.names] if node.module == "mrdc" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name.startswith("mrdc.") and name != "mrdc.__version__"]


def test_every_module_has_its_place() -> None:
    """A new module must be added to the order; the package root stays small."""
    found = {path.name for path in ROOT.iterdir()} - {"__pycache__"}
    assert len(found) <= 17  # the folders that docs/architecture.md lists, and three files
    modules = {name.removesuffix(".py") for name in found - {"__init__.py", "py.typed"}}
    assert modules == set(ORDER)


def test_imports_point_upwards() -> None:
    """No module imports one that comes after it."""
    for file in ROOT.rglob("*.py"):
        relative = file.relative_to(ROOT)
        if relative.name == "__init__.py" and len(relative.parts) == 1:
            continue
        here = ORDER.index(relative.parts[0].removesuffix(".py"))
        for name in imported(file):
            assert layer(name) <= here, f"{relative} imports {name}"


def loaded(node: ast.AST) -> Iterator[str]:
    """Packages that a module loads when it is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield (child.module or "").partition(".")[0]
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from loaded(ast.Module(child.orelse, []))
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from loaded(child)


@pytest.mark.parametrize("layer", ["_utils", "codec", "data", "memory", "planning"])
def test_the_core_is_light(layer: str) -> None:
    """Memories are read, written and packed without torch or other training packages."""
    for file in (ROOT / layer).rglob("*.py"):
        assert not TRAIN & {*loaded(ast.parse(file.read_text()))}, file


def test_no_pickle_anywhere() -> None:
    """Loading a file never runs code from it."""
    for file in ROOT.rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not names & {"pickle", "dill", "marshal", "shelve"}, file
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert any(
                    k.arg == "weights_only" and ast.unparse(k.value) == "True"
                    for k in node.keywords
                )
