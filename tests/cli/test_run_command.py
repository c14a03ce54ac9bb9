"""`mrdc run`, `sweep` and `list` as a stranger meets them."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from mrdc.cli.main import as_published
from mrdc.cli.runs import kept
from mrdc.data import DATASETS
from mrdc.detection import LEARNERS
from mrdc.experiments.common import built_in
from mrdc.experiments.config import named
from mrdc.experiments.presets import PRESETS, RECIPES, SCENE_PRESETS, SCENE_RECIPES
from mrdc.experiments.run import usual_size
from mrdc.methods import METHODS
from tests.cli.test_cli import refused, run, said
from tests.conftest import jpeg, make_photos
from tests.processes import SMALL, Running, epochs, events, until

TEXTURES = ["textures-lucir-mrdc", *SMALL]
SHORT = [*SMALL, "--train.epochs", "1", "--phases", "1"]


def words(value: list[str] | str) -> str:
    """Names a case by its flags."""
    return " ".join(value) if isinstance(value, list) else "refused"


def test_list_names_methods_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    """Recipes first; `list presets` has every one, with the paper's number."""
    names = said(capsys, "list")
    assert names["methods"] == [*METHODS, *LEARNERS]
    assert names["presets"] == [*RECIPES, *SCENE_RECIPES, *PRESETS, *SCENE_PRESETS]
    assert {"textures", "shapes"} <= set(names["datasets"])
    assert said(capsys, "list", "presets") == {"presets": names["presets"]}
    assert run("list") == 0
    out = capsys.readouterr().out
    assert "lucir-mrdc" in out
    rows = len(PRESETS) + len(SCENE_PRESETS)
    assert f"and {rows} with data and phases, rows of the paper among them" in " ".join(out.split())
    assert "unknown list 'preset'" in refused(capsys, "list", "preset")


def test_list_presets_tells_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line each."""
    monkeypatch.setenv("COLUMNS", "200")
    assert run("list", "presets") == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(rows) == {"name", *RECIPES, *SCENE_RECIPES, *PRESETS, *SCENE_PRESETS}
    assert "46.68" in rows["cub-5-lucir-mrdc"]
    assert "20/class, 94" in rows["cub-5-lucir-mrdc"]
    assert "none" in rows["finetune"]


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_help_of_runs(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the flags, and with what a name makes their defaults."""
    assert run(verb, "--help") == 0
    out = capsys.readouterr().out
    assert f"mrdc {verb} NAME --data DATA" in " ".join(out.split())
    assert all(flag in out for flag in ("--phases", "--memory.quality", "--train.epochs", "--set"))
    assert run(verb, "cub-25-podnet-mrdc", "--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"mrdc {verb} cub-25-podnet-mrdc" in out
    assert "(default: 25)" in out
    assert "(default: 94)" in out


@pytest.mark.parametrize("verb", ["run", "sweep"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json"], "takes a recipe or preset first, as in: mrdc {} lucir-mrdc --data FOLDER"),
        (["--data", "textures", "lucir"], "takes a recipe or preset first"),
        (["lucyr"], "did you mean 'lucir'?"),
        (["lucyr", "--help"], "did you mean 'lucir'?"),
        (["cub-6-lucir", "--data", "x"], "unknown preset 'cub-6-lucir': `mrdc list presets`"),
        (["gone.toml"], "gone.toml: cannot be read as settings"),
    ],
)
def test_names_that_are_refused(
    verb: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything else."""
    assert message.format(verb) in refused(capsys, verb, *arguments)


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_without_a_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The name is what is missing first."""
    assert "takes a recipe or preset first" in refused(capsys, verb)


@pytest.mark.parametrize("verb", ["run", "sweep"])
@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["lucir", "--data", "textures", "--phases", "many"], "--phases"),
        (["lucir", "--data", "textures", "--phasis", "2"], "--phases"),
        (["lucir", "--data", "textures", "--network", "vgg"], "--network"),
    ],
)
def test_flags_that_the_parser_refuses(
    verb: str, arguments: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its own words, on standard error, with exit code 2."""
    assert run(verb, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert flag in err
    assert "Traceback" not in err


def test_a_run_needs_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Where its name brings none."""
    assert run("run", "lucir") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--data" in err


REFUSED = [
    (["--data", "NOWHERE"], "no such folder or file"),
    (["--data", "cifar100:NOWHERE"], "NOWHERE"),
    (["--phases", "0"], "--phases must be 1 or more, got 0"),
    (["--phases", "6"], "5 phases at most"),
    (["--first", "10"], "10 classes cannot make 5 phases after a first phase of 10"),
    (["--first", "most"], "first must be half, equal or a number of classes"),
    (["--order", "random"], "order must be a seed, sorted, similar or dissimilar"),
    (["--order", "similar"], "needs the superclass of each class"),
    (["--holdout", "1"], "holdout must lie between 0 and 1"),
    (["--seed", "-1"], "--seed must be 0 or more, got -1"),
    (["--size", "8"], "--size must be 16 or more, got 8"),
    (["--train.epochs", "0"], "--train.epochs must be 1 or more"),
    (["--train.batch-size", "1"], "--train.batch-size must be 2 or more"),
    (["--train.lr", "0"], "--train.lr must be above 0"),
    (["--train.milestones", "2", "3"], "--train.milestones must be parts of the epochs"),
    (["--train.gamma", "-1"], "--train.gamma likewise; got"),
    (["--train.momentum", "2"], "--train.momentum must be below 1"),
    (["--train.brightness", "5"], "--train.brightness at most 1"),
    (["--train.lr", "nan"], "--train.lr must be above 0"),
    (["--memory.quality", "best"], "--memory.quality best: give auto, dynamic, original or a"),
    (["--memory.quality", "0"], "from 1 to 100, got 0"),
    (["--memory.quality", "-5"], "--memory.quality -5: give auto"),
    (["--memory.candidates", "50", "101"], "from 1 to 100, got 101"),
    (["--memory.candidates"], "--memory.candidates needs at least one quality"),
    (["--memory.codec", "gif"], "unknown codec 'gif'"),
    (["--memory.select", "herdin"], "did you mean 'herding'?"),
    (["--memory.epsilon", "0"], "epsilon must be a number above 0"),
    (["--set", "nope=1"], "unknown setting of lucir 'nope': choose from base, margin"),
    (["--set", "rivals=-1"], "--set rivals=-1: rivals must be 0 or more, and finite"),
    (["--set", "margin=inf"], "--set margin=inf: margin must be 0 or more, and finite"),
    (["--memory.codec", "png"], "--memory.codec png: has no qualities to choose from"),
    (["--set", "margin=0.4", "seed_=3"], "unknown setting of lucir 'seed_'"),
    (["--threads", "0"], "--threads must be 1 or more, got 0"),
    (["--train.momentum", "-1"], "--train.momentum must be 0 or more"),
    (["--train.weight-decay", "-1"], "--train.weight-decay must be 0 or more"),
    (["--train.weight-decay", "inf"], "--train.weight-decay must be"),
    (["--train.lr", "inf"], "--train.lr must be"),
    (["--memory.budget", "plenty"], "budget 'plenty' is not one"),
    (["--memory.budget", "0/class"], "budget '0/class' is not one"),
    (["--memory.budget", "3/phase"], "--memory.budget 3/phase: counts phases of scenes"),
    (["--memory.budget", "2kB"], "--memory.budget 2kB: 2,000 bytes for 10 classes, but one"),
    (["--memory.budget", "7kB"], "--memory.budget 7kB: budget leaves"),  # beside the index
    (["--memory.budget", "1 originals", "--memory.quality", "original"], "one image of each takes"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=words)
def test_run_refuses(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before any training: one line, exit code 2, nothing on standard output, and no folder."""
    monkeypatch.setattr("mrdc.training.classes.fit", None)
    places = [flag.replace("NOWHERE", str(tmp_path / "NOWHERE")) for flag in flags]
    out = tmp_path / "run"
    assert message in refused(capsys, "run", *TEXTURES, "--out", out, "--json", *places)
    assert not out.exists()


WITHOUT_GPU = [
    (["--device", "cuda"], "--device cuda: there is no CUDA device here; use --device cpu"),
    (["--resident", "gpu"], "--resident gpu needs a CUDA device"),
    (["--precision", "bf16"], "--precision bf16 needs a CUDA device"),
]


@pytest.mark.parametrize(("flags", "message"), WITHOUT_GPU, ids=words)
def test_what_takes_a_gpu_is_refused_without_one(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, and no folder."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert message in refused(capsys, "run", *TEXTURES, "--out", tmp_path / "run", *flags)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["lwf-mrdc", "finetune"])
def test_weights_that_are_no_numbers_any_more(recipe: str, photos: Path, tmp_path: Path) -> None:
    """The last step of an epoch broke them: one line, not a traceback or a result."""
    flags = ["--data", photos, *SHORT, "--train.lr", "1e30", "--out", tmp_path / "run", "--json"]
    process = Running("run", recipe, *flags, "--first", "equal", "--train.batch-size", "32")
    assert process.wait() == 2
    assert "lower --train.lr" in process.text("err")
    assert process.text("err").count("\n") == 1


def test_a_bad_image_is_found_before_any_training(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of the last class: nothing is begun that would stop at it."""
    (photos / "class2" / "07.jpg").write_bytes(b"junk")
    given = ["run", "lucir", "--data", photos, *SHORT, "--out", tmp_path / "run"]
    assert "class2/07.jpg: not an image" in refused(capsys, *given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad", [2, 5, 7])
def test_all_bad_images_are_found_at_once(
    bad: int, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody mends a folder one image and one run at a time."""
    for number in range(bad):
        (photos / "class1" / f"0{number}.jpg").write_bytes(b"")
    given = ["run", "lucir", "--data", photos, *SHORT, "--out", tmp_path / "run"]
    message = refused(capsys, *given)
    told = {f"class1/0{number}.jpg: the file is empty" in message for number in range(bad)}
    assert told == ({True} if bad <= 5 else {True, False})
    assert message.count("the file is empty") == min(bad, 5)
    assert ("; and 2 more (" in message) == (bad > 5)


@pytest.mark.parametrize(
    ("quality", "words"),
    [(None, "originals"), (50, "quality 50"), ([75, None, 75], "quality 75, originals")],
)
def test_qualities_of_a_memory_in_words(
    quality: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One, or those that were chosen anew, each once."""
    held = {"items": 7, "bytes": 90, "budget_bytes": 100}
    kept(Console(), {"memory": held, "quality": quality, "budget": "8/class", "report": {}})
    assert capsys.readouterr().out == f"Memory: 7 images as {words}, 90 of 100 bytes (8/class)\n"


@pytest.mark.parametrize(("split", "side"), [("train", "training"), ("val", "test")])
def test_a_bad_image_is_named_with_its_side(
    split: str, side: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides have files of the same names."""
    for name in ("train", "val"):
        make_photos(tmp_path / "data" / name, classes=2, images=2)
    (tmp_path / "data" / split / "class1" / "00.jpg").write_bytes(b"junk")
    given = ["run", "lucir", "--data", tmp_path / "data", *SHORT]
    told = refused(capsys, *given, "--out", tmp_path / "run")
    assert f"{side} image class1/00.jpg: not an image" in told


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
    ids=["python", "gpu", "cpu"],
)
def test_too_little_memory_is_told_in_a_line(
    error: Exception,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With what takes less."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("mrdc.experiments.run.run_phases", fail)
    given = ["run", "lucir", "--data", photos, *SHORT, "--out", tmp_path / "run"]
    assert "there is not enough memory: lower --train.batch-size" in refused(capsys, *given)


def test_a_last_batch_of_one_image(photos: Path, tmp_path: Path) -> None:
    """Nine images in batches of eight, of 32 px through a 7x7 stem."""
    for file in (photos / "class0").iterdir():
        if file.stem > "03":  # three to train on, and six of class1
            file.unlink()
    flags = ["--data", photos, *SMALL, "--size", "32", "--train.batch-size", "8", "--first", "2"]
    found = Running("run", "finetune", *flags, "--phases", "1", "--train.epochs", "1", "--out",
                    tmp_path / "run", "--order", "sorted", "--holdout", "0.25")  # fmt: skip
    assert found.wait() == 0, found.text("err")


def test_json_of_a_run_is_one_object_and_nothing_else(photos: Path, tmp_path: Path) -> None:
    """Nothing on standard error either."""
    process = Running("run", "lwf", "--data", photos, *SHORT, "--out", tmp_path / "run", "--json")
    found = process.result()
    assert process.text("out").count("\n") == 1
    assert process.text("err") == ""
    assert (found["name"], found["method"], found["sizes"]) == ("lwf", "lwf", [2, 1])
    assert found["held_out"] is True


def test_without_a_terminal_progress_is_plain_lines(photos: Path, tmp_path: Path) -> None:
    """On standard error, two a phase; tables on standard output."""
    (photos / "class0" / "notes.txt").write_text("mine")
    process = Running("run", "lwf", "--data", photos, *SHORT, "--out", tmp_path / "run")
    assert process.wait() == 0
    lines = process.text("err").splitlines()
    assert len(lines) == 4
    assert lines[0] == "phase 0: 2 new classes, 12 images to train on"
    assert lines[1].startswith("phase 0: 2 classes, accuracy ")
    assert lines[3].startswith("phase 1: 3 classes, accuracy ")
    assert "\x1b" not in process.text("err") + process.text("out")
    out = process.text("out")
    assert out.startswith("lwf on photos\n")
    assert "Averaged incremental accuracy" in out
    assert "some training images were set aside" in out
    assert out.endswith("Ignored, not images (1):\n  class0/notes.txt\n")


def test_checking_many_images_shows_that_it_moves(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the first phase; a set of millions takes minutes."""
    monkeypatch.setattr("mrdc.cli.progress.LINE_SECONDS", -1)
    monkeypatch.setattr("mrdc.experiments.run.run_phases", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("run", "lwf", "--data", photos, *SHORT, "--out", tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"checked {n} of 24 images" for n in range(1, 25)]


def test_test_images_that_are_training_images_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When a run begins, when it goes on, in its result and on its page."""
    make_photos(tmp_path / "data" / "train", classes=3, images=8)
    test = make_photos(tmp_path / "data" / "test", classes=3, images=8)
    for label in range(3):
        for number in range(8):
            (test / f"class{label}" / f"{number:02d}.jpg").write_bytes(
                jpeg(1000 + 8 * label + number)
            )
    (test / "class2" / "[b].jpg").write_bytes(jpeg(0))  # as train/class0/00.jpg
    told = "1 test image is among the images learned from: class2/[b].jpg"
    command = ("run", "lwf", "--data", tmp_path / "data", *SHORT, "--out", tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("mrdc.experiments.run.run_phases", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(*command)
    assert f"warning: {told}\n" in capsys.readouterr().err
    assert run(*command) == 0
    out, err = capsys.readouterr()
    assert f"warning: {told}\n" in err and f"Warning: {told}\n" in out
    assert said(capsys, *command)["in_training"] == ["class2/[b].jpg"]
    assert run("report", tmp_path / "run", "-o", tmp_path / "page.html") == 0
    assert f"data: {told}." in (tmp_path / "page.html").read_text()


def test_the_usual_folder_has_the_names_of_what_runs(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Under runs/, where one is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mrdc.experiments.run.run_phases", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("run", "lwf", "--data", photos, "--phases", "1", "--seed", "7")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["lwf-photos-1-seed7"]


def test_a_folder_called_textures_is_not_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes before the built-in images; another set of the table is not synthetic either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "mine", DATASETS["textures"])
    assert (built_in("textures"), usual_size("textures")) == (True, 64)
    assert (built_in("mine"), usual_size("mine")) == (False, 224)
    (tmp_path / "textures").mkdir()
    assert (built_in("textures"), usual_size("textures")) == (False, 224)


def test_ctrl_c_says_that_a_run_can_go_on(photos: Path, tmp_path: Path) -> None:
    """In one line; and it can."""
    flags = ["lwf", "--data", photos, *SHORT, "--train.epochs", "3", "--out", tmp_path / "run"]
    flags += ["--checkpoint-seconds", "0", "--json"]
    process = Running("run", *flags)
    until((tmp_path / "run" / "partial.safetensors").exists)
    assert process.process.pid is not None
    os.kill(process.process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert process.text("err") == "mrdc: interrupted: the same command again goes on from here\n"
    assert process.text("out") == ""
    assert Running("run", *flags).result() == events(tmp_path / "run")[-1]
    assert epochs(tmp_path / "run", 0) == 3


def test_a_strict_budget_without_room_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before anything is made, with what the network takes."""
    out = tmp_path / "run"
    flags = ["--memory.strict-budget", "--device", "cpu", "--out", str(out)]
    assert run("run", "textures-lucir-aanets", *flags) == 2
    said_ = capsys.readouterr().err
    assert "are charged for further parameters of the network: raise it" in said_
    assert not out.exists()


def test_the_papers_number_is_for_the_papers_settings() -> None:
    """Another seed and other data keep it; another budget or network does not."""
    preset = named("cub-5-lucir-mrdc").preset.settings
    assert as_published(replace(preset, data="elsewhere", seed=7, threads=3), preset)
    assert not as_published(replace(preset, phases=1), preset)
    assert not as_published(replace(preset, network="resnet18-narrow"), preset)
    memory = replace(preset.memory, budget="2/class")
    assert not as_published(replace(preset, memory=memory), preset)
