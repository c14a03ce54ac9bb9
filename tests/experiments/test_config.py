"""Settings from names, files and text."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from mrdc._utils.errors import UsageError
from mrdc.cli.main import main
from mrdc.experiments.config import at, changed, fitted, grid, named
from mrdc.experiments.presets import RECIPES, preset
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings

BASE = RunSettings("photos")


def toml(tmp_path: Path, text: str, name: str = "mine.toml") -> str:
    """A settings file of that text."""
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


# Names and files


def test_a_recipe_by_its_name() -> None:
    """As it stands in the table."""
    assert named("lucir-mrdc") == ("lucir-mrdc", "lucir-mrdc", RECIPES["lucir-mrdc"])


def test_a_file_says_what_differs_from_its_recipe(tmp_path: Path) -> None:
    """At any depth; the rest is the recipe's; the file's name is the run's."""
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
        candidates = [30, 60]
    """
    label, _, found = named(toml(tmp_path, text))
    usual = RECIPES["podnet-mrdc"].settings
    assert label == "mine"
    assert found.settings == replace(
        usual,
        data="birds",
        seed=3,
        size=64,
        options=("nca=paper", "margin=0.4"),
        superclasses=Path("groups.csv"),
        train=replace(usual.train, epochs=7, milestones=(0.5,), lr=1.0),
        memory=replace(usual.memory, quality="50", candidates=(30, 60)),
    )
    assert isinstance(found.settings.train.lr, float)


def test_a_file_may_start_from_a_preset(tmp_path: Path) -> None:
    """Its paper's number and its kind of data stay with it."""
    found = named(toml(tmp_path, 'recipe = "sub-5-lucir"\nseed = 1')).preset
    assert (found.paper, found.prefix, found.settings.seed) == (70.84, "imagenet-sub:", 1)


def test_a_file_uses_the_names_of_flags(tmp_path: Path) -> None:
    text = 'recipe = "lucir"\nset = ["margin=0.4"]\n[train]\nbatch-size = 8\n'
    found = named(toml(tmp_path, text)).preset.settings
    assert (found.options, found.train.batch_size) == (("margin=0.4",), 8)


def test_json_is_a_file_too(tmp_path: Path) -> None:
    """With null for what is not set; a run keeps the name of its recipe."""
    text = '{"recipe": "bic", "size": null, "train": {"epochs": 2}}'
    label, _, found = named(toml(tmp_path, text, "cell.json"))
    assert label == "bic"
    assert (found.settings.size, found.settings.train.epochs) == (None, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must say recipe = "),
        ("recipe = 3", "must say recipe = "),
        ('recipe = "lucyr"', "did you mean 'lucir'"),
        ('recipe = "cub-6-lucir"', "unknown preset 'cub-6-lucir'"),
        ("recipe = ", "cannot be read as settings"),
        ('recipe = "lucir"\nepochs = 3', "unknown setting in .*mine.toml 'epochs'"),
        ('recipe = "lucir"\n[train]\nepoch = 3', "did you mean 'epochs'"),
        ('recipe = "lucir"\n[memory.more]\nx = 3', "unknown setting in .* 'more'"),
        ('recipe = "lucir"\ntrain = 3', "mine.toml: train must be a table"),
        ('recipe = "lucir"\n[train]\nepochs = "many"', "epochs must be a whole number, got 'many'"),
        ('recipe = "lucir"\n[train]\nlr = [1]', r"lr must be a number, got \[1\]"),
        ('recipe = "lucir"\ncache = "no"', "cache must be true or false, got 'no'"),
        (
            'recipe = "lucir"\n[memory]\ncandidates = ["a"]',
            "candidates must be a whole number, got 'a'",
        ),
    ],
)
def test_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """With the file and the field."""
    with pytest.raises(UsageError, match=message):
        named(toml(tmp_path, text))


@pytest.mark.parametrize("name", ["gone.toml", "gone.json", ".toml"])
def test_files_that_are_not_there(name: str, tmp_path: Path) -> None:
    """By their name."""
    with pytest.raises(UsageError, match=f"{name}: (cannot be read|unknown)|unknown recipe"):
        named(str(tmp_path / name))


def test_files_that_are_no_text(tmp_path: Path) -> None:
    """Bytes, a list, a folder."""
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "b.json").write_text("[1]")
    (tmp_path / "c.toml").mkdir()
    for name, message in (("a.toml", "cannot be"), ("b.json", "must say"), ("c.toml", "cannot be")):
        with pytest.raises(UsageError, match=message):
            named(str(tmp_path / name))


@pytest.mark.parametrize("line", ['size = "big"', 'threads = "x"', "threads = [1]"])
def test_numbers_that_are_none_by_default(line: str, tmp_path: Path) -> None:
    """Are refused like others."""
    with pytest.raises(UsageError, match="must be a whole number"):
        named(toml(tmp_path, f'recipe = "lucir"\n{line}'))


@pytest.mark.parametrize(
    "line",
    [
        "train.epochs = 2.7", "seed = true", 'network = "vgg"', 'stem = "5x5"', 'device = "tpu"',
        'precision = "fp16"', 'train.schedule = "step"', 'memory.volume = "foo"',
        'memory.pairing = "foo"', "memory.budget = [1]", 'method = "bic"',
    ],
)  # fmt: skip
def test_what_a_flag_would_refuse_a_file_must_not_say(line: str, tmp_path: Path) -> None:
    """Part of an epoch, a choice that is none, a list for a text, another method."""
    with pytest.raises(UsageError):
        named(toml(tmp_path, f'recipe = "lucir"\n{line}'))


def test_flags_come_on_top_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `mrdc run FILE --flag` really runs."""
    text = 'recipe = "lwf-mrdc"\ndata = "textures"\nseed = 3\n[train]\nepochs = 7\nlr = 0.5'
    seen: list[tuple[RunSettings, Any]] = []

    def run(settings: RunSettings, **rest: Any) -> dict[str, Any]:
        seen.append((settings, rest["name"]))
        return {}

    monkeypatch.setattr("mrdc.experiments.run.run", run)
    flags = ["--train.epochs", "2", "--memory.quality", "30", "--json"]
    assert main(["run", toml(tmp_path, text), *flags]) == 0
    capsys.readouterr()
    ((settings, name),) = seen
    assert name == "mine"
    assert (settings.method, settings.data, settings.seed) == ("lwf", "textures", 3)
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
        (str, "dynamic", "dynamic"),
        (bool, False, False),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[float, ...], 1, (1.0,)),
        (tuple[float, ...], [], ()),
        (tuple[str, ...], ["a=1", "b=2"], ("a=1", "b=2")),
        (int | None, 7, 7),
        (int | None, None, None),
        (Path | None, "a/b", Path("a/b")),
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_fitted(hint: Any, value: Any, new: Any) -> None:
    """To the type of the field, a tuple element by element."""
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
        (int, float("nan"), "must be a whole number"),
        (float, {}, "must be a number"),
        (bool, "true", "must be true or false"),
        (bool, 1, "must be true or false"),
        (str, [1], "must be text"),
        (tuple[int, ...], ["x"], "must be a whole number"),
        (Literal["a", "b"], "c", "must be one of a, b, got 'c'"),
    ],
)
def test_not_fitted(hint: Any, value: Any, message: str) -> None:
    """With where it stands."""
    with pytest.raises(UsageError, match=message):
        fitted(hint, value, "file: field")


def test_changed_leaves_the_rest() -> None:
    """And the settings it was given."""
    new = changed(BASE, {"seed": 1, "memory": {"quality": "50"}}, "here")
    assert new == RunSettings("photos", seed=1, memory=MemorySettings(quality="50"))
    assert RunSettings("photos") == BASE
    assert changed(BASE, {}, "here") == BASE


def test_changed_reaches_every_field() -> None:
    """What is read back is what was there: a cell of a sweep is such a file."""
    for field in fields(TrainSettings):
        value = getattr(BASE.train, field.name)
        plain = list(value) if isinstance(value, tuple) else value
        assert changed(BASE, {"train": {field.name: plain}}, "here") == BASE


def test_at_one_dotted_place() -> None:
    """Text becomes what the place holds."""
    assert at(BASE, "seed", "4").seed == 4
    assert at(BASE, "memory.quality", "50").memory == MemorySettings(quality="50")
    assert at(BASE, "train.lr", "0.3").train == TrainSettings(lr=0.3)
    assert at(BASE, "memory.candidates", "30+60").memory.candidates == (30, 60)
    assert at(BASE, "size", "32").size == 32
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
    ],
)
def test_at_no_such_place(dotted: str, message: str) -> None:
    """With the nearest that there is."""
    with pytest.raises(UsageError, match=message):
        at(BASE, dotted, "x")


def test_at_below_a_text() -> None:
    """memory.quality has no parts."""
    with pytest.raises(UsageError):
        at(BASE, "memory.quality.x", "3")


# Grids


def test_a_grid_has_axes_of_values() -> None:
    """In the order given, without the spaces around them."""
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
        (["seed=1,2,1"], "seed has an axis or a value twice"),
        (["seed=1", "seed=2"], "seed has an axis or a value twice"),
    ],
)
def test_grids_that_are_refused(entries: list[str], message: str) -> None:
    """With the entry."""
    with pytest.raises(UsageError, match=message):
        grid(entries)
