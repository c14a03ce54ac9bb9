"""`mrdc run` of detectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mrdc.detection.learner
from mrdc.cli.progress import RunProgress
from mrdc.codec import CODECS
from mrdc.experiments.scenes import SceneExperiment
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg
from tests.experiments.results import result
from tests.processes import Cli
from tests.scenes import small, tiny

FEW = ["--phases", "2", "--labelled", "6", "--unlabelled", "4", "--train.steps", "3"]
FEW += ["--train.batch-size", "2", "--train.unlabelled-batch", "2", "--memory.budget", "2/phase"]
FEW += ["--memory.qualities", "50", "--device", "cpu", "--threads", "2"]


@pytest.fixture(autouse=True)
def tiny_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "build_detector", tiny)


def given(recipe: str, out: Path, *more: object, data: Path | str = "shapes") -> list[object]:
    """A command line; data other than shapes has fewer scenes."""
    fewer = [] if data == "shapes" else ["--labelled", "4", "--unlabelled", "3"]
    return ["run", recipe, "--data", data, *FEW, *fewer, "--out", out, *more]


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """A data set of 15 small training photos and 3 test photos, with one box each."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    for split, numbers in (("train", range(15)), ("val", range(100, 103))):
        box = {"category_id": 1, "bbox": [4, 4, 9, 9], "iscrowd": 0, "area": 81}
        size = {"width": 32, "height": 24}
        for n in numbers:
            (folder / "images" / f"{n}.jpg").write_bytes(jpeg(n))
        whole = {
            "images": [{"id": n, "file_name": f"{n}.jpg", **size} for n in numbers],
            "annotations": [{"id": n, "image_id": n, **box} for n in numbers],
            "categories": [{"id": 1, "name": "x"}],
        }
        (folder / f"{split}.json").write_text(json.dumps(whole))
    return folder


def test_a_run_from_its_command_to_its_folder(tmp_path: Path, cli: Cli) -> None:
    """AP by phase in the result and the last line; a second time the command answers at once."""
    out = tmp_path / "run"
    command = given("unbiased-teacher-mrdc", out)
    found = cli.json(*command)
    assert found["accuracy"] == found["ap"] and len(found["ap"]) == 2
    assert found["memory"]["bytes"] <= found["memory"]["budget_bytes"]
    assert found["synthetic"] and found["method"] == "unbiased-teacher"
    assert json.loads((out / "results.jsonl").read_text().splitlines()[-1]) == found
    memory = ReplayMemory.load(out / "memory-01.mrdc")
    assert memory.boxes.keys() == {name for p in (0, 1) for name in memory.sources(p)}
    assert memory.box_classes == ("disc", "square", "triangle")
    assert cli(*command) == 0
    assert all(text in cli.out for text in ("AP50", "AP by class: disc", "on shapes (synthetic)"))


def test_two_arms_share_their_first_phase(coco: Path, tmp_path: Path, cli: Cli) -> None:
    """The second run takes it over, unless the cache is off."""
    first = cli.json(*given("supervised-finetune", tmp_path / "a", data=coco))
    second = cli.json(*given("supervised-mrdc", tmp_path / "b", data=coco))
    alone = cli.json(*given("supervised-mrdc", tmp_path / "c", "--no-cache", data=coco))
    assert "taken_over" in second["parts"]
    assert "taken_over" not in first["parts"] and "taken_over" not in alone["parts"]
    assert second["ap"][0] == first["ap"][0]
    assert (second["ap"], second["memory"]) == (alone["ap"], alone["memory"])
    assert second["trained_images"] == alone["trained_images"]
    again = given("supervised-mrdc", tmp_path / "b", "--train.lr", "0.5", data=coco)
    assert "--train.lr: 0.01 there, 0.5 now" in cli.refused(*again)


def test_unknown_values_are_not_zero(coco: Path, tmp_path: Path, cli: Cli) -> None:
    """Precision without pseudo labels is unknown; counts by class are in words."""
    more = ["--set", "threshold=0.99"]
    assert cli(*given("pseudo-labels-finetune", tmp_path / "run", *more, data=coco)) == 0
    assert "precision: -\n" in cli.out and "recall: 0\n" in cli.out
    assert "by class: x 0\n" in cli.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--data nowhere", "nowhere"),
        ("--labelled 900", "need 1,800 labelled images, but there are 500"),
        ("--labelled 0", "--labelled must be 1 or more"),
        ("--train.steps 0", "--train.steps must be 1 or more"),
        ("--train.match 2", "--train.match must be at most 1, got 2.0"),
        ("--train.momentum 1", "--train.momentum must be below 1"),
        ("--train.warmup inf", "--train.warmup must be 0 or more and finite, got inf"),
        ("--long 100", "--long must be 1080 or more, got 100"),
        ("--unlabelled 0", "unbiased-teacher needs --unlabelled of 1 or more"),
        ("--memory.budget 2/day", "invalid budget '2/day': write 20/class (100/phase for"),
        ("--memory.budget 20/class", "scenes come in phases; write 100/phase,"),
        ("--memory.budget 9", "--memory.budget 9: 9 bytes for 2 phases, but one image of"),
        ("--weights nothing.pth", "--weights nothing.pth: no such file"),
        ("--set threshold=2", "threshold must be from 0 to less than 1"),
    ],
)
def test_mistakes_are_refused(more: str, message: str, tmp_path: Path, cli: Cli) -> None:
    """One line, and no folder."""
    err = cli.refused(*given("unbiased-teacher-mrdc", tmp_path / "run", *more.split()))
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "detector", "message"),
    [
        ({"conv1.weight": torch.zeros(1)}, "r18", "not weights of resnet18 (no bn1.weight)"),
        (torch.zeros(3), "r50", "not a state dict (no tensors by name)"),
        (None, "r18", "not a state dict (no tensors by name)"),
        ({}, "lite0", "lite0 has its own"),
    ],
)
def test_wrong_weights_leave_no_folder(
    content: Any, detector: str, message: str, tmp_path: Path, cli: Cli
) -> None:
    torch.save(content, tmp_path / "some.pth")
    more = ["--detector", detector, "--weights", tmp_path / "some.pth"]
    assert message in cli.refused(*given("unbiased-teacher-mrdc", tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


# Images of the user


def test_boxes_below_a_pixel_are_left_out(coco: Path, tmp_path: Path, cli: Cli) -> None:
    """In training and in test scenes."""
    for split in ("train", "val"):
        file = coco / f"{split}.json"
        whole = json.loads(file.read_text())
        whole["annotations"][0]["bbox"] = [4, 4, 0.5, 9]
        file.write_text(json.dumps(whole))
    assert cli(*given("supervised-finetune", tmp_path / "run", data=coco)) == 0
    assert "Left out: 2 boxes below 1 pixel" in cli.out


@pytest.mark.parametrize("name", ["5.jpg", "101.jpg"])
def test_a_damaged_image_is_refused_or_skipped(
    name: str, coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """In either split, although its header can be read; a resumed run skips the same ones."""
    damaged = coco / "images" / name
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-200])
    out = tmp_path / "run"
    command = given("unbiased-teacher-mrdc", out, "--no-cache", data=coco)
    assert name in cli.refused(*command)
    assert not out.exists()
    command.append("--skip-bad")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("mrdc.experiments.scenes.run_scenes", lambda *a: 1 / 0)
        cli(*command)
    damaged.write_bytes(whole)
    found = cli.json(*command)
    assert len(found["skipped"]) == 1 and name in found["skipped"][0]
    held = ReplayMemory.load(out / "memory-01.mrdc")
    assert name not in {source for phase in (0, 1) for source in held.sources(phase)}
    assert cli(*command) == 0
    assert "Skipped, unreadable (1):" in cli.out


@pytest.mark.parametrize("bad", [0, 1])
def test_images_are_read_once_to_find_damaged_ones(bad: int, coco: Path) -> None:
    """A test image that equals one of the pool counts only if that one is drawn."""
    pool = [coco / "unlabelled" / f"{number}.jpg" for number in range(7)]
    pool[0].parent.mkdir()
    for number, path in enumerate(pool):
        path.write_bytes(jpeg(number))
    (coco / "images" / "0.jpg").write_bytes(b"junk" if bad else jpeg(0))
    settings = small("supervised", data=str(coco), labelled=4, unlabelled=3, skip_bad=True)
    drawn = {photo.id for part in SceneExperiment(settings).stream.unlabelled for photo in part}
    for path in pool:
        path.write_bytes(jpeg(101 if f"unlabelled/{path.name}" in drawn else 102))
    read: list[int] = []
    found = SceneExperiment(settings).check(lambda kind, fields: read.append(fields["images"]))
    assert read == [*range(1, 15 + 7 + 3 + 1)]
    assert (len(found.skipped), found.in_training) == (bad, ["101.jpg"])


def test_too_many_damaged_images_are_refused(coco: Path, tmp_path: Path, cli: Cli) -> None:
    """Even with --skip-bad: the phases would lack images."""
    for number in range(8):
        (coco / "images" / f"{number}.jpg").write_bytes(b"junk")
    command = given("unbiased-teacher-mrdc", tmp_path / "run", "--skip-bad", data=coco)
    assert "2 phases need 8 labelled images, but there are 7" in cli.refused(*command)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["images", "unlabelled"])
def test_test_scenes_used_for_training_are_reported(
    where: str, coco: Path, tmp_path: Path, cli: Cli
) -> None:
    """Whether they are used with or without labels."""
    (coco / where).mkdir(exist_ok=True)
    for number in range(15):  # whichever are drawn
        (coco / where / f"{number}.jpg").write_bytes(jpeg(101))
    found = cli.json(*given("unbiased-teacher-finetune", tmp_path / "run", data=coco))
    assert found["in_training"] == ["101.jpg"]


@pytest.mark.parametrize("where", ["train", "val", "unlabelled"])
def test_strips_are_refused_before_any_work(
    where: str, coco: Path, tmp_path: Path, cli: Cli
) -> None:
    """Scaling would leave them without a pixel."""
    strip = CODECS["jpeg"].encode(np.zeros((3, 600, 3), np.uint8), 50)
    if where == "unlabelled":
        (coco / where).mkdir()
        for number in range(6):
            (coco / where / f"{number}.jpg").write_bytes(strip)
    else:
        whole = json.loads((coco / f"{where}.json").read_text())
        whole["images"][0] |= {"width": 600, "height": 3}
        whole["annotations"][0]["bbox"] = [0, 0, 9, 3]
        (coco / f"{where}.json").write_text(json.dumps(whole))
        (coco / "images" / whole["images"][0]["file_name"]).write_bytes(strip)
    sides = ["--short", "64", "--long", "100"]
    err = cli.refused(*given("unbiased-teacher-mrdc", tmp_path / "run", *sides, data=coco))
    assert "600 x 3 pixels; --long 100 leaves fewer than 2" in err
    assert not (tmp_path / "run").exists()


def test_a_detector_counts_parts_of_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    """Its steps are not epochs."""
    progress = RunProgress(False)
    for start, unit in (({"classes": 2}, "epoch"), ({}, "part")):
        progress("phase_start", {"phase": 1, "train_images": 6, **start})
        progress("resume", {"phase": 1, "epoch": 3})
        assert capsys.readouterr().err.endswith(f"phase 1: resumed after {unit} 3\n")


def test_a_stream_says_who_decodes(capsys: pytest.CaptureFixture[str]) -> None:
    """With the measured rates, and again only if images are kept elsewhere."""
    progress, rates = RunProgress(False), {"nvjpeg": 18204.4, "processes": 9100.0}
    streamed: dict[str, Any] = {"resident": "stream", "by_nvjpeg": 1200, "images_per_second": rates}
    for phase, where in enumerate((streamed, streamed, {"resident": "gpu"})):
        progress("feed", {"phase": phase, "stage": 0, **where})
    assert capsys.readouterr().err.splitlines() == [
        "phase 0: images are decoded in every epoch, 1,200 of them by nvJPEG "
        "(images/s measured: nvjpeg 18,204, processes 9,100)",
        "phase 2: images stay on the GPU, decoded",
    ]


def test_the_quality_that_an_earlier_run_picks(tmp_path: Path, cli: Cli) -> None:
    """R_q is averaged over the phases of the run with originals; a folder without it is refused."""
    folders: dict[str, dict[str, Any]] = {"first": {"mean_choice": 50}, "bare": {}}
    row = {"codec": "jpeg", "quality": 50, "quantity": [3], "by_phase": [9.0], "mean": 9.0}
    folders["none"] = {"volume_ratios": [row | {"verdict": "lost"}], "accuracy": [50.0]}
    small = row | {"codec": "jpeg@0.5"}
    webp = {"volume_ratios": [row | {"codec": "webp"}], "accuracy": [50.0]}
    folders["webp"] = {"mean_choice": 50, **webp}
    folders["scales"] = {"mean_choice": 50, "volume_ratios": [row, small], "accuracy": [50.0]}
    for name, more in folders.items():
        (tmp_path / name).mkdir()
        text = json.dumps(result(**more).to_json()) + "\n"
        (tmp_path / name / "results.jsonl").write_text(text)
    command = given("supervised-mrdc", tmp_path / "again", "--memory.quality")
    refusals = {tmp_path / "gone": "needs the folder of a finished run", "": "needs the folder"}
    refusals |= {
        tmp_path / "bare": "because it measured none",
        tmp_path / "none": "no candidate passes",
        tmp_path / "webp": "that run measured webp, but this one uses jpeg: set --memory.codec",
        tmp_path / "scales": "compares several codecs or scales; give a number",
    }
    for folder, why in refusals.items():
        assert why in cli.refused(*command, f"run:{folder}")
    found = cli.json(*command, f"run:{tmp_path / 'first'}")
    assert (found["quality"], found["quality_rule"]) == (50, "50")
