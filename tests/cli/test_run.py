"""`mrdc run` on classes: refusals, output, progress, unreadable images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from mrdc.cli.runs import kept, run, volumes
from mrdc.cli.verbs import as_published
from mrdc.data import DATASETS
from mrdc.experiments.classes import usual_size
from mrdc.experiments.config import named
from mrdc.experiments.settings import built_in
from mrdc.training.results import MemorySummary
from tests.conftest import jpeg, make_photos
from tests.experiments.results import result
from tests.processes import SMALL, Cli, Running, numbers

TEXTURES = ["textures-lucir-mrdc", *SMALL]
SHORT = [*SMALL, "--train.epochs", "1", "--phases", "1"]


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise a ZeroDivisionError when training starts."""
    monkeypatch.setattr("mrdc.experiments.classes.learn_classes", lambda *a, **b: 1 / 0)


REFUSED = [
    ("--data NOWHERE", "no such folder or file"),
    ("--data cifar100:NOWHERE", "NOWHERE"),
    ("--phases 0", "--phases must be 1 or more, got 0"),
    ("--phases 6", "5 phases at most"),
    ("--holdout 1", "holdout must lie between 0 and 1"),
    ("--seed -1", "--seed must be 0 or more, got -1"),
    ("--size 8", "--size must be 16 or more, got 8"),
    ("--network vgg", "unknown network 'vgg': choose from resnet18"),
    ("--threads 0", "--threads must be 1 or more, got 0"),
    ("--train.epochs 0", "--train.epochs must be 1 or more"),
    ("--train.batch-size 1", "--train.batch-size must be 2 or more"),
    ("--train.lr nan", "--train.lr must be above 0"),
    ("--train.lr inf", "--train.lr must be above 0 and at most 1e+38"),
    ("--train.lr 1e308", "--train.lr must be above 0 and at most 1e+38"),
    ("--train.milestones 2 3", "--train.milestones must be fractions of the epochs"),
    ("--train.gamma -1", "--train.gamma likewise; got"),
    ("--compress 0", "--compress 0: quality of codec jpeg must be a whole number from 1 to 100"),
    ("--compress 5 --memory.codec jpeg webp", "--compress 5: give one --memory.codec with it"),
    ("--compress 5 --memory.scale 0.5", "--compress 5: images keep their size"),
    ("--train.match 1.5", "--train.match must be at most 1, got 1.5"),
    ("--train.match -1", "--train.match must be 0 or more"),
    ("--train.match nan", "--train.match must be 0 or more"),
    ("--train.momentum 2", "--train.momentum must be below 1"),
    ("--train.momentum -1", "--train.momentum must be 0 or more"),
    ("--train.brightness 5", "--train.brightness must be at most 1"),
    ("--train.weight-decay -1", "--train.weight-decay must be 0 or more"),
    ("--train.weight-decay inf", "--train.weight-decay must be 0 or more and finite, got inf"),
    (
        "--memory.quality best",
        "--memory.quality best: give auto, dynamic, original, a number, or run:",
    ),
    ("--memory.quality -5", "--memory.quality -5: give auto"),
    ("--memory.quality 50 --memory.codec jpeg webp", "give one --memory.codec with it"),
    ("--memory.qualities 50 101", "from 1 to 100, got 101"),
    ("--memory.qualities", "give at least one codec, one quality and one scale"),
    ("--memory.codec gif", "unknown codec 'gif'"),
    ("--memory.codec png", "--memory.codec png: has no qualities to choose from"),
    ("--memory.select herdin", "did you mean 'herding'?"),
    ("--memory.criterion volume-ratio --memory.epsilon 0", "epsilon must be a number above 0"),
    ("--memory.budget plenty", "invalid budget 'plenty'"),
    ("--memory.budget 3/phase", "--memory.budget 3/phase: counts phases of scenes"),
    ("--memory.budget 2kB", "--memory.budget 2kB: 2,000 bytes for 10 classes, but one"),
    ("--memory.budget 7kB", "--memory.budget 7kB: the budget leaves"),  # index included
    ("--memory.budget 9originals --memory.quality original", "one image of each takes"),
    ("--set nope=1", "unknown setting of lucir 'nope': choose from base, margin"),
    ("--set margin=inf", "--set margin=inf: margin must be 0 or more, and finite"),
    ("--device cuda", "--device cuda: no CUDA device found; use --device cpu"),
    ("--resident gpu", "--resident gpu needs a CUDA device"),
    ("--precision bf16", "--precision bf16 needs a CUDA device"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=[flags for flags, _ in REFUSED])
def test_run_refuses(
    flags: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Before any training: one line, exit code 2, nothing on standard output, and no folder."""
    monkeypatch.setattr("mrdc.experiments.classes.learn_classes", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    places = flags.replace("NOWHERE", str(tmp_path / "NOWHERE")).split()
    out = tmp_path / "run"
    assert message in cli.refused("run", *TEXTURES, "--out", out, "--json", *places)
    assert not out.exists()


def test_a_strict_budget_without_room_leaves_no_folder(tmp_path: Path, cli: Cli) -> None:
    """The message gives the bytes that the network takes."""
    flags = ["--memory.strict-budget", "--device", "cpu", "--out", tmp_path / "run"]
    err = cli.refused("run", "textures-lucir-aanets", *flags)
    assert "but the extra parameters of the network take" in err and "raise the budget" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["lwf-mrdc", "finetune"])
def test_weights_that_are_no_longer_finite(recipe: str, photos: Path, tmp_path: Path) -> None:
    """After the last step of an epoch: one line, neither a traceback nor a result."""
    flags = ["--data", photos, *SHORT, "--train.lr", "1e6", "--out", tmp_path / "run", "--json"]
    process = Running("run", recipe, *flags, "--first", "equal", "--train.batch-size", "32")
    assert process.wait() == 2
    assert "lower --train.lr" in process.text("err")
    assert process.text("err").count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
    ids=["python", "gpu", "cpu"],
)
def test_too_little_memory_is_explained(
    error: Exception, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("mrdc.experiments.classes.learn_classes", fail)
    given = ["run", "lucir", "--data", photos, *SHORT, "--out", tmp_path / "run"]
    assert "not enough memory: lower --train.batch-size" in cli.refused(*given)


# Unreadable images


@pytest.mark.parametrize("bad", [1, 5, 7])
def test_all_bad_images_are_found_before_any_training(
    bad: int, photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """A few are listed."""
    for number in range(bad):
        (photos / "class2" / f"0{7 - number}.jpg").write_bytes(b"")
    err = cli.refused("run", "lucir", "--data", photos, *SHORT, "--out", tmp_path / "run")
    assert err.count("the file is empty") == min(bad, 5)
    assert ("; and 2 more (" in err) == (bad > 5)
    assert "--skip-bad leaves such files out" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("split", "side"), [("train", "training"), ("val", "test")])
def test_a_bad_image_is_named_with_its_side(
    split: str, side: str, tmp_path: Path, cli: Cli
) -> None:
    """The training and test sides have files of the same names."""
    for name in ("train", "val"):
        make_photos(tmp_path / "data" / name, classes=2, images=2)
    (tmp_path / "data" / split / "class1" / "00.jpg").write_bytes(b"junk")
    given = ["run", "lucir", "--data", tmp_path / "data", *SHORT, "--out", tmp_path / "run"]
    assert f"{side} image class1/00.jpg: not an image" in cli.refused(*given)


def test_bad_images_are_skipped(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """The result lists them; a resumed run skips the same ones, even if they are repaired."""
    bad = [photos / "class0" / "00.jpg", photos / "class1" / "03.jpg"]
    for file in bad:
        file.write_bytes(b"")
    command = ["run", "lwf", "--data", photos, *SHORT, "--no-cache", "--skip-bad", "--out"]
    found = cli.json(*command, tmp_path / "run")
    assert found["skipped"] == [
        "training image class0/00.jpg: the file is empty (0 bytes)",
        "test image class1/03.jpg: the file is empty (0 bytes)",
    ]
    assert cli(*command, tmp_path / "run") == 0
    assert "Skipped, unreadable (2):" in cli.out
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("mrdc.experiments.classes.learn_classes", lambda *a, **b: 1 / 0)
        cli(*command, tmp_path / "other")
    for file in bad:
        file.write_bytes(jpeg(7))
    again = cli.json(*command, tmp_path / "other")
    assert again["skipped"] == found["skipped"] and numbers(again) == numbers(found)


def test_a_class_left_empty_is_refused(photos: Path, tmp_path: Path, cli: Cli) -> None:
    for file in (photos / "class1").iterdir():
        file.write_bytes(b"junk")
    command = ["run", "lwf", "--data", photos, *SHORT, "--skip-bad", "--out", tmp_path / "run"]
    assert "image of class1 is left; each class needs one" in cli.refused(*command)
    assert not (tmp_path / "run").exists()


def test_the_budget_is_checked_without_the_bad_images(
    photos: Path, tmp_path: Path, cli: Cli
) -> None:
    """Here the first image of a class cannot be read."""
    for file in sorted((photos / "class0").iterdir())[:4]:
        file.write_bytes(b"junk")
    flags = ["--skip-bad", "--memory.budget", "100B", "--out", tmp_path / "run"]
    err = cli.refused("run", "lwf", "--data", photos, *SHORT, *flags)
    assert "--memory.budget 100B: 100 bytes for 3 classes" in err
    assert not (tmp_path / "run").exists()


# Output


def test_output_without_a_terminal(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Plain progress lines on standard error, tables on standard output."""
    (photos / "class0" / "notes.txt").write_text("mine")
    assert cli("run", "lwf", "--data", photos, *SHORT, "--out", tmp_path / "run") == 0
    lines = cli.err.splitlines()
    assert len(lines) == 5
    assert lines[0] == "phase 0: 2 new classes, 12 images to train on"
    assert lines[1] == "phase 0: images stay in RAM, decoded"  # said once
    assert lines[2].startswith("phase 0: 2 classes, accuracy ")
    assert lines[4].startswith("phase 1: 3 classes, accuracy ")
    assert "\x1b" not in cli.err + cli.out
    assert cli.out.startswith("lwf on photos\n")
    assert "Averaged incremental accuracy" in cli.out and "mean R_q" in cli.out
    assert "some training images were set aside" in cli.out
    assert cli.out.endswith("Ignored (1):\n  class0/notes.txt: not an image (by its ending)\n")
    found = cli.json("run", "lwf", "--data", photos, *SHORT, "--out", tmp_path / "run")
    assert (found["name"], found["method"], found["sizes"]) == ("lwf", "lwf", [2, 1])
    assert found["held_out"] is True and found["skipped"] == []
    monkeypatch.setattr("mrdc.cli.progress.LINE_SECONDS", -1)
    flags = [*SHORT, "--no-cache", "--out", tmp_path / "slow"]
    assert cli("run", "lwf", "--data", photos, *flags) == 0
    lines = cli.err.splitlines()
    assert lines[:24] == [f"checked {n} of 24 images" for n in range(1, 25)]
    assert lines[26].startswith("  epoch 1/1: loss ") and lines[26].endswith(" images/s")


def test_plans_without_a_terminal(photos: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr("mrdc.cli.progress.LINE_SECONDS", -1)
    flags = ["--budget", "4/class", "--select", "random_choice", "--quality", "50"]
    assert cli("plan", photos, *flags) == 0
    assert any(line.endswith(": 24 of 24") for line in cli.err.splitlines())


@pytest.mark.parametrize(
    ("quality", "codecs", "words"),
    [
        (None, ["original"], "originals"),
        (50, ["webp"] * 2, "webp 50"),
        ([75, None, 75], ["jpeg", "original", "jpeg"], "jpeg 75, originals"),
    ],
)
def test_what_a_memory_holds_in_words(
    quality: Any, codecs: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single quality, or the quality chosen after each phase."""
    kept(Console(), result(quality=quality, codecs=codecs, memory=MemorySummary(90, 100, 7)))
    assert capsys.readouterr().out == f"Memory: 7 images as {words}, 90 of 100 bytes (8/class)\n"


@pytest.mark.parametrize(
    ("quality", "codec", "mean", "words"),
    [
        (5, "avif", "avif 5", "avif 5; its mean over the phases agrees."),
        (50, "jpeg", 50, "jpeg 50; its mean over the phases agrees."),
        (50, "jpeg", "avif 50", "jpeg 50; its mean over the phases would choose avif 50."),
        (None, "original", "original", "original; its mean over the phases agrees."),
        (None, "original", None, "original; its mean over the phases would choose nothing."),
    ],
)
def test_a_run_says_whether_the_mean_agrees(
    quality: Any, codec: str, mean: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"codec": codec, "quality": quality, "quantity": [1], "mean": 1.0}
    found = result(quality=quality, codecs=[codec], volume_ratios=[row], mean_choice=mean)
    volumes(Console(width=200), found)
    assert f"after the first phase: {words}" in capsys.readouterr().out


def test_a_run_says_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    """If no new class was learned, for example."""
    run(Console(), result(old_as_old=[None, 99.0], new_as_new=[None, 0.0], initial_forgetting=0.0))
    assert "Note: only 0 % of the test images of new classes" in capsys.readouterr().out


def test_test_images_that_are_training_images_are_reported(tmp_path: Path, cli: Cli) -> None:
    """At the start and the end of a run, in its result and on its page."""
    make_photos(tmp_path / "data" / "train", classes=3, images=8)
    test = make_photos(tmp_path / "data" / "test", classes=3, images=8)
    for number, file in enumerate(sorted(test.rglob("*.jpg"))):
        file.write_bytes(jpeg(1000 + number))
    (test / "class2" / "[b].jpg").write_bytes(jpeg(0))  # as train/class0/00.jpg
    warning = "1 test image is also used for training: class2/[b].jpg"
    command = ["run", "lwf", "--data", tmp_path / "data", *SHORT, "--out", tmp_path / "run"]
    assert cli(*command) == 0
    assert f"warning: {warning}\n" in cli.err and f"Warning: {warning}\n" in cli.out
    assert cli.json(*command)["in_training"] == ["class2/[b].jpg"]
    assert cli("report", tmp_path / "run", "-o", tmp_path / "page.html") == 0
    assert warning in (tmp_path / "page.html").read_text()


@pytest.mark.usefixtures("untrained")
def test_the_usual_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Under runs/, named after the recipe, data, phases and seed."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError):
        cli("run", "lwf", "--data", photos, "--phases", "1", "--seed", "7")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["lwf-photos-1-seed7"]


def test_a_folder_called_textures_is_not_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes precedence over the built-in images; other registered sets are not synthetic."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "mine", DATASETS["textures"])
    assert (built_in("textures"), usual_size("textures")) == (True, 64)
    assert (built_in("mine"), usual_size("mine")) == (False, 224)
    (tmp_path / "textures").mkdir()
    assert (built_in("textures"), usual_size("textures")) == (False, 224)


def test_a_last_batch_of_one_image(photos: Path, tmp_path: Path, cli: Cli) -> None:
    """Nine 32-px images in batches of eight, through a 7x7 stem."""
    for file in (photos / "class0").iterdir():
        if file.stem > "03":  # three to train on, and six of class1
            file.unlink()
    flags = [*SHORT, "--size", "32", "--train.batch-size", "8", "--first", "2", "--order", "sorted"]
    flags += ["--holdout", "0.25", "--out", str(tmp_path / "run")]
    assert cli("run", "finetune", "--data", photos, *flags) == 0, cli.err


def test_the_papers_number_is_for_the_papers_settings() -> None:
    """Another seed or other data keep it; another budget or network does not."""
    preset: Any = named("cub-5-lucir-mrdc").preset.settings
    assert as_published(replace(preset, data="elsewhere", seed=7, threads=3), preset)
    assert not as_published(replace(preset, phases=1), preset)
    assert not as_published(replace(preset, network="resnet18-narrow"), preset)
    memory = replace(preset.memory, budget="2/class")
    assert not as_published(replace(preset, memory=memory), preset)
