"""Settings from names, files and text."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from mrdc._utils.errors import UsageError
from mrdc.experiments.config import at, changed, fitted, grid, named
from mrdc.experiments.presets import preset
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests.processes import Cli

BASE = RunSettings("photos")


def toml(tmp_path: Path, text: str, name: str = "mine.toml") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


# Names and files


def test_a_file_changes_settings_of_its_recipe(tmp_path: Path) -> None:
    """At any depth; the run is named after the file."""
    text = """
        recipe = "podnet-mrdc"
        data = "birds"
        seed = 3
        size = 64
        options = ["nca=paper", "margin=0.4"]
        superclasses = "groups.csv"
        [train]
        epochs = 7
        milestones = [0.5]
        lr = 1
        [memory]
        quality = 50
        qualities = [30, 60]
    """
    label, _, found = named(toml(tmp_path, text))
    usual = preset("podnet-mrdc").settings
    assert isinstance(usual, RunSettings)
    assert label == "mine"
    assert found.settings == replace(
        usual,
        data="birds",
        seed=3,
        size=64,
        options=("nca=paper", "margin=0.4"),
        superclasses=Path("groups.csv"),
        train=replace(usual.train, epochs=7, milestones=(0.5,), lr=1.0),
        memory=replace(usual.memory, quality="50", qualities=(30, 60)),
    )
    assert isinstance(found.settings.train.lr, float)


def test_names_and_files(tmp_path: Path) -> None:
    """A file may start from a preset, use the names of flags, and be JSON, with null for unset."""
    assert named("lucir-mrdc") == ("lucir-mrdc", "lucir-mrdc", preset("lucir-mrdc"))
    found = named(toml(tmp_path, 'recipe = "sub-5-lucir"\nseed = 1')).preset
    assert (found.paper, found.prefix, found.settings.seed) == (70.84, "imagenet-sub:", 1)
    text = 'recipe = "lucir"\nset = ["margin=0.4"]\n[train]\nbatch-size = 8\n'
    settings = named(toml(tmp_path, text)).preset.settings
    assert (settings.options, settings.train.batch_size) == (("margin=0.4",), 8)
    text = '{"recipe": "bic", "size": null, "train": {"epochs": 2}}'
    label, _, found = named(toml(tmp_path, text, "cell.json"))
    assert isinstance(found.settings, RunSettings)
    assert (label, found.settings.size, found.settings.train.epochs) == ("bic", None, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs recipe = "),
        ('recipe = "lucyr"', "did you mean 'lucir'"),
        ('recipe = "cub-6-lucir"', "unknown preset 'cub-6-lucir'"),
        ("recipe = ", "cannot be read as settings"),
        pytest.param("a = " + "[" * 5000, "cannot be read as settings", id="deep"),
        ('recipe = "lucir"\nepochs = 3', "unknown setting in .*mine.toml 'epochs'"),
        ('recipe = "lucir"\n[train]\nepoch = 3', "did you mean 'epochs'"),
        ('recipe = "lucir"\n[memory.more]\nx = 3', "unknown setting in .* 'more'"),
        ('recipe = "lucir"\ntrain = 3', "mine.toml: train must be a table"),
        ('recipe = "lucir"\n[train]\nepochs = "many"', "epochs must be a whole number, got 'many'"),
        ('recipe = "lucir"\ncache = "no"', "cache must be true or false, got 'no'"),
        ('recipe = "lucir"\nsize = "big"', "size must be a whole number"),
        ('recipe = "lucir"\nmethod = "bic"', "leave `method` out; `recipe` names it"),
    ],
)
def test_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        named(toml(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing files, other bytes, a list, a folder."""
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "b.json").write_text("[1]")
    (tmp_path / "c.toml").mkdir()
    for name in ("a.toml", "c.toml"):
        with pytest.raises(UsageError, match=f"{name}: cannot be read"):
            named(str(tmp_path / name))
    for name in ("gone.toml", "gone.json"):
        with pytest.raises(UsageError, match=f"{name}: no such file"):
            named(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"b.json: needs recipe"):
        named(str(tmp_path / "b.json"))
    with pytest.raises(UsageError, match="unknown recipe"):
        named(str(tmp_path / ".toml"))


def test_a_file_is_as_strict_as_flags(tmp_path: Path) -> None:
    """A fraction of an epoch, an unknown choice, a list instead of text."""
    lines = ["train.epochs = 2.7", "seed = true", 'stem = "5x5"', "memory.budget = [1]"]
    lines += ['device = "tpu"', 'precision = "fp16"', 'train.schedule = "step"']
    for line in [*lines, 'memory.volume = "foo"', 'memory.pairing = "foo"']:
        with pytest.raises(UsageError, match="must be"):
            named(toml(tmp_path, f'recipe = "lucir"\n{line}'))


def test_flags_override_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    text = 'recipe = "lwf-mrdc"\ndata = "textures"\nseed = 3\n[train]\nepochs = 7\nlr = 0.5'
    seen: list[tuple[RunSettings, Any]] = []

    def run(settings: RunSettings, **rest: Any) -> None:
        seen.append((settings, rest["name"]))
        raise UsageError("enough")

    monkeypatch.setattr("mrdc.experiments.run.run", run)
    flags = ["--train.epochs", "2", "--memory.quality", "30", "--json"]
    assert "enough" in cli.refused("run", toml(tmp_path, text), *flags)
    ((settings, name),) = seen
    assert (name, settings.method, settings.data, settings.seed) == ("mine", "lwf", "textures", 3)
    assert (settings.train.epochs, settings.train.lr) == (2, 0.5)
    assert settings.memory == replace(preset("lwf-mrdc").settings.memory, quality="30")


# Values


@pytest.mark.parametrize(
    ("hint", "value", "new"),
    [
        (int, 4, 4),
        (int, 4.0, 4),
        (float, 1, 1.0),
        (str, 50, "50"),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[float, ...], 1, (1.0,)),
        (tuple[str, ...], ["a=1", "b=2"], ("a=1", "b=2")),
        (int | None, 7, 7),
        (int | None, None, None),
        (Path | None, "a/b", Path("a/b")),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_values_are_converted_to_the_type_of_their_field(hint: Any, value: Any, new: Any) -> None:
    found = fitted(hint, value, "file: field")
    assert found == new
    assert type(found) is type(new)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "x", "file: field must be a whole number, got 'x'"),
        (int, 4.5, "must be a whole number"),
        (int, True, "must be a whole number"),
        (int, float("inf"), "must be a whole number"),
        (int, 10**400, "must be a whole number"),
        (float, 10**400, "must be a number"),
        (float, float("nan"), "must be a number"),
        (float, {}, "must be a number"),
        (bool, "true", "must be true or false"),
        (str, [1], "must be text"),
        (tuple[int, ...], ["x"], "must be a whole number"),
        (Literal["a", "b"], "c", "must be one of a, b, got 'c'"),
    ],
)
def test_values_of_another_type_are_refused(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fitted(hint, value, "file: field")


def test_changed_leaves_the_rest() -> None:
    new = changed(BASE, {"seed": 1, "memory": {"quality": "50"}}, "here")
    assert new == RunSettings("photos", seed=1, memory=MemorySettings(quality="50"))
    assert RunSettings("photos") == BASE
    assert changed(BASE, {}, "here") == BASE


def test_changed_reaches_every_field() -> None:
    """A cell of a sweep is written and read back as such a file."""
    for field in fields(TrainSettings):
        value = getattr(BASE.train, field.name)
        plain = list(value) if isinstance(value, tuple) else value
        assert changed(BASE, {"train": {field.name: plain}}, "here") == BASE


def test_at_one_dotted_place() -> None:
    """Text is converted to the type of the setting."""
    assert at(BASE, "seed", "4").seed == 4
    assert at(BASE, "memory.quality", "50").memory == MemorySettings(quality="50")
    assert at(BASE, "train.lr", "0.3").train == TrainSettings(lr=0.3)
    assert at(BASE, "memory.qualities", "30+60").memory.qualities == (30, 60)
    assert at(BASE, "size", "32").size == 32
    assert at(BASE, "train.lr", "1e+1").train == TrainSettings(lr=10.0)
    for text in ("2024.10", "1e5", "007", "/data/c++/x"):
        assert at(BASE, "data", text).data == text
    assert at(BASE, "set", "margin=0.4").options == ("margin=0.4",)
    assert at(BASE, "train.batch-size", "8").train == TrainSettings(batch_size=8)


@pytest.mark.parametrize(
    ("dotted", "message"),
    [
        ("sed", "unknown setting in --grid sed 'sed'.*did you mean 'seed'"),
        ("", "unknown setting in --grid  ''"),
        ("memory", "memory must be a table"),
        ("memory.kwality", "did you mean 'quality'"),
        ("train.quality", "unknown setting in --grid train.quality: train 'quality'"),
        ("seed.more", "seed must be a whole number"),
        ("cache", "cache must be true or false"),
        ("memory.quality.x", "quality must be text"),
    ],
)
def test_unknown_places_are_refused(dotted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        at(BASE, dotted, "x")


# Grids


def test_a_deep_value_of_a_grid_is_text() -> None:
    """It is then refused like any other text."""
    with pytest.raises(UsageError, match="must be a whole number"):
        at(BASE, "seed", "[" * 5000)


def test_a_grid_has_axes_of_values() -> None:
    """In the given order, without spaces around them."""
    assert grid(["memory.quality=10, original", "seed=0"]) == {
        "memory.quality": ["10", "original"],
        "seed": ["0"],
    }
    assert grid(["options=margin=0.4,margin=0.5"]) == {"options": ["margin=0.4", "margin=0.5"]}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "--grid needs an axis"),
        (["method=lucir,bic"], "use recipe="),
        (["seed"], "--grid seed: write it as memory.quality=10,25,50"),
        (["seed="], "write it as"),
        (["seed= , "], "write it as"),
        ([""], "write it as"),
        (["seed=1,2,1"], "the axis seed or one of its values is given twice"),
        (["seed=1", "seed=2"], "the axis seed or one of its values is given twice"),
    ],
)
def test_grids_that_are_refused(entries: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grid(entries)
