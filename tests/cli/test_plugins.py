"""Methods, codecs and data sets from other modules and packages."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mrdc._utils.registry import PLUGINS
from mrdc.cli.main import main
from mrdc.codec import CODECS
from mrdc.data import DATASETS
from mrdc.experiments import presets
from mrdc.methods import METHODS, LwF
from tests.processes import SMALL, Cli

MODULE = """
from mrdc.codec import CODECS, Jpeg
from mrdc.data import DATASETS, Splits
from mrdc.data.textures import textures
from mrdc.methods import METHODS, LwF

class Mine(Jpeg):
    name = "mine-codec"

METHODS["mine"] = LwF
CODECS["mine-codec"] = Mine()
DATASETS["mine-data"] = lambda: Splits(textures(4, 6), textures(4, 2), held_out=False)
"""
SHORT = [*SMALL, "--train.epochs", "1", "--phases", "1", "--memory.codec", "mine-codec"]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module on the path, unloaded afterwards."""
    before = [(registry, dict(registry)) for registry in (METHODS, CODECS, DATASETS)]
    (tmp_path / "my_plugin.py").write_text(MODULE)
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_plugin"
    sys.modules.pop("my_plugin", None)
    for registry, entries in before:
        registry.clear()
        registry.update(entries)  # type: ignore[arg-type]


def test_a_plugin_in_runs_and_sweeps(plugin: str, tmp_path: Path, cli: Cli) -> None:
    """The processes of a sweep also import it."""
    given = ["mine-mrdc", "--data", "mine-data", *SHORT, "--plugin", plugin]
    assert "unknown recipe" in cli.refused("run", *given[:-2])
    found = cli.json("run", *given, "--memory.quality", "50", "--out", tmp_path / "run")
    assert (found["method"], found["data"], found["quality"]) == ("mine", "mine-data", 50)
    assert cli.json("info", tmp_path / "run" / "memory-01.mrdc")["codec"] == "mine-codec"
    grid = ["--grid", "memory.quality=50", "--jobs", "1", "--out", tmp_path / "out"]
    swept = cli.json("sweep", *given, *grid)
    assert swept["runs"][0]["accuracy"] == found["accuracy"]


def test_what_a_plugin_prints_is_not_in_the_json(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_plugin.py").write_text(f"{MODULE}\nprint('hello')\n")
    assert main(["list", "codecs", "--json", "--plugin", plugin]) == 0
    out, err = capsys.readouterr()
    assert "mine-codec" in json.loads(out)["codecs"] and err == "hello\n"


@pytest.mark.parametrize("form", ["--plugin my_plugin", "--plugin=my_plugin"])
@pytest.mark.usefixtures("plugin")
def test_a_plugin_in_lists(form: str, cli: Cli) -> None:
    assert "mine" not in cli.json("list")["methods"]
    names = cli.json("list", *form.split())
    assert "mine" in names["methods"] and "mine-codec" in names["codecs"]
    assert "mine-data" in names["datasets"]
    assert {"mine", "mine-mrdc", "cub-5-mine", "textures-mine-mrdc"} <= set(names["presets"])


def test_a_plugin_in_plans(plugin: str, photos: Path, cli: Cli) -> None:
    flags = ["--budget", "4/class", "--codec", "mine-codec", "--quality", "50", "--plugin", plugin]
    found = cli.json("plan", photos, *flags, "--select", "random_choice")
    assert found["candidates"][1]["codec"] == "mine-codec"


def test_an_entry_point(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """A method of an installed package needs no flag."""

    def points(group: str) -> list[EntryPoint]:
        point = EntryPoint("theirs", f"{__name__}:LwF", group)
        return [point] if group == "mrdc.methods" else []

    monkeypatch.setattr("mrdc._utils.registry.entry_points", points)
    monkeypatch.setattr(presets, "entry_points", points)
    monkeypatch.setattr(presets, "installed_methods", presets.installed_methods.__wrapped__)
    names = cli.json("list")
    assert "theirs" in names["methods"] and "theirs-mrdc" in names["presets"]
    flags = [*SHORT[:-2], "--data", photos, "--memory.quality", "50", "--out", tmp_path / "run"]
    try:
        assert cli.json("run", "theirs-mrdc", *flags)["method"] == "theirs"
        assert METHODS["theirs"] is LwF
    finally:
        METHODS.pop("theirs", None)


@pytest.mark.parametrize("module", ["no_such_module", "broken_plugin"])
@pytest.mark.parametrize("verb", ["list", "run lucir --data textures", "study t-sne"])
@pytest.mark.usefixtures("plugin")
def test_a_module_that_cannot_be_imported(module: str, verb: str, cli: Cli) -> None:
    err = cli.refused(*verb.split(), "--plugin", module)
    assert f"--plugin {module}: cannot be imported" in err
