"""Studies: their runs, shared folders and refusals."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mrdc._utils.errors import SweepError
from mrdc.cli.lists import names
from mrdc.data import open_splits
from mrdc.data.order import read_superclasses
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.presets import SODA10M, TABLE_1
from mrdc.experiments.settings import decisive_settings
from mrdc.experiments.studies import studies
from mrdc.experiments.study import run_study, study_cells, write_superclasses
from mrdc.experiments.sweep import Cell, Failure, Outcome
from mrdc.training.results import RunResult
from mrdc.training.settings import RunSettings, TrainSettings
from tests.experiments.results import RATIOS, result
from tests.processes import Cli

NAMES = "trade-off volume-ratio t-sne compute storage forgetting fixed-budget fewer superclasses"
NAMES += " detection codecs selectors choice bytes"
SECTIONS = "runs table accuracy budget trade-off volume-ratio time memory t-sne confusion detection"
SECTIONS += " pairs forgetting choice bytes"
OUT = Path("out")
IMAGES = "1" * 16  # the fingerprint of a stream
Json = dict[str, Any]


def full(name: str) -> list[Cell]:
    """The runs of a study on the user's data."""
    groups = Path("groups.csv") if studies()[name].superclasses else None
    return study_cells(name, OUT, "photos", superclasses=groups)


# The table of studies


@pytest.mark.parametrize("name", NAMES.split())
def test_every_study_can_be_run(name: str) -> None:
    """Small ones are few and short, full ones as published; the paper counts whole files."""
    study, small, large = studies()[name], study_cells(name, OUT), full(name)
    assert list(studies()) == NAMES.split() == names()["studies"]
    assert 1 <= len(small) <= 10
    assert len({cell.folder for cell in small}) == len(small)
    for cell in small:
        train = cell.settings.train
        assert cell.settings.data == study.data
        assert (train.epochs if isinstance(train, TrainSettings) else train.steps) <= 20
    for cell in large:
        settings = cell.settings
        assert (settings.data, settings.phases) == ("photos", 5)
        if isinstance(settings, RunSettings):
            assert (settings.train.epochs, settings.network) == (90, "resnet18")
        else:
            assert settings.train.steps == 10_000
    assert {name == "detection"} == {isinstance(c.settings, DetectSettings) for c in small}
    kinds = {cell.settings.memory.accounting for cell in large}
    assert kinds == ({"file", "packed"} if name == "codecs" else {"file"})
    assert set(study.sections) <= set(SECTIONS.split())
    assert len({len(row) for row in study.paper}) <= 1
    assert study.question.endswith("?")


def test_published_numbers_are_those_of_the_presets() -> None:
    """Both were copied from the paper."""
    rows = {row[0]: row[1:] for row in studies()["compute"].paper}  # add-ons have others there
    for title, recipe in {"LUCIR": "lucir", "+ MRDC": "lucir-mrdc"}.items():
        assert [float(str(cell).split()[-1]) for cell in rows[title]] == list(TABLE_1[recipe][:6])
    for row, place in zip(studies()["storage"].paper[1::2], (3, 4, 5), strict=True):
        assert float(str(row[2]).split()[-1]) == TABLE_1["lucir-mrdc"][place]
    detection = {str(row[0]): str(row[1]) for row in studies()["detection"].paper[1:]}
    assert {n: float(text.split()[0]) for n, text in detection.items()} == SODA10M


# Folders


def test_studies_share_runs() -> None:
    """Equal settings share a folder, on built-in and on other data."""
    folders = {name: {cell.folder for cell in study_cells(name, OUT)} for name in NAMES.split()}
    assert folders["trade-off"] == folders["volume-ratio"] == folders["choice"]
    for name in ("compute", "forgetting", "storage", "codecs", "selectors"):
        assert folders["t-sne"] < folders[name]
    assert folders["trade-off"] & folders["compute"] & folders["forgetting"] & folders["fewer"]
    for name in ("compute", "forgetting", "storage", "selectors"):
        assert {c.folder for c in full("t-sne")} < {c.folder for c in full(name)}


def test_equal_settings_have_an_equal_folder() -> None:
    """Different settings have different folders, over all studies, seeds and changes."""
    made = list(chain.from_iterable(study_cells(n, OUT, seeds=(0, 1)) for n in NAMES.split()))
    made += chain.from_iterable(full(n) for n in NAMES.split())
    made += study_cells("trade-off", OUT, changes=["train.epochs=2"])
    settings: dict[Path, Json] = {}
    for cell in made:
        decisive = decisive_settings(cell.settings)
        assert settings.setdefault(cell.folder, decisive) == decisive
    kinds = {json.dumps(decisive, sort_keys=True) for decisive in settings.values()}
    assert len(kinds) == len(settings)
    folder = study_cells("fewer", OUT, seeds=[3])[1].folder
    assert folder.parent == OUT / "runs"
    assert folder.name.startswith("lucir-75-textures-3-seed3-")


def test_rows_have_all_axes_of_the_study() -> None:
    """Also those of its other parts, so that one table holds all; --set-all changes all runs."""
    places = [tuple(cell.place.values()) for cell in study_cells("codecs", OUT)]
    packed = [(codec, "packed", "0") for codec in ("jpeg", "webp", "avif")]
    assert places == [("jpeg", "file", "0"), *packed]
    made = study_cells("storage", OUT, changes=["train.epochs=2", "memory.qualities=50+25"])
    assert {cell.settings.memory.qualities for cell in made} == {(50, 25)}
    trains = [cell.settings.train for cell in made]
    assert {train.epochs for train in trains if isinstance(train, TrainSettings)} == {2}


def test_superclasses(tmp_path: Path) -> None:
    """Built-in data gets a file with every class once; CIFAR-100 needs none."""
    write_superclasses(tmp_path)
    classes = open_splits("textures").train.classes
    groups = read_superclasses(tmp_path / "textures-superclasses.csv", classes)
    assert sorted(groups) == ["bands"] * 5 + ["grids"] * 5
    for cell in study_cells("superclasses", OUT, "cifar100:folder"):
        assert isinstance(cell.settings, RunSettings) and cell.settings.superclasses is None


def test_superclasses_of_imagenet_are_sorted(tmp_path: Path) -> None:
    """Its folder serves for the paper's two sets; a file of superclasses works as on any data."""
    for number in range(1000):
        (tmp_path / "train" / f"n{1440764 + number:08d}").mkdir(parents=True)
    (tmp_path / "val").mkdir()
    made = study_cells("superclasses", OUT, str(tmp_path))
    kinds = [f"imagenet-{kind}:{tmp_path}" for kind in ("similar", "dissimilar")]
    qualities = ("original", "90", "75", "50", "dynamic")
    assert [tuple(cell.place.values()) for cell in made] == [
        (kind, quality, "0") for kind in kinds for quality in qualities
    ]
    for cell in made:
        assert isinstance(cell.settings, RunSettings)
        assert (cell.settings.data, cell.settings.order) == (cell.place["data"], "sorted")
    given = study_cells("superclasses", OUT, str(tmp_path), superclasses=Path("groups.csv"))
    assert {cell.place["order"] for cell in given} == {"similar", "dissimilar"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tradeoff", "unknown study 'tradeoff' .did you mean 'trade-off'.*: choose from"),
        ("superclasses --data photos", "superclasses on photos needs --superclasses FILE.csv"),
        ("storage --superclasses x.csv", "study storage does not read superclasses"),
        ("storage --set-all epochs", "--set-all epochs: write it as train.epochs=30"),
        ("storage --set-all epocs=3", "unknown setting in --set-all epocs"),
        ("storage --set-all train.epochs=x", "epochs must be a whole number, got 'x'"),
        ("storage --set-all seed=3", "--set-all seed=3: use --seeds"),
        ("storage --set-all memory.budget=1/class", "the study varies memory.budget"),
        ("storage --set-all method=bic", "the study varies method"),
        (
            "compute --set-all memory.quality=50",
            "textures-lucir-mrdc seed=0 are the same run",
        ),
        ("storage --seeds 1 1", "--seeds needs one or more numbers, each once"),
        ("storage --seeds -1", "--seed must be 0 or more, got -1"),
        ("storage --phases 0", "--phases must be 1 or more, got 0"),
        ("storage --phases 9", "5 phases at most"),
        ("storage --jobs 0", "--jobs must be 1 or more, got 0"),
        ("storage --data nowhere", "nowhere: no such folder or file"),
        ("superclasses --superclasses nowhere.csv", "nowhere.csv"),
    ],
)
def test_studies_that_are_refused(arguments: str, message: str, tmp_path: Path, cli: Cli) -> None:
    err = cli.refused("study", *arguments.split(), "--out", tmp_path / "out", "--json")
    assert re.search(message, err)
    assert not (tmp_path / "out").exists()


# Resuming


def leave(cell: Cell, found: RunResult) -> RunResult:
    """Write the folder of a finished run."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    settings = {**decisive_settings(cell.settings), "stream": IMAGES}
    (cell.folder / "config.json").write_text(json.dumps({"settings": settings}))
    lines = ({"event": "phase", "phase": 0}, found.to_json())
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (cell.folder / "results.jsonl").write_text(text)
    return found


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Runs and jobs that studies ask for, recorded instead of trained; `outcomes` can be set."""
    asked = SimpleNamespace(names=[], jobs=[])
    asked.outcomes = lambda made: [leave(cell, result(mean_choice=75)) for cell in made]

    def sweep(made: Sequence[Cell], jobs: int | None, report: Callable[..., None]) -> list[Outcome]:
        asked.names += [cell.folder.name for cell in made]
        asked.jobs.append(jobs)
        outcomes: list[Outcome] = asked.outcomes(made)
        return outcomes

    opened = SimpleNamespace(fingerprint=lambda: IMAGES)
    monkeypatch.setattr("mrdc.experiments.study.sweep", sweep)
    monkeypatch.setattr("mrdc.experiments.study.open_experiment", lambda settings: opened)
    return asked


def test_a_finished_study_trains_nothing(tmp_path: Path, swept: SimpleNamespace) -> None:
    """Its result is also written to a file; every finished run is reported once."""
    first = run_study("trade-off", tmp_path)
    assert len(swept.names) == 6
    seen: list[tuple[str, bool]] = []
    again = run_study(
        "trade-off",
        tmp_path,
        report=lambda cell, found, number: seen.append((number, found is not None)),
    )
    assert again == first and len(swept.names) == 6
    assert seen == [("finished", True)] * 6
    assert json.loads((tmp_path / "trade-off.json").read_text())["table"] == first["table"]


def test_another_study_trains_what_is_left(tmp_path: Path, swept: SimpleNamespace) -> None:
    """An additional seed is trained, too."""
    run_study("t-sne", tmp_path)
    run_study("selectors", tmp_path)
    assert len(swept.names) == len(set(swept.names)) == 3
    found = run_study("selectors", tmp_path, seeds=[0, 1])
    assert len(swept.names) == len(set(swept.names)) == 6
    assert [row["runs"] for row in found["table"]] == [2, 2, 2]
    assert len(found["runs"]) == 6


def test_a_run_of_other_images_is_not_reused(tmp_path: Path, swept: SimpleNamespace) -> None:
    run_study("t-sne", tmp_path)
    file = study_cells("t-sne", tmp_path)[0].folder / "config.json"
    file.write_text(file.read_text().replace(IMAGES, "0" * 16))
    run_study("t-sne", tmp_path)
    assert len(swept.names) == 2


def test_time_is_measured_one_run_at_a_time(tmp_path: Path, swept: SimpleNamespace) -> None:
    """Unless --jobs is given."""
    for name, jobs in (("compute", None), ("compute", 2), ("t-sne", None)):
        run_study(name, tmp_path / f"{name}{jobs}", jobs=jobs)
    assert swept.jobs == [1, 2, None]


def test_a_study_whose_runs_fail_names_the_first(tmp_path: Path, swept: SimpleNamespace) -> None:
    failed = [Failure("a", "no room"), Failure("b", "no room")]
    swept.outcomes = lambda made: [*failed, *(result() for _ in made[2:])]
    message = r"^2 of 6 runs failed; the first, a: no room \(`mrdc report .*` shows the others\)$"
    with pytest.raises(SweepError, match=message):
        run_study("trade-off", tmp_path)


# The command


def test_help_names_the_studies(cli: Cli) -> None:
    """The help has their titles, `list studies` their questions."""
    assert cli("study", "--help") == 0
    out = " ".join(cli.out.replace("│", " ").split())
    assert all(f"{name}: {study.title[:20]}" in out for name, study in studies().items())
    assert cli("list", "studies") == 0
    assert "Does R_q find the best" in cli.out


def test_an_interrupted_study_can_be_resumed(cli: Cli, swept: SimpleNamespace) -> None:
    def stop(made: Sequence[Cell]) -> list[Outcome]:
        raise KeyboardInterrupt

    swept.outcomes = stop
    assert cli("study", "t-sne") == 130
    assert cli.err == "mrdc: interrupted: run the same command to resume\n"


@pytest.mark.parametrize("name", ["volume-ratio", "detection", "compute", "selectors", "choice"])
def test_what_a_study_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: SimpleNamespace, cli: Cli
) -> None:
    """Our numbers, R_q, the paper's, and the page."""
    monkeypatch.setenv("COLUMNS", "150")
    scores: Json = {"ap": [1.0, 2.0], "ap50": [3.0, 4.0], "ap75": [5.0, 6.0]}
    found = result(volume_ratios=RATIOS, **(scores if name == "detection" else {}))
    swept.outcomes = lambda made: [leave(cell, found) for cell in made]
    pages: list[Json] = []
    monkeypatch.setattr("mrdc.report.write_report", lambda *given, **more: pages.append(more))
    assert cli("study", name, "--out", tmp_path) == 0
    study = studies()[name]
    assert cli.out.startswith(f"{study.title}\n{study.question}\n")
    assert ("The paper:" in cli.out) is bool(study.paper)
    assert f"the page: {tmp_path / name}.html" in cli.out.replace("\n", "")
    assert ("AP50" in cli.out) is (name == "detection")
    assert ("Difference from originals, mean" in cli.out) is (name != "selectors")
    answer = json.loads((tmp_path / f"{name}.json").read_text())["answer"]
    assert pages[0]["lead"] == (answer or None)
    assert ("R_q as published" in cli.out) is (name == "choice")
    assert (pages[0]["title"], pages[0]["question"]) == (study.title, study.question)
    assert (pages[0]["paper"], pages[0]["sections"]) == (study.paper, study.sections)


def test_a_study_from_its_command_to_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """One real run of one epoch; the same command again answers without another."""
    given = ["study", "t-sne", "--out", str(tmp_path), "--phases", "1", "--set-all"]
    given += ["train.epochs=1", "size=32", "memory.qualities=50", "memory.budget=3/class"]
    found = cli.json(*given)
    assert found["study"] == "t-sne"
    assert [row["runs"] for row in found["table"]] == [1]
    (folder,) = found["runs"]
    assert (Path(folder) / "results.jsonl").exists()
    page = Path(found["page"])
    assert page == tmp_path / "t-sne.html"
    assert studies()["t-sne"].question in page.read_text()
    monkeypatch.setattr("mrdc.experiments.study.sweep", None)
    monkeypatch.setattr("mrdc.report.write_report", lambda *given, **more: None)  # drawn above
    assert cli.json(*given) == found
