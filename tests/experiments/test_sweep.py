"""Grids of runs: cells, what goes wrong, and going on."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mrdc._utils.errors import UsageError
from mrdc.cli import show
from mrdc.cli.main import main
from mrdc.cli.progress import SweepProgress
from mrdc.experiments.common import finished
from mrdc.experiments.config import named
from mrdc.experiments.folder import RESULTS, lock
from mrdc.experiments.sweep import Cell, cells, sweep, table
from mrdc.training.settings import RunSettings
from tests.conftest import make_photos
from tests.processes import SMALL, check_whole, contents, epochs, events, finish, numbers, until

GRID = ["--grid", "memory.quality=50,original", "seed=0,1"]
PLACES = ["quality=50,seed=0", "quality=50,seed=1", "quality=original,seed=0",
          "quality=original,seed=1"]  # fmt: skip


def settings_of(recipe: str) -> RunSettings:
    """What a recipe stands for, as the command line would say it."""
    settings: RunSettings = named(recipe).preset.settings
    return replace(settings, data="textures")


# Cells


def test_every_point_of_the_grid_has_a_cell() -> None:
    """The last axis runs fastest; each has a folder of its own, and its settings."""
    axes = {"memory.quality": ["50", "original"], "seed": ["0", "1"]}
    made = cells("lucir-mrdc", settings_of, axes, Path("out"))
    assert [cell.folder for cell in made] == [Path("out") / place for place in PLACES]
    assert [cell.place for cell in made][1] == {"memory.quality": "50", "seed": "1"}
    found = [(cell.settings.memory.quality, cell.settings.seed) for cell in made]
    assert found == [("50", 0), ("50", 1), ("original", 0), ("original", 1)]
    assert {cell.recipe for cell in made} == {"lucir-mrdc"}
    assert {cell.settings.method for cell in made} == {"lucir"}


def test_the_axis_recipe_goes_through_recipes() -> None:
    """Each with its own training."""
    made = cells("lucir", settings_of, {"recipe": ["bic", "podnet-mrdc"]}, Path("out"))
    assert [cell.recipe for cell in made] == ["bic", "podnet-mrdc"]
    assert [cell.settings.method for cell in made] == ["bic", "podnet"]
    assert [cell.settings.train.batch_size for cell in made] == [128, 64]
    assert [cell.settings.memory.quality for cell in made] == ["original", "auto"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"kwality": ["1"]}, "unknown setting in --grid kwality 'kwality'"),
        ({"memory": ["1"]}, "memory must be a table"),
        ({"seed": ["0", "x"]}, "seed must be a whole number, got 'x'"),
        ({"recipe": ["lucir", "lucyr"]}, "did you mean 'lucir'"),
    ],
)
def test_cells_that_are_refused(axes: dict[str, list[str]], message: str) -> None:
    """Before any has begun."""
    with pytest.raises(UsageError, match=message):
        cells("lucir", settings_of, axes, Path("out"))


def test_no_two_cells_share_a_folder() -> None:
    """Whatever their values are."""
    made = cells("lucir", settings_of, {"data": ["a/b", "a_b", "a b"]}, Path("out"))
    assert len({cell.folder for cell in made}) == 3


# The table


def cell(**place: str) -> Cell:
    return Cell(place, "lucir", RunSettings("x"), Path("x"))


def result(score: float, last: float, forgetting: float, items: int, **more: Any) -> dict[str, Any]:
    held = {"bytes": 1, "budget_bytes": 2, "items": items}
    return {
        "average_incremental_accuracy": score, "accuracy": [99.0, last], "memory": held,
        "average_forgetting": forgetting, "quality": 50, "seconds": 3.0, **more,
    }  # fmt: skip


def test_means_and_sample_deviations_by_hand() -> None:
    """Of 50, 54 and 58: mean 54, deviation sqrt((16 + 0 + 16) / 2) = 4. Seeds make one row."""
    made = [cell(quality="50", seed=seed) for seed in "012"] + [cell(quality="10", seed="0")]
    results = [
        result(50, 40, -3, 10),
        result(54, 43, -5, 11, quality=25, seconds=6.0),
        result(58, 49, -7, 15, seconds=9.0),
        result(20, 10, -1, 7, quality=None),
    ]
    first, second = table(made, results)
    assert (first["runs"], first["quality"]) == (3, ["25", "50"])
    expected = {
        "average_incremental_accuracy": 54,
        "deviation": 4,
        "last_accuracy": 44,
        "average_forgetting": -5,
        "items": 12,
        "seconds": 6,
    }
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert (second["runs"], second["deviation"], second["quality"]) == (1, None, ["original"])
    assert second["average_incremental_accuracy"] == 20


def test_qualities_of_every_phase_are_told_in_words() -> None:
    """Where the quality is chosen anew after each."""
    found = [result(50, 40, -3, 10, quality=[75, None, 50])]
    assert table([cell(seed="0")], found)[0]["quality"] == ["75/original/50"]


def test_detectors_have_their_own_scores(capsys: pytest.CaptureFixture[str]) -> None:
    """Not accuracy, and not percent of images."""
    found = [result(5, 4, -1, 3, ap=[3.0, 4.0], ap50=[8.0, 9.0], ap75=[1.0, n]) for n in (2, 3)]
    rows = table([cell(detector="r18", seed=str(seed)) for seed in (0, 1)], found)
    assert [rows[0][key] for key in ("ap", "ap50", "ap75", "ap_deviation")] == [4, 9, 2.5, 0]
    show.sweep(Console(width=120), {"table": rows, "runs": found, "failed": [], "folder": "runs"})
    out = capsys.readouterr().out
    assert "AP50" in out and "AP by phase" in out and "%" not in out
    SweepProgress(False)(cell(seed="0"), found[0])
    assert capsys.readouterr().err == "seed 0: AP 4.00, 3 s\n"


# Refusals of the command


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a refused command says."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("mrdc: ")
    return err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--grid", "seed"], "--grid seed: write it as"),
        (["--grid", "seed=1,1"], "seed has an axis or a value twice"),
        (["--grid", "sed=1"], "did you mean 'seed'"),
        (["--grid", "memory.quality=50", "seed=x"], "seed must be a whole number"),
        (["--grid", "recipe=lucir,lucyr"], "did you mean 'lucir'"),
        (["--grid", "seed=1", "--jobs", "-1"], "--jobs must be 1 or more, got -1"),
    ],
)
def test_a_sweep_is_refused_as_a_whole(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2, and no folder."""
    given = ["sweep", "lucir", "--data", "textures", "--out", tmp_path / "out", *flags]
    assert message in refused(capsys, *given)
    assert not (tmp_path / "out").exists()


def test_no_jobs_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are refused like fewer than none."""
    monkeypatch.setattr("mrdc.experiments.sweep._run", lambda cell, tell, life: {})
    with pytest.raises(UsageError, match="--jobs must be 1 or more, got 0"):
        sweep([cell(seed="0")], 0)


def test_a_sweep_without_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no sweep."""
    monkeypatch.setattr("mrdc.experiments.sweep._run", lambda cell, tell, life: result(1, 1, 1, 1))
    (tmp_path / "out").mkdir()
    given = ["sweep", "lucir", "--data", "textures", "--out", str(tmp_path / "out"), "--json"]
    assert main(given) == 2


def test_an_axis_of_methods_is_refused_or_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of the table that says bic must come from BiC."""

    def run(cell: Cell, tell: object, life: object) -> dict[str, Any]:
        from mrdc.experiments.sweep import _as_json

        file = cell.folder.with_suffix(".json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(_as_json(cell)))
        return result(1, 1, 1, 1, method=named(str(file)).preset.settings.method)

    monkeypatch.setattr("mrdc.experiments.sweep._run", run)
    given = ["sweep", "lucir", "--data", "textures", "--out", str(tmp_path), "--json"]
    if main([*given, "--grid", "method=lucir,bic"]) == 0:
        found = json.loads(capsys.readouterr().out)
        assert [one["method"] for one in found["runs"]] == ["lucir", "bic"]


@pytest.mark.parametrize("recipe", ["lucir", "sub-5-lucir", "supervised-mrdc"])
def test_data_is_a_flag_or_an_axis(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them is needed."""

    def run(cell: Cell, tell: object, life: object) -> dict[str, Any]:
        return result(1, 1, 1, 1, data=cell.settings.data)

    monkeypatch.setattr("mrdc.experiments.sweep._run", run)
    given = ["sweep", recipe, "--out", str(tmp_path), "--json", "--grid"]
    assert f"{recipe} needs --data DATA, or --grid data=" in refused(capsys, *given, "seed=0,1")
    assert main([*given, "seed=0", "data=here,there"]) == 0
    assert [one["data"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["here", "there"]


@pytest.mark.parametrize("axis", ["network=vgg", "memory.volume=foo", "memory.quality=abc"])
def test_values_are_checked_before_any_run(
    axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typo in the last cell must not cost the hours of the others."""
    monkeypatch.setattr("mrdc.experiments.sweep._run", lambda cell, tell, life: result(1, 1, 1, 1))
    given = ["sweep", "lucir", "--data", "textures", "--out", str(tmp_path), "--json"]
    assert main([*given, "--grid", axis]) == 2


# Real sweeps


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four short runs on a few photos; what is left to say is where."""
    data = make_photos(tmp_path_factory.mktemp("data") / "photos", classes=4, images=8)
    flags = ["--data", str(data), "--train.epochs", "1", "--phases", "1", *SMALL]
    return ["sweep", "lucir-mrdc", *flags, "--json"]


@pytest.fixture(scope="module")
def plain(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `mrdc run` makes of the same cells, one after the other, sharing nothing."""
    root, found = tmp_path_factory.mktemp("plain"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MRDC_CACHE", str(root / "cache"))
        for place in PLACES:
            quality, seed = (part.partition("=")[2] for part in place.split(","))
            flags = ["--memory.quality", quality, "--seed", seed, "--no-cache"]
            found.append(finish(*command[1:-1], *flags, "--out", root / place))
    return found


@dataclass
class Swept:
    """A sweep of two runs at once that was killed, and begun again."""

    folder: Path
    printed: str
    kept: dict[str, dict[str, bytes]]  # files of the cells that were finished at the kill


@pytest.fixture(scope="module")
def swept(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Killed with its runs, as soon as one of them was over."""
    root = tmp_path_factory.mktemp("swept")
    out = root / "out"
    given = [sys.executable, "-m", "mrdc", *command, *GRID, "--jobs", "2", "--out", str(out)]
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
    assert (done.returncode, done.stderr) == (0, "")
    return Swept(out, done.stdout, kept)


def test_a_sweep_prints_its_runs_and_their_table(swept: Swept) -> None:
    """One JSON object, which is also in the folder; a row for the seeds of a quality."""
    folder, printed = swept.folder, swept.printed
    found = json.loads(printed)
    assert printed.count("\n") == 1
    assert json.loads((folder / "sweep.json").read_text()) == found
    assert found["folder"] == str(folder)
    assert [Path(run["folder"]).name for run in found["runs"]] == PLACES
    assert [events(folder / place)[-1] for place in PLACES] == found["runs"]
    assert [(run["quality"], run["seed"]) for run in found["runs"]] == [
        (50, 0), (50, 1), (None, 0), (None, 1),
    ]  # fmt: skip
    rows = found["table"]
    assert [(row["memory.quality"], row["runs"]) for row in rows] == [("50", 2), ("original", 2)]
    for row, runs in zip(rows, (found["runs"][:2], found["runs"][2:]), strict=True):
        one, other = (run["average_incremental_accuracy"] for run in runs)
        assert row["average_incremental_accuracy"] == pytest.approx((one + other) / 2)
        assert row["deviation"] == pytest.approx(abs(one - other) / 2**0.5, abs=1e-9)


def test_runs_of_a_sweep_are_runs(swept: Swept, command: list[str]) -> None:
    """What `mrdc run` says in the folder of a cell: it is finished."""
    folder = swept.folder / PLACES[1]
    flags = ["--memory.quality", "50", "--seed", "1", "--out", str(folder)]
    before = contents(folder)
    assert main(["run", *command[1:], *flags]) == 0
    assert contents(folder) == before


def test_a_sweep_has_the_numbers_of_plain_runs(swept: Swept, plain: list[dict[str, Any]]) -> None:
    """Though two went on at once, shared their first phases, and were killed."""
    found = json.loads(swept.printed)["runs"]
    assert [numbers(run) for run in found] == [numbers(run) for run in plain]


def test_what_was_finished_is_not_trained_again(swept: Swept) -> None:
    """Its folder stays as it was; the others were not over."""
    assert 0 < len(swept.kept) < 4
    for place, files in swept.kept.items():
        assert contents(swept.folder / place) == files


FAILED = "runs failed; the same command again runs only what is missing\n"


def test_a_cell_that_fails_is_named_and_the_others_are_kept(
    plain: list[dict[str, Any]],
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and its last words; the cell after it is run, and has its row in the table."""
    out = tmp_path / "out"
    grid = ["--grid", "memory.budget=1kB,3/class", "--seed", "1", "--memory.quality", "50"]
    grid += ["--jobs", "1", "--out", str(out)]
    assert main([*command, *grid]) == 2
    printed, said = capsys.readouterr()
    found = json.loads(printed)
    assert said == f"mrdc: 1 of 2 {FAILED}"
    assert [run["folder"] for run in found["failed"]] == [str(out / "budget=1kB")]
    assert found["failed"][0]["error"].startswith("--memory.budget")
    assert [(row["memory.budget"], row["runs"]) for row in found["table"]] == [("3/class", 1)]
    assert [numbers(run) for run in found["runs"]] == [numbers(plain[1])]
    assert not (out / "sweep.json").exists() and not (out / "budget=1kB").exists()
    before = contents(out / "budget=3_class")
    assert main([*command, *grid]) == 2
    assert json.loads(capsys.readouterr().out) == found
    assert contents(out / "budget=3_class") == before


@pytest.mark.parametrize("broken", [{"1"}, {"0", "1", "2"}], ids=["some", "all"])
def test_people_see_what_ended_and_why_others_did_not(
    broken: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table, where there is one; then a line for each failure, however long."""
    why = "no room " * 40 + "[left]"

    def run(cell: Cell, tell: object, life: object) -> dict[str, Any]:
        failed = {"folder": str(cell.folder), "error": why}
        return failed if cell.place["seed"] in broken else result(54, 40, -3, 10)

    monkeypatch.setattr("mrdc.experiments.sweep._run", run)
    given = ["sweep", "lucir", "--data", "textures", "--out", str(tmp_path)]
    assert main([*given, "--grid", "network=resnet18", "seed=0,1,2"]) == 2
    out, err = capsys.readouterr()
    assert err == f"mrdc: {len(broken)} of 3 {FAILED}"
    places = [f"network=resnet18,seed={seed}" for seed in sorted(broken)]
    lines = [line for line in out.splitlines() if line.startswith("Failed: ")]
    assert lines == [f"Failed: {tmp_path / place}: {why}" for place in places]
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith("resnet18")]
    assert rows[:1] == ([["resnet18", "2", "54.00"]] if len(broken) == 1 else [])


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_runs_end_with_their_sweep(command: list[str], tmp_path: Path, end: signal.Signals) -> None:
    """However it ends; what they leave can be gone on with, and no other is begun."""
    out = tmp_path / "out"
    flags = ["--train.epochs", "100000", "--grid", "seed=0,1", "--jobs", "1", "--out", str(out)]
    sweep = subprocess.Popen(
        [sys.executable, "-m", "mrdc", *command, *flags], start_new_session=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: (out / "seed=0" / RESULTS).exists() and epochs(out / "seed=0", 0) > 0)
        sweep.send_signal(end)
        assert sweep.wait(30) == (130 if end == signal.SIGTERM else -end)
        until(lambda: free(out / "seed=0"), 10)
        check_whole(out / "seed=0")
        assert not (out / "seed=1").exists()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(sweep.pid, signal.SIGKILL)


def free(folder: Path) -> bool:
    """Whether no process runs in it."""
    with suppress(UsageError):
        lock(folder / "lock", "not yet").close()
        return True
    return False


def test_a_sweep_tells_people(
    swept: Swept, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain lines while it goes on, and a table at the end."""
    words = [word for word in command if word != "--json"]
    flags = ["--grid", "memory.quality=original", "seed=1", "--out", str(swept.folder)]
    assert main([*words, *flags]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "memory.quality original, seed 1: begun"
    assert err.splitlines()[1].startswith("memory.quality original, seed 1: ")
    assert "% averaged" in err.splitlines()[1]
    assert "memory.quality" in out.splitlines()[0]
    assert "averaged %" in out.splitlines()[0]
    assert out.splitlines()[1].split()[:2] == ["original", "1"]


def test_a_file_can_be_swept(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it can be run."""
    (tmp_path / "mine.toml").write_text('recipe = "lucir"\n')
    flags = ["--grid", "seed=0", "--out", str(tmp_path / "out")]
    assert main(["sweep", str(tmp_path / "mine.toml"), *command[2:], *flags]) == 0


def test_axes_have_the_names_of_flags(tmp_path: Path) -> None:
    """With hyphens, and `set`; where to write is none."""
    axes = {"train.weight-decay": ["0", "0.1"], "set": ["margin=0.4"]}
    made = cells("lucir", settings_of, axes, tmp_path)
    assert [cell.settings.train.weight_decay for cell in made] == [0, 0.1]
    assert all(cell.settings.options == ("margin=0.4",) for cell in made)
    with pytest.raises(UsageError, match="--grid out: no axis"):
        cells("lucir", settings_of, {"out": ["a", "b"]}, tmp_path)
