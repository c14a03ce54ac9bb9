"""Studies: what they run, what they share, what they refuse, and what they say."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mrdc._utils.errors import SweepError
from mrdc.cli import show
from mrdc.cli.main import main
from mrdc.data import open_splits
from mrdc.data.stream import read_superclasses
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.common import decisive_settings
from mrdc.experiments.presets import SODA10M, TABLE_1
from mrdc.experiments.studies import STUDIES
from mrdc.experiments.study import run_study, study_cells, write_superclasses
from mrdc.experiments.sweep import Cell
from mrdc.experiments.verdicts import answer, stored_ratio, study_table
from mrdc.training.settings import RunSettings, TrainSettings

NAMES = ["trade-off", "volume-ratio", "t-sne", "compute", "storage", "forgetting", "fixed-budget",
         "fewer", "superclasses", "detection", "codecs", "selectors"]  # fmt: skip
SECTIONS = {"runs", "table", "accuracy", "budget", "trade-off", "volume-ratio",
            "time", "memory", "t-sne", "confusion", "detection"}  # fmt: skip
OUT = Path("out")
IMAGES = "1" * 16  # the fingerprint of a stream
Json = dict[str, Any]


def full(name: str, **more: Any) -> list[Cell]:
    """The runs of a study on people's data."""
    groups = Path("groups.csv") if STUDIES[name].superclasses else None
    return study_cells(name, OUT, "photos", superclasses=groups, **more)


# The table of studies


def test_names_of_studies() -> None:
    """Those of the issue, and `mrdc list` has them."""
    assert list(STUDIES) == NAMES == show.names()["studies"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_run(name: str) -> None:
    """Cells are checked as they are made; small ones are few and short, full ones as published."""
    study = STUDIES[name]
    small = study_cells(name, OUT)
    assert 1 <= len(small) <= 8
    assert len({cell.folder for cell in small}) == len(small)
    for cell in small:
        train = cell.settings.train
        assert cell.settings.data == study.data
        assert (train.epochs if isinstance(train, TrainSettings) else train.steps) <= 20
    for cell in full(name):
        settings = cell.settings
        assert (settings.data, settings.phases) == ("photos", 5)
        if isinstance(settings, RunSettings):
            assert (settings.train.epochs, settings.network) == (90, "resnet18")
        else:
            assert settings.train.steps == 10_000
    assert {name == "detection"} == {isinstance(c.settings, DetectSettings) for c in small}


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_shows(name: str) -> None:
    """Parts of a page that there are; a published table whose rows are as long as its header."""
    study = STUDIES[name]
    assert set(study.sections) <= SECTIONS
    assert len({len(row) for row in study.paper}) <= 1
    assert study.question.endswith("?")


def test_published_numbers_are_those_of_the_presets() -> None:
    """Which were typed from the paper a second time."""
    rows = {row[0]: row for row in STUDIES["compute"].paper}
    names = {"LUCIR": "lucir", "+ MRDC": "lucir-mrdc", "+ AANets": "lucir-aanets",
             "+ DDE": "lucir-dde"}  # fmt: skip
    for title, recipe in names.items():
        numbers = [f"{score:.2f}" for score in TABLE_1[recipe][:6] if score is not None]
        assert [rows[title][2], rows[title][4]] == [", ".join(numbers[:3]), ", ".join(numbers[3:])]
    detection = {str(row[0]): str(row[1]) for row in STUDIES["detection"].paper[1:]}
    assert {n: float(text.split()[0]) for n, text in detection.items()} == SODA10M


def test_the_paper_counts_whole_files() -> None:
    """In all of its own studies; beyond it, codecs are compared both ways."""
    for name in NAMES:
        kinds = {cell.settings.memory.accounting for cell in full(name)}
        assert kinds == ({"file", "packed"} if name == "codecs" else {"file"})


# Folders


def folders(name: str) -> set[Path]:
    return {cell.folder for cell in study_cells(name, OUT)}


def test_studies_share_runs() -> None:
    """What they agree on lies in one folder, on built-in and on other data."""
    assert folders("trade-off") == folders("volume-ratio")
    mrdc = folders("t-sne")
    for name in ("compute", "forgetting", "storage", "codecs", "selectors"):
        assert mrdc < folders(name)
    assert folders("trade-off") & folders("compute") & folders("forgetting") & folders("fewer")
    for name in ("compute", "forgetting", "storage", "selectors"):
        assert {c.folder for c in full("t-sne")} < {c.folder for c in full(name)}


def test_equal_settings_equal_folder() -> None:
    """And no other, over all studies, seeds and changes of settings."""
    made = list(chain.from_iterable(study_cells(n, OUT, seeds=(0, 1)) for n in NAMES))
    made += chain.from_iterable(full(n) for n in NAMES)
    made += study_cells("trade-off", OUT, changes=["train.epochs=2"])
    settings: dict[Path, Json] = {}
    for cell in made:
        decisive = decisive_settings(cell.settings)
        assert settings.setdefault(cell.folder, decisive) == decisive
    kinds = {json.dumps(decisive, sort_keys=True) for decisive in settings.values()}
    assert len(kinds) == len(settings)


def test_a_folder_says_what_the_run_is() -> None:
    """The method, its quality, data, phases and seed."""
    cell = study_cells("fewer", OUT, seeds=[3])[1]
    assert cell.folder.parent == OUT / "runs"
    assert cell.folder.name.startswith("lucir-75-textures-3-seed3-")


def test_rows_have_all_axes_of_the_study() -> None:
    """Those of other parts, too, so that one table holds them."""
    made = study_cells("codecs", OUT)
    assert [tuple(cell.place.values()) for cell in made] == [
        ("jpeg", "file", "0"), ("jpeg", "packed", "0"), ("webp", "packed", "0"),
        ("avif", "packed", "0"),
    ]  # fmt: skip


def test_settings_for_all_runs() -> None:
    """On top of what the study says."""
    made = study_cells("storage", OUT, changes=["train.epochs=2", "memory.candidates=50+25"])
    assert {cell.settings.memory.candidates for cell in made} == {(50, 25)}
    assert {cell.settings.train.epochs for cell in made
            if isinstance(cell.settings, RunSettings)} == {2}  # fmt: skip


def test_groups_of_the_textures(tmp_path: Path) -> None:
    """Every class once."""
    write_superclasses(tmp_path)
    classes = open_splits("textures").train.classes
    groups = read_superclasses(tmp_path / "textures-superclasses.csv", classes)
    assert sorted(groups) == ["bands"] * 5 + ["grids"] * 5


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tradeoff"], "unknown study 'tradeoff': choose from trade-off, .*did you mean"),
        (["superclasses", "--data", "photos"], "superclasses on photos needs --superclasses "
         "FILE.csv: a line class,superclass for each class"),
        (["storage", "--superclasses", "x.csv"], "study storage does not read superclasses"),
        (["storage", "--set-all", "epochs"], "--set-all epochs: write it as train.epochs=30"),
        (["storage", "--set-all", "epocs=3"], "unknown setting in --set-all epocs"),
        (["storage", "--set-all", "train.epochs=x"], "epochs must be a whole number, got 'x'"),
        (["storage", "--set-all", "seed=3"], "--set-all seed=3: use --seeds"),
        (["storage", "--set-all", "memory.budget=1/class"], "decides memory.budget"),
        (["storage", "--set-all", "method=bic"], "decides method"),
        (["storage", "--seeds", "1", "1"], "--seeds needs one or more numbers, each once"),
        (["storage", "--seeds", "-1"], "--seed must be 0 or more, got -1"),
        (["storage", "--phases", "0"], "--phases must be 1 or more, got 0"),
        (["storage", "--phases", "9"], "5 phases at most"),
        (["storage", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["storage", "--data", "nowhere"], "nowhere: no such folder or file"),
        (["superclasses", "--superclasses", "nowhere.csv"], "nowhere.csv"),
    ],
)  # fmt: skip
def test_studies_that_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2, and no folder."""
    assert main(["study", *arguments, "--out", str(tmp_path / "out"), "--json"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(message, err)
    assert not (tmp_path / "out").exists()


def test_superclasses_that_the_data_knows() -> None:
    """CIFAR-100 needs no file."""
    made = study_cells("superclasses", OUT, "cifar100:folder")
    assert {cell.settings.superclasses for cell in made
            if isinstance(cell.settings, RunSettings)} == {None}  # fmt: skip


# Going on


def result(score: float = 50.0, **more: Any) -> Json:
    held = {"bytes": 1, "budget_bytes": 2, "items": 30}
    return {
        "average_incremental_accuracy": score, "accuracy": [80.0, score], "memory": held,
        "average_forgetting": -3.0, "initial_forgetting": -4.0, "quality": 75, "seconds": 3.0,
        "volume_ratios": [], "mean_choice": 75, **more,
    }  # fmt: skip


def leave(cell: Cell, found: Json) -> None:
    """A finished run, as `mrdc run` leaves it."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    settings = {**decisive_settings(cell.settings), "stream": IMAGES}
    (cell.folder / "config.json").write_text(json.dumps({"settings": settings}))
    lines = "".join(json.dumps(line) + "\n" for line in ({"event": "phase", "phase": 0}, found))
    (cell.folder / "results.jsonl").write_text(lines)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that studies ask for; none is trained."""
    asked: list[str] = []

    def sweep(made: Sequence[Cell], jobs: int | None, tell: Callable[..., None]) -> list[Json]:
        asked.extend(cell.folder.name for cell in made)
        for cell in made:
            leave(cell, result())
        return [result() for _ in made]

    monkeypatch.setattr("mrdc.experiments.study.sweep", sweep)
    monkeypatch.setattr("mrdc.experiments.study.fingerprint", lambda settings: IMAGES)
    return asked


def test_a_finished_study_trains_nothing(tmp_path: Path, trained: list[str]) -> None:
    """The same again, and the same in the file."""
    first = run_study("trade-off", tmp_path)
    assert len(trained) == 6
    assert run_study("trade-off", tmp_path) == first
    assert len(trained) == 6
    assert json.loads((tmp_path / "trade-off.json").read_text())["table"] == first["table"]


def test_another_study_trains_what_is_left(tmp_path: Path, trained: list[str]) -> None:
    """Runs of the first are not asked for again; a further seed is."""
    run_study("t-sne", tmp_path)
    run_study("selectors", tmp_path)
    assert len(trained) == len(set(trained)) == 3
    found = run_study("selectors", tmp_path, seeds=[0, 1])
    assert len(trained) == len(set(trained)) == 6
    assert [row["runs"] for row in found["table"]] == [2, 2, 2]
    assert len(found["runs"]) == 6


def test_other_images_are_not_taken_for_the_same(tmp_path: Path, trained: list[str]) -> None:
    """A run of them is asked for, and it will refuse the folder."""
    run_study("t-sne", tmp_path)
    file = study_cells("t-sne", tmp_path)[0].folder / "config.json"
    config = json.loads(file.read_text())
    config["settings"]["stream"] = "0" * 16
    file.write_text(json.dumps(config))
    run_study("t-sne", tmp_path)
    assert len(trained) == 2


def test_progress_tells_of_finished_runs(tmp_path: Path, trained: list[str]) -> None:
    """Once each."""
    run_study("t-sne", tmp_path)
    told: list[tuple[str, bool]] = []
    run_study("t-sne", tmp_path, tell=lambda cell, found: told.append((cell.recipe, bool(found))))
    assert told == [("textures-lucir-mrdc", True)]


def test_time_is_measured_one_run_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless people say otherwise; other studies leave it to the sweep."""
    given: list[int | None] = []

    def sweep(made: Sequence[Cell], jobs: int | None, tell: object) -> list[Json]:
        given.append(jobs)
        raise KeyboardInterrupt

    monkeypatch.setattr("mrdc.experiments.study.sweep", sweep)
    monkeypatch.setattr("mrdc.experiments.study.fingerprint", lambda settings: IMAGES)
    for name, jobs in (("compute", None), ("compute", 2), ("t-sne", None)):
        with pytest.raises(KeyboardInterrupt):
            run_study(name, tmp_path, jobs=jobs)
    assert given == [1, 2, None]


def test_a_study_whose_runs_fail_names_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no answer then, but a way to the runs that ended."""

    def sweep(made: Sequence[Cell], jobs: int | None, tell: object) -> list[Json]:
        failed = [{"folder": str(cell.folder), "error": "no room"} for cell in made[:2]]
        return [*failed, *(result() for _ in made[2:])]

    monkeypatch.setattr("mrdc.experiments.study.sweep", sweep)
    monkeypatch.setattr("mrdc.experiments.study.fingerprint", lambda settings: IMAGES)
    message = r"^2 of 6 runs failed; the first, .*: no room \(`mrdc report .*` shows the others\)$"
    with pytest.raises(SweepError, match=message):
        run_study("trade-off", tmp_path)


# Answers

RATIOS = [
    {"codec": "original", "quality": None, "by_phase": [1.0, 1.0]},
    {"codec": "jpeg", "quality": 75, "by_phase": [1.2, 1.4]},
    {"codec": "jpeg", "quality": 50, "by_phase": [3.0, None]},
]


@pytest.mark.parametrize(
    ("quality", "ratio"),
    [(75, 1.3), (None, 1.0), ([50, 75], 2.2), (50, 3.0), (10, None)],
)
def test_the_ratio_of_what_was_stored(quality: Any, ratio: float | None) -> None:
    """By hand: the mean over the phases that know it, of each phase's own quality if it moves."""
    found = stored_ratio(result(quality=quality, volume_ratios=RATIOS))
    assert found == (None if ratio is None else pytest.approx(ratio))


def rows(axis: str, runs: dict[str, Json]) -> list[Json]:
    made = [Cell({axis: value}, "lucir", RunSettings("x"), Path("x")) for value in runs]
    return study_table(made, list(runs.values()))


def test_the_best_of_the_grid_beside_the_choice() -> None:
    """50 wins with 61 %; R_q along originals picks 75."""
    runs = {"original": result(55.0, quality=None, mean_choice=75),
            "75": result(60.0, mean_choice=50), "50": result(61.0, mean_choice=50)}  # fmt: skip
    assert answer(rows("memory.quality", runs), "grid") == (
        "The best of the grid is 50 (61.00 %); R_q, measured along originals, picks 75."
    )


def test_every_recipe_has_its_grid() -> None:
    """One that was only run with originals has a choice, but no best."""
    places = [("lucir", "original"), ("lucir", "75"), ("lucir-dde", "original")]
    made = [
        Cell({"recipe": recipe, "memory.quality": quality}, recipe, RunSettings("x"), Path("x"))
        for recipe, quality in places
    ]
    assert answer(study_table(made, [result(score) for score in (50, 40, 30)]), "grid") == (
        "lucir: the best of the grid is original (50.00 %); R_q, measured along originals, picks "
        "75. lucir-dde: R_q, measured along originals, picks 75."
    )


def test_orders_by_ratio_and_by_training() -> None:
    """R_q 1.0, 1.3 and 3.0: nearest first. Training swaps the last two."""
    runs = {
        "herding": result(60.0, volume_ratios=RATIOS),
        "random_choice": result(62.0, quality=None, volume_ratios=RATIOS),
        "dpp_greedy": result(61.0, quality=50, volume_ratios=RATIOS),
    }
    assert answer(rows("memory.select", runs), "nearness") == (
        "By R_q nearest to 1: random_choice > herding > dpp_greedy. "
        "By training: random_choice > dpp_greedy > herding. They agree on 2 of 3 pairs."
    )
    assert answer(rows("memory.select", runs), "") == ""


def test_orders_by_images_held() -> None:
    """More is better, if R_q lets it pass."""
    more = {"bytes": 1, "budget_bytes": 2, "items": 90}
    runs = {"jpeg": result(60.0, volume_ratios=RATIOS),
            "webp": result(62.0, volume_ratios=RATIOS, memory=more)}  # fmt: skip
    assert "webp > jpeg. By training: webp > jpeg. They agree on 1 of 1 pairs." in answer(
        rows("memory.codec", runs), "images"
    )


def test_rows_of_detectors() -> None:
    """AP after the last phase, with its deviation over seeds: of 20 and 24, 2.83."""
    runs = [result(ap=[10.0, last], ap50=[20.0, 40.0], ap75=[5.0, 6.0]) for last in (20.0, 24.0)]
    made = [Cell({"recipe": "a", "seed": str(seed)}, "a", RunSettings("x"), Path("x"))
            for seed in (0, 1)]  # fmt: skip
    (row,) = study_table(made, runs)
    assert (row["ap"], row["ap50"], row["ap75"]) == (22.0, 40.0, 6.0)
    assert row["ap_deviation"] == pytest.approx(8**0.5)


# The command


def test_help_names_the_studies(capsys: pytest.CaptureFixture[str]) -> None:
    """With their titles; `list studies` has their questions."""
    assert main(["study", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(f"{name}: {study.title[:20]}" in out for name, study in STUDIES.items())
    assert main(["list", "studies"]) == 0
    assert "Does R_q find the best" in capsys.readouterr().out


def test_ctrl_c_says_that_a_study_can_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As runs and sweeps do."""

    def stop(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mrdc.experiments.study.run_study", stop)
    assert main(["study", "t-sne"]) == 130
    assert (
        capsys.readouterr().err == "mrdc: interrupted: the same command again goes on from here\n"
    )


@pytest.mark.parametrize("name", ["volume-ratio", "detection", "compute", "selectors"])
def test_people_are_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours, what R_q says, the paper's, and where the page is."""
    monkeypatch.setenv("COLUMNS", "150")
    scores = {"ap": [1.0, 2.0], "ap50": [3.0, 4.0], "ap75": [5.0, 6.0]}
    found = result(volume_ratios=RATIOS) | (scores if name == "detection" else {})

    def sweep(made: Sequence[Cell], jobs: int | None, tell: Callable[..., None]) -> list[Json]:
        for cell in made:
            leave(cell, found)
        return [found for _ in made]

    pages: list[Json] = []
    monkeypatch.setattr("mrdc.experiments.study.sweep", sweep)
    monkeypatch.setattr("mrdc.experiments.study.fingerprint", lambda settings: IMAGES)
    monkeypatch.setattr("mrdc.report.write_report", lambda *given, **more: pages.append(more))
    assert main(["study", name, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    study = STUDIES[name]
    assert out.startswith(f"{study.title}\n{study.question}\n")
    assert ("The paper:" in out) is bool(study.paper)
    assert f"the page: {tmp_path / name}.html" in out.replace("\n", "")
    assert ("AP50" in out) is (name == "detection")
    assert pages[0]["title"] == study.title
    assert pages[0]["question"].startswith(study.question)
    assert (pages[0]["paper"], pages[0]["sections"]) == (study.paper, study.sections)


def test_a_study_from_its_command_to_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One real run of one epoch; the same command again answers without another."""
    given = ["study", "t-sne", "--out", str(tmp_path), "--json", "--phases", "1", "--set-all",
             "train.epochs=1", "size=32", "memory.candidates=50",
             "memory.budget=3/class"]  # fmt: skip
    assert main(given) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (err, out.count("\n")) == ("", 1)
    assert found["study"] == "t-sne"
    assert [row["runs"] for row in found["table"]] == [1]
    (folder,) = found["runs"]
    assert (Path(folder) / "results.jsonl").exists()
    page = Path(found["page"])
    assert page == tmp_path / "t-sne.html"
    assert STUDIES["t-sne"].question in page.read_text()
    monkeypatch.setattr("mrdc.experiments.study.sweep", None)
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out) == found
