"""The clock that benchmarks put around loaders of other libraries, and its table."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import models

from tests.test_documents import ROOT, module


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr("common.RESULTS", tmp_path)
    return module("benchmarks/peers/timing.py")


def setup(timing: Any, data: Path) -> Any:
    return timing.Setup(
        data, classes=2, epochs=1, batch=3, workers=0, repeat=2, kept=1, device="cpu"
    )


def test_an_epoch_is_a_line_and_the_first_of_a_phase_is_cut_short(
    timing: Any, tmp_path: Path
) -> None:
    batches = [(torch.zeros(3), torch.zeros(3))] * (timing.WARM_UP + 2)
    clock = timing.Clock(setup(timing, tmp_path), library="one", version=None, path="files")
    loader = timing.Timed(batches, clock)
    assert [len(list(loader)) for _ in range(3)] == [timing.WARM_UP, len(batches), timing.WARM_UP]
    with pytest.raises(timing.DoneError):
        list(loader)
    lines = [json.loads(line) for line in (tmp_path / "peers.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["teacher"]) for line in lines] == [(0, False), (1, True)]
    assert [line["images"] for line in lines] == [3 * len(batches)] * 2
    rate = lines[0]["images"] / lines[0]["seconds"]
    assert lines[0]["images_per_second"] == pytest.approx(rate, rel=1e-3)


def test_training_files_are_repeated_and_test_files_are_one_per_class(
    timing: Any, tmp_path: Path
) -> None:
    for split in ("train", "test"):
        for name in "abcde":
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(3):
                (folder / f"{number}.jpg").touch()
    given = setup(timing, tmp_path)
    assert [label for _, label in given.files()] == [c for c in range(4) for _ in range(6)]
    assert [label for _, label in given.files("test")] == [0, 1, 2, 3]
    assert given.held == 4
    with pytest.raises(SystemExit, match="has 5 classes, but 2 phases of 3 need 6"):
        timing.Setup(tmp_path, 3, 1, 3, 0, 2, 1, "cpu").files()


def test_only_the_usual_resnet18_is_accepted(timing: Any) -> None:
    net = models.resnet18(num_classes=5)
    timing.require_resnet18(net)
    net.conv1 = torch.nn.Conv2d(3, 64, 3, bias=False)
    with pytest.raises(SystemExit, match="not ResNet-18 with a 7x7 stem"):
        timing.require_resnet18(net)


def test_the_table_has_medians_and_only_what_was_measured(
    timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"library": "one", "path": "stream", "version": "1", "method": "icarl"}
    rates = [line | {"teacher": False, "images_per_second": rate} for rate in (10.0, 1300.0, 20.0)]
    page = module("benchmarks/peer_tables.py")
    monkeypatch.setattr(page, "read", lambda name: rates)
    assert page.peers().splitlines()[2:] == ["| one | files, fp32 | icarl | 20 |  |  | 1 |"]
