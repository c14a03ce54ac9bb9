"""`mrdc run` and `sweep` of detectors, as people type them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mrdc.detection.learner
from mrdc.cli.main import main
from mrdc.cli.progress import Progress
from mrdc.codec import CODECS
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.presets import SCENE_PRESETS, SCENE_RECIPES, SODA10M
from mrdc.experiments.scenes import check_detect
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg
from tests.scenes import tiny

FEW = (
    "--phases", "2", "--labelled", "6", "--unlabelled", "4", "--train.steps", "3",
    "--train.batch-size", "2", "--train.unlabelled-batch", "2", "--memory.budget", "2/phase",
    "--memory.candidates", "50", "--device", "cpu", "--threads", "2",
)  # fmt: skip
Tells = Callable[[], dict[str, Any]]


@pytest.fixture(autouse=True)
def tiny_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrdc.detection.learner, "build_detector", tiny)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Tells:
    def read() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return read


def run(recipe: str, out: Path, *more: str) -> int:
    return main(["run", recipe, "--data", "shapes", *FEW, "--out", str(out), *more])


def test_a_run_from_its_command_to_its_folder(
    tmp_path: Path, told: Tells, capsys: pytest.CaptureFixture[str]
) -> None:
    """AP by phase in the result and in the last line; the same command again answers at once."""
    out = tmp_path / "run"
    assert run("unbiased-teacher-mrdc", out, "--json") == 0
    found = told()
    assert found["accuracy"] == found["ap"] and len(found["ap"]) == 2
    assert found["memory"]["bytes"] <= found["memory"]["budget_bytes"]
    assert found["synthetic"] and found["method"] == "unbiased-teacher"
    last = (out / "results.jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == found
    memory = ReplayMemory.load(out / "memory-01.mrdc")
    assert memory.boxes.keys() == {name for p in (0, 1) for name in memory.sources(p)}
    assert memory.box_classes == ("disc", "square", "triangle")
    assert run("unbiased-teacher-mrdc", out, "--json") == 0
    assert told() == found
    assert run("unbiased-teacher-mrdc", out) == 0
    text = capsys.readouterr().out
    assert "AP50" in text and "AP by class: disc" in text and "on shapes (synthetic)" in text


def test_what_was_not_measured_is_no_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a pseudo label there is no precision; counts by class are told in words."""
    assert run("pseudo-labels-finetune", tmp_path / "run", "--set", "threshold=0.99") == 0
    text = capsys.readouterr().out
    assert "precision: -\n" in text and "recall: 0\n" in text
    assert "by class: disc 0, square 0, triangle 0\n" in text


def test_other_settings_in_a_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the difference."""
    assert run("supervised-finetune", tmp_path / "run") == 0
    assert run("supervised-finetune", tmp_path / "run", "--train.lr", "0.5") == 2
    assert "--train.lr: 0.01 there, 0.5 now" in capsys.readouterr().err


def test_a_sweep_of_detectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are runs with the settings of their recipe."""
    from mrdc.experiments import sweep
    from mrdc.experiments.config import named

    made = sweep.cells(
        "shapes-supervised-mrdc", lambda recipe: named(recipe).preset.settings,
        {"recipe": ["shapes-supervised-finetune", "shapes-unbiased-teacher-mrdc"],
         "memory.budget": ["3/phase"]},
        tmp_path,
    )  # fmt: skip
    assert [cell.settings.method for cell in made] == ["supervised", "unbiased-teacher"]
    assert all(cell.settings.memory.budget == "3/phase" for cell in made)
    assert sweep._as_json(made[1])["recipe"] == "shapes-unbiased-teacher-mrdc"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data", "nowhere"], "nowhere"),
        (["--labelled", "900"], "want 1,800 labelled images, but there are 500"),
        (["--labelled", "0"], "--labelled must be 1 or more"),
        (["--train.steps", "0"], "--train.steps must be 1 or more"),
        (["--train.momentum", "1"], "--train.momentum must be below 1"),
        (["--train.warmup", "inf"], "--train.warmup must be 0 or more, and finite, got inf"),
        (["--long", "100"], "--long must be 1080 or more, got 100"),
        (["--unlabelled", "0"], "unbiased-teacher needs --unlabelled of 1 or more"),
        (["--memory.budget", "2/day"], "budget '2/day' is not one: write 20/class (100/phase for"),
        (["--memory.budget", "9"], "--memory.budget 9: 9 bytes for 2 phases, but one image of"),
        (["--weights", "nothing.pth"], "--weights nothing.pth: no such file"),
        (["--set", "threshold=2"], "threshold must be from 0 to less than 1"),
    ],
)
def test_mistakes_get_one_line(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and no folder."""
    assert run("unbiased-teacher-mrdc", tmp_path / "run", *more) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def coco(folder: Path, images: int = 14) -> Path:
    """A data set of small photos with a box each."""
    (folder / "images").mkdir(parents=True)
    for split, numbers in (("train", range(images)), ("val", range(100, 103))):
        places = [{"id": n, "file_name": f"{n}.jpg", "width": 32, "height": 24} for n in numbers]
        boxes = [
            {
                "id": n,
                "image_id": n,
                "category_id": 1,
                "bbox": [4, 4, 9, 9],
                "iscrowd": 0,
                "area": 81,
            }
            for n in numbers
        ]
        for n in numbers:
            (folder / "images" / f"{n}.jpg").write_bytes(jpeg(n))
        whole = {"images": places, "annotations": boxes, "categories": [{"id": 1, "name": "x"}]}
        (folder / f"{split}.json").write_text(json.dumps(whole))
    return folder


def test_boxes_that_were_left_out_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those below a pixel, of training and of test scenes."""
    data = coco(tmp_path / "data")
    for split in ("train", "val"):
        file = data / f"{split}.json"
        whole = json.loads(file.read_text())
        whole["annotations"][0]["bbox"] = [4, 4, 0.5, 9]
        file.write_text(json.dumps(whole))
    more = ["--data", str(data), "--labelled", "4", "--unlabelled", "3"]
    assert run("supervised-finetune", tmp_path / "run", *more) == 0
    assert "Left out: 2 boxes below 1 pixel" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["5.jpg", "101.jpg"])
def test_a_damaged_image_is_found_before_any_work(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the training images or of the test images, though its header can be read."""
    data = coco(tmp_path / "data")
    damaged = data / "images" / name
    damaged.write_bytes(damaged.read_bytes()[:-200])
    more = ["--data", str(data), "--labelled", "4", "--unlabelled", "3"]
    assert run("unbiased-teacher-mrdc", tmp_path / "run", *more) == 2
    assert name in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["images", "unlabelled"])
def test_test_scenes_that_are_learned_from_are_told(
    where: str, tmp_path: Path, told: Tells
) -> None:
    """With labels or without."""
    data = coco(tmp_path / "data")
    twin = data / "images" / "101.jpg"
    if where == "unlabelled":
        (data / where).mkdir()
    for number in range(14):  # whichever are drawn
        (data / where / f"{number}.jpg").write_bytes(twin.read_bytes())
    more = ["--data", str(data), "--labelled", "4", "--unlabelled", "3", "--json"]
    assert run("unbiased-teacher-finetune", tmp_path / "run", *more) == 0
    assert told()["in_training"] == ["101.jpg"]


@pytest.mark.parametrize("where", ["train", "val", "unlabelled"])
def test_strips_are_refused_before_any_work(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of which scaling would leave no pixel."""
    data = coco(tmp_path / "data")
    strip = CODECS["jpeg"].encode(np.zeros((3, 600, 3), np.uint8), 50)
    if where == "unlabelled":
        (data / where).mkdir()
        for number in range(6):
            (data / where / f"{number}.jpg").write_bytes(strip)
    else:
        whole = json.loads((data / f"{where}.json").read_text())
        whole["images"][0] |= {"width": 600, "height": 3}
        whole["annotations"][0]["bbox"] = [0, 0, 9, 3]
        (data / f"{where}.json").write_text(json.dumps(whole))
        (data / "images" / whole["images"][0]["file_name"]).write_bytes(strip)
    more = ["--data", str(data), "--labelled", "4", "--unlabelled", "3", "--short", "64", "--long"]
    assert run("unbiased-teacher-mrdc", tmp_path / "run", *more, "100") == 2
    said = capsys.readouterr().err.strip()
    assert "600 x 3 pixels, of which --long 100 leaves less than 2" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "detector", "message"),
    [
        ({"conv1.weight": torch.zeros(1)}, "r18", "no bn1.weight in it, so not of resnet18"),
        (torch.zeros(3), "r50", "not a state dict (no tensors by name)"),
        (None, "r18", "not a state dict (no tensors by name)"),
        ({}, "lite0", "lite0 has its own"),
    ],
)
def test_wrong_weights_leave_no_folder(
    content: Any, detector: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that the right ones can be given in the same place."""
    torch.save(content, tmp_path / "some.pth")
    more = ["--detector", detector, "--weights", str(tmp_path / "some.pth")]
    assert run("unbiased-teacher-mrdc", tmp_path / "run", *more) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_every_recipe_of_scenes_is_one() -> None:
    """Three ways to learn, four ways to replay; rows of the paper's table with its numbers."""
    assert len(SCENE_RECIPES) == 12
    for name, preset in SCENE_RECIPES.items():
        settings = preset.settings
        assert isinstance(settings, DetectSettings)
        check_detect(settings)
        assert name.startswith(settings.method)
        kinds = {"finetune": "none", "joint": "joint", "replay": "memory", "mrdc": "memory"}
        assert settings.replay == kinds[name.rpartition("-")[2]]
        assert settings.memory.quality == ("auto" if name.endswith("-mrdc") else "original")
    for name, paper in SODA10M.items():
        row = SCENE_PRESETS[f"soda10m-{name}"]
        assert row.paper == paper
        assert row.settings.memory.quality == ("50" if name.endswith("mrdc") else "original")
        assert row.settings.memory.budget == "100/phase"
    assert SODA10M["unbiased-teacher-mrdc"] == 43.72
    assert SODA10M["pseudo-labels-finetune"] == 40.36


def test_a_detector_counts_parts_of_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    """Its steps are no epochs."""
    progress = Progress(False)
    for start, unit in (({"classes": 2}, "epoch"), ({}, "part")):
        progress("phase_start", {"phase": 1, "train_images": 6, **start})
        progress("resume", {"phase": 1, "epoch": 3})
        assert capsys.readouterr().err.endswith(f"phase 1: goes on after {unit} 3\n")
