"""Registries: names, entry points of other packages, plugin modules."""

import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import PLUGINS, Registry, import_plugins
from mrdc.planning.selection import SELECTORS, nearest_mean


def shapes() -> Registry[object]:
    return Registry("shape", "shapes", {"circle": 1, "square": 2})


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for plugin modules; selectors they register are removed afterwards."""
    before = dict(SELECTORS)
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    SELECTORS.clear()
    SELECTORS.update(before)


def test_unknown_name_lists_the_choices() -> None:
    """The message suggests a close name if there is one."""
    with pytest.raises(UsageError, match=r"unknown shape 'x': choose from circle, square$"):
        shapes().find("x")
    with pytest.raises(UsageError, match=r"unknown shape 'squar' \(did you mean 'square'\?\):"):
        shapes().find("squar")


def test_entry_points_are_loaded_when_a_name_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those of the registry's own group; they do not replace existing names."""
    asked: list[str] = []

    def points(group: str) -> list[EntryPoint]:
        asked.append(group)
        found = {"root": "math:sqrt", "circle": "math:sin"}
        return [EntryPoint(name, value, group) for name, value in found.items()]

    monkeypatch.setattr("mrdc._utils.registry.entry_points", points)
    registry = shapes()
    assert registry.find("circle") == 1 and asked == []
    root = registry.find("root")
    assert callable(root) and root(9) == 3
    assert registry.find("circle") == 1 and asked == ["mrdc.shapes"]


def test_objects_are_registered_under_their_own_names() -> None:
    """A new version of the same part replaces the old one; another part does not."""

    class Round:
        name = "round"

    class Other:
        name = "round"

    registry = shapes()
    assert registry.name_of("anything") == "anything"
    assert registry.name_of(nearest_mean) == "nearest_mean"
    assert registry.find("nearest_mean") is nearest_mean
    for part in (Round(), Round()):
        assert registry.name_of(part) == "round"
        assert registry["round"] is part
    with pytest.raises(UsageError, match="shape 'round' is already registered: rename yours"):
        registry.name_of(Other())


def test_plugin_module_registers_a_selector(plugins: Path) -> None:
    """In this process and, through the environment, in its child processes."""
    (plugins / "own_selector.py").write_text(
        "from mrdc.planning.selection import SELECTORS, nearest_mean\n"
        "SELECTORS['own'] = nearest_mean\n"
    )
    (plugins / "own_other.py").touch()
    import_plugins(["own_selector"])
    assert SELECTORS.find("own") is nearest_mean
    import_plugins(["own_other", "own_selector"])
    assert os.environ[PLUGINS] == "own_selector own_other"


@pytest.mark.parametrize("name", ["broken_plugin", "no_such_plugin"])
def test_plugin_that_cannot_be_imported_is_named(plugins: Path, name: str) -> None:
    """The message names the module, whatever it raises."""
    (plugins / "broken_plugin.py").write_text("1 / 0\n")
    with pytest.raises(UsageError, match=rf"--plugin {name}: cannot be imported \(.+\)"):
        import_plugins([name])
    assert os.environ[PLUGINS] == ""
