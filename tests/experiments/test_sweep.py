"""Sweeps: cells of a grid, tables, failures, resuming."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mrdc._utils.errors import UsageError
from mrdc.cli import runs
from mrdc.cli.progress import SweepProgress
from mrdc.experiments.config import named
from mrdc.experiments.folder import RESULTS, finished, lock
from mrdc.experiments.settings import AnySettings
from mrdc.experiments.sweep import Cell, Failure, Outcome, _as_json, cells, table
from mrdc.training.settings import RunSettings
from tests.conftest import make_photos
from tests.experiments.results import result
from tests.processes import SMALL, Cli, check_whole, contents, epochs, events, numbers, until

PLACES = ["quality=50", "quality=25", "quality=original"]
OUT = Path("out")


def settings_of(recipe: str) -> AnySettings:
    """A recipe on textures, as if --data were given."""
    settings: AnySettings = named(recipe).preset.settings
    return replace(settings, data="textures")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Cell], Outcome]], None]:
    """Replaces the process of a cell."""

    def set_(run: Callable[[Cell], Outcome]) -> None:
        monkeypatch.setattr("mrdc.experiments.sweep._run", lambda cell, life: run(cell))

    set_(lambda cell: result())
    return set_


# Cells


def test_every_point_of_the_grid_has_a_cell() -> None:
    """The last axis varies fastest; each cell has its own folder and settings."""
    axes = {"memory.quality": ["50", "original"], "seed": ["0", "1"]}
    made = cells("lucir-mrdc", settings_of, axes, OUT)
    names = [f"quality={quality},seed={seed}" for quality in ("50", "original") for seed in "01"]
    assert [cell.folder for cell in made] == [OUT / name for name in names]
    assert made[1].place == {"memory.quality": "50", "seed": "1"}
    found = [(cell.settings.memory.quality, cell.settings.seed) for cell in made]
    assert found == [("50", 0), ("50", 1), ("original", 0), ("original", 1)]
    assert {(cell.recipe, cell.settings.method) for cell in made} == {("lucir-mrdc", "lucir")}


def test_the_axis_recipe_takes_recipes() -> None:
    """Each with its own training; also recipes for detectors."""
    made = cells("lucir", settings_of, {"recipe": ["bic", "podnet-mrdc"]}, OUT)
    assert [(cell.recipe, cell.settings.method) for cell in made] == [
        ("bic", "bic"),
        ("podnet-mrdc", "podnet"),
    ]
    assert [cell.settings.train.batch_size for cell in made] == [128, 64]
    assert [cell.settings.memory.quality for cell in made] == ["original", "auto"]
    names = ["shapes-supervised-finetune", "shapes-unbiased-teacher-mrdc"]
    made = cells(names[0], settings_of, {"recipe": names, "memory.budget": ["3/phase"]}, OUT)
    assert [cell.settings.method for cell in made] == ["supervised", "unbiased-teacher"]
    assert all(cell.settings.memory.budget == "3/phase" for cell in made)


def test_axes_have_the_names_of_flags() -> None:
    """Including hyphens, and `set`."""
    axes = {"train.weight-decay": ["0", "0.1"], "set": ["margin=0.4"]}
    made = cells("lucir", settings_of, axes, OUT)
    assert [cell.settings.train.weight_decay for cell in made] == [0, 0.1]
    assert all(cell.settings.options == ("margin=0.4",) for cell in made)


def test_a_cell_is_read_back_from_its_file(tmp_path: Path) -> None:
    """So a row of BiC comes from BiC."""
    for cell in cells("lucir", settings_of, {"recipe": ["lucir", "bic"], "seed": ["3"]}, OUT):
        (tmp_path / "cell.json").write_text(json.dumps(_as_json(cell)))
        assert named(str(tmp_path / "cell.json")).preset.settings == cell.settings


def test_no_two_cells_share_a_folder() -> None:
    made = cells("lucir", settings_of, {"data": ["a/b", "a_b", "a b"]}, OUT)
    assert len({cell.folder for cell in made}) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--grid needs an axis"),
        (["seed"], "--grid seed: write it as"),
        (["seed=1,1"], "the axis seed or one of its values is given twice"),
        (["sed=1"], "did you mean 'seed'"),
        (["memory=1"], "memory must be a table"),
        (["memory.quality=50", "seed=x"], "seed must be a whole number, got 'x'"),
        (["recipe=lucir,lucyr"], "did you mean 'lucir'"),
        (["method=lucir,bic"], "use recipe=..., which includes its training"),
        (["out=a,b"], "--grid out: not an axis; give --out to the sweep"),
        (["network=resnet18,vgg"], "unknown network 'vgg'"),
        (["memory.volume=gram,foo"], "volume must be one of gram, ridge, got 'foo'"),
        (["seed=0,1.0,1"], "seed=1.0 and seed=1 are the same run"),
        (["memory.quality=50,abc"], "--memory.quality abc: give auto"),
        (["seed=1", "--jobs", "-1"], "--jobs must be 1 or more, got -1"),
        (["seed=1", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_sweep_is_refused_as_a_whole(
    flags: list[str], message: str, tmp_path: Path, cli: Cli
) -> None:
    """Before any run, and without creating a folder."""
    given = ["sweep", "lucir", "--data", "textures", "--out", tmp_path / "out"]
    assert message in cli.refused(*given, *(["--grid", *flags] if flags else []))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", ["lucir", "sub-5-lucir", "supervised-mrdc"])
def test_data_is_a_flag_or_an_axis(recipe: str, tmp_path: Path, fake: Any, cli: Cli) -> None:
    fake(lambda cell: result(data=cell.settings.data))
    given = ["sweep", recipe, "--out", tmp_path, "--grid"]
    assert f"{recipe} needs --data DATA, or --grid data=" in cli.refused(*given, "seed=0,1")
    found = cli.json(*given, "seed=0", "data=here,there")
    assert [one["data"] for one in found["runs"]] == ["here", "there"]


# The table


def cell(**place: str) -> Cell:
    return Cell(place, "lucir", RunSettings("x"), Path("x"))


def test_means_and_sample_deviations_by_hand() -> None:
    """50, 54 and 58: mean 54, deviation sqrt((16 + 0 + 16) / 2) = 4. Seeds make one row."""
    made = [cell(quality="50", seed=seed) for seed in "012"] + [cell(quality="10", seed="0")]
    first, second = table(
        made,
        [
            result(50, 40, 10, average_forgetting=-3),
            result(54, 43, 11, average_forgetting=-5, quality=25, seconds=6.0),
            result(58, 49, 15, average_forgetting=-7, seconds=9.0),
            result(20, 10, 7, quality=None),
        ],
    )
    assert (first["runs"], first["quality"]) == (3, ["25", "50"])
    expected = {"average_incremental_accuracy": 54, "deviation": 4, "last_accuracy": 44}
    expected |= {"average_forgetting": -5, "items": 12, "seconds": 6}
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert (second["runs"], second["deviation"], second["quality"]) == (1, None, ["original"])
    assert second["average_incremental_accuracy"] == 20
    rows = table([cell(seed="0")], [result(quality=[75, None, 50])])
    assert rows[0]["quality"] == ["75/original/50"]
    rows = table([cell(seed="0")], [result(quality=0)])
    assert rows[0]["quality"] == ["0"]  # a codec from a plugin may have it


def test_detectors_have_their_own_scores(capsys: pytest.CaptureFixture[str]) -> None:
    """AP instead of accuracy in percent."""
    found = [result(ap=[3.0, 4.0], ap50=[8.0, 9.0], ap75=[1.0, n]) for n in (2, 3)]
    rows = table([cell(detector="r18", seed=str(seed)) for seed in (0, 1)], found)
    assert [rows[0][key] for key in ("ap", "ap50", "ap75", "ap_deviation")] == [4, 9, 2.5, 0]
    runs.sweep(Console(width=120), {"table": rows, "runs": found, "failed": [], "folder": "runs"})
    out = capsys.readouterr().out
    assert "AP50" in out and "AP by phase" in out and "%" not in out
    SweepProgress(False)(cell(seed="0"), found[0], "1 of 2")
    assert capsys.readouterr().err == "[1 of 2] seed 0: AP 4.00, 3 s\n"


@pytest.mark.usefixtures("fake")
def test_progress_and_a_table_for_people(tmp_path: Path, cli: Cli) -> None:
    """Both are plain lines."""
    flags = ["--grid", "memory.quality=original", "seed=0,1", "--out", tmp_path, "--jobs", "1"]
    assert cli("sweep", "lucir", "--data", "textures", *flags) == 0
    assert cli.err.splitlines() == [
        "[1 of 2] memory.quality original, seed 0: started",
        "[1 of 2] memory.quality original, seed 0: 50.00 % averaged, 3 s",
        "[2 of 2] memory.quality original, seed 1: started",
        "[2 of 2] memory.quality original, seed 1: 50.00 % averaged, 3 s",
    ]
    header, row, *_ = cli.out.splitlines()
    assert header.startswith("memory.quality") and "averaged %" in header
    assert row.split()[:3] == ["original", "2", "50.00"]


@pytest.mark.parametrize("broken", [{"1"}, {"0", "1", "2"}], ids=["some", "all"])
def test_failures_are_listed_after_the_table(
    broken: set[str], tmp_path: Path, fake: Any, cli: Cli
) -> None:
    """One line each, however long; progress goes to standard error."""
    why = "no room " * 40 + "[left]"
    fake(lambda c: Failure(str(c.folder), why) if c.place["seed"] in broken else result(54))
    given = ["sweep", "lucir", "--data", "textures", "--out", tmp_path, "--jobs", "1"]
    assert cli(*given, "--grid", "network=resnet18", "seed=0,1,2") == 2
    *progress, last = cli.err.splitlines()
    again = "1 of 3 runs failed; run the same command to retry them"
    assert last == f"mrdc: {again if len(broken) == 1 else f'all 3 runs failed: {why}'}"
    assert progress[0] == "[1 of 3] network resnet18, seed 0: started"
    assert progress[3] == f"[2 of 3] network resnet18, seed 1: failed: {why}"
    places = [f"network=resnet18,seed={seed}" for seed in sorted(broken)]
    lines = [line for line in cli.out.splitlines() if line.startswith("Failed: ")]
    assert lines == [f"Failed: {tmp_path / place}: {why}" for place in places]
    rows = [line.split()[:3] for line in cli.out.splitlines() if line.startswith("resnet18")]
    assert rows[:1] == ([["resnet18", "2", "54.00"]] if len(broken) == 1 else [])


# Real sweeps


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Short runs on a few photos, without --out."""
    data = make_photos(tmp_path_factory.mktemp("data") / "photos", classes=4, images=8)
    flags = ["--data", str(data), "--train.epochs", "1", "--phases", "1", *SMALL]
    return ["sweep", "lucir-mrdc", *flags]


@dataclass
class Swept:
    """A sweep of two runs at a time that was killed and resumed."""

    folder: Path
    found: dict[str, Any]
    kept: dict[str, dict[str, bytes]]  # files of the cells that were finished at the kill


@pytest.fixture(scope="module")
def swept(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Killed together with its runs as soon as one of them had finished."""
    root = tmp_path_factory.mktemp("swept")
    out = root / "out"
    flags = ["--grid", "memory.quality=50,25,original", "--jobs", "2", "--out", str(out), "--json"]
    given = [sys.executable, "-m", "mrdc", *command, *flags]
    environment = {**os.environ, "MRDC_CACHE": str(root / "cache")}

    def over() -> list[str]:
        return [place for place in PLACES if finished(out / place)]

    process = subprocess.Popen(
        given, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    until(lambda: bool(over()) or process.poll() is not None, 120)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (out / "sweep.json").exists()
    kept = {place: contents(out / place) for place in over()}
    done = subprocess.run(given, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    return Swept(out, json.loads(done.stdout), kept)


def test_a_sweep_prints_its_runs_and_their_table(swept: Swept) -> None:
    """Both are also in sweep.json."""
    folder, found = swept.folder, swept.found
    assert json.loads((folder / "sweep.json").read_text()) == found
    assert found["folder"] == str(folder)
    assert [Path(run["folder"]).name for run in found["runs"]] == PLACES
    assert [events(folder / place)[-1] for place in PLACES] == found["runs"]
    assert [run["quality"] for run in found["runs"]] == [50, 25, None]
    assert [(row["memory.quality"], row["runs"]) for row in found["table"]] == [
        ("50", 1),
        ("25", 1),
        ("original", 1),
    ]


def test_finished_cells_are_not_trained_again(swept: Swept) -> None:
    assert 0 < len(swept.kept) < 3
    for place, files in swept.kept.items():
        assert contents(swept.folder / place) == files


def test_a_sweep_has_the_numbers_of_plain_runs(
    swept: Swept, command: list[str], tmp_path: Path, cli: Cli
) -> None:
    """Although two ran at a time, shared their first phases, and were killed."""
    for place, found in zip(PLACES, swept.found["runs"], strict=True):
        flags = ["--memory.quality", place.partition("=")[2]]
        before = contents(swept.folder / place)
        assert cli.json("run", *command[1:], *flags, "--out", swept.folder / place) == found
        assert contents(swept.folder / place) == before
        alone = cli.json("run", *command[1:], *flags, "--no-cache", "--out", tmp_path / place)
        assert numbers(alone) == numbers(found)


def test_a_cell_that_fails_does_not_stop_the_others(
    command: list[str], tmp_path: Path, cli: Cli
) -> None:
    """The sweep reports the error and ends with code 2; a file can be swept, too."""
    out, mine = tmp_path / "out", tmp_path / "mine.toml"
    mine.write_text('recipe = "lucir-mrdc"\n')
    grid = ["--grid", "memory.budget=1kB,3/class", "--memory.quality", "50", "--jobs", "1"]
    assert cli("sweep", mine, *command[2:], *grid, "--out", out, "--json") == 2
    assert cli.err == "mrdc: 1 of 2 runs failed; run the same command to retry them\n"
    found = json.loads(cli.out)
    assert [run["folder"] for run in found["failed"]] == [str(out / "budget=1kB")]
    assert found["failed"][0]["error"].startswith("--memory.budget")
    assert [(row["memory.budget"], row["runs"]) for row in found["table"]] == [("3/class", 1)]
    assert not (out / "sweep.json").exists() and not (out / "budget=1kB").exists()


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_runs_end_with_their_sweep(command: list[str], tmp_path: Path, end: signal.Signals) -> None:
    """However the sweep ends; their folders can be resumed, and no other run is started."""
    out = tmp_path / "out"
    flags = ["--train.epochs", "100000", "--grid", "seed=0,1", "--jobs", "1", "--out", str(out)]
    given = [sys.executable, "-m", "mrdc", *command, *flags]
    sweep = subprocess.Popen(given, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (out / "seed=0" / RESULTS).exists() and epochs(out / "seed=0", 0) > 0)
        sweep.send_signal(end)
        assert sweep.wait(90) == (130 if end == signal.SIGTERM else -end)
        until(lambda: free(out / "seed=0"))
        check_whole(out / "seed=0")
        assert not (out / "seed=1").exists()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)


def free(folder: Path) -> bool:
    """Whether no process uses a run folder."""
    with suppress(UsageError):
        lock(folder / "lock", "not yet").close()
        return True
    return False
