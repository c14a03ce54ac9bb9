"""Run folders of other settings, processes or programs are refused; damage is found."""

import json
import os
import sys
import types
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save

from mrdc._utils.errors import CheckpointError, OutputError, UsageError
from mrdc.experiments.folder import RESULTS, RunFolder, commits, finished, lock
from mrdc.experiments.run import tensorboard
from mrdc.nn.checkpoint import (
    FORMAT,
    Architecture,
    Checkpoint,
    digest,
    read_checkpoint,
    write_checkpoint,
)
from mrdc.training.machine import machine
from tests.experiments.results import result
from tests.processes import Cli, contents, events, running, until

CHANGES = [
    (["--memory.quality", "50"], "(--memory.quality: auto there, 50 now)"),
    (["--memory.qualities", "50"], "(--memory.qualities: [50, 25] there, [50] now)"),
    (["--phases", "3"], "--phases: 2 there, 3 now; images, classes or phases: "),
    (["--train.lr", "0.2", "--seed", "4"], "(--seed: 0 there, 4 now; --train.lr: 0.1 there, 0.2"),
    (["--set", "margin=0.4"], "(--set: ['base=5'] there, ['margin=0.4'] now)"),
    (["--train.batch-size", "8"], "(--train.batch-size: 16 there, 8 now)"),
    (["--skip-bad"], "(--skip-bad: False there, True now)"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("state", ["finished", "unfinished"])
@pytest.mark.parametrize(("flags", "message"), CHANGES, ids=[flags[0] for flags, _ in CHANGES])
def test_other_settings_are_refused(
    tiny: list[str],
    flags: list[str],
    message: str,
    state: str,
    request: pytest.FixtureRequest,
    cli: Cli,
) -> None:
    """All differences are listed as flags, and nothing else; the folder is unchanged."""
    folder: Path = request.getfixturevalue(state)
    before = contents(folder)
    err = cli.refused("run", *tiny, "--out", folder, "--json", *flags)
    assert err.startswith(f"mrdc: {folder}: was started with other settings (")
    assert message in err
    assert contents(folder) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_refusal_releases_the_folder(tmp_path: Path) -> None:
    """Even while the error is being handled; a folder in use is locked until it is closed."""
    first = RunFolder(tmp_path, {"a": 1}, {})
    with pytest.raises(UsageError, match="another process is using it"):
        RunFolder(tmp_path, {"a": 1}, {})
    first.close()
    free = False
    try:
        RunFolder(tmp_path, {"a": 2}, {})
    except UsageError:
        with suppress(UsageError):
            RunFolder(tmp_path, {"a": 1}, {}).close()
            free = True
    assert free


def test_settings_written_just_before_the_lock_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may start and end while this one waits for the lock."""

    def late(path: Path, why: str) -> object:
        monkeypatch.setattr("mrdc.experiments.folder.lock", lock)
        RunFolder(tmp_path, {"a": 2}, {}).close()
        return lock(path, why)

    monkeypatch.setattr("mrdc.experiments.folder.lock", late)
    with pytest.raises(UsageError, match="was started with other settings"):
        RunFolder(tmp_path, {"a": 1}, {})


def test_cores_are_known_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Linux has it."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine()["cores"] == os.cpu_count()


def test_a_second_process_in_a_folder_is_refused(tiny: list[str], tmp_path: Path, cli: Cli) -> None:
    """The first one is not disturbed."""
    folder = tmp_path / "run"
    with running("run", *tiny, "--out", folder, "--json") as first:
        results = folder / RESULTS
        until(lambda: results.exists() and "phase_start" in results.read_text())
        err = cli.refused("run", *tiny, "--out", folder, "--json")
        assert err == f"mrdc: {folder}: another process is using it\n"
        first.result()
    assert [event.get("event") for event in events(folder)].count("start") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("chapter.tex", "words", "has files but no config.json, so it is not a run folder"),
        ("config.json", '{"architectures": ["BertModel"]}', "not the config of a run"),
        ("config.json", "[]", "not the config of a run"),
        ("config.json", "port = 80", "not the config of a run"),
        ("results.jsonl", "hello\n", "has files but no config.json"),
        ("results.jsonl", "3\n", "has files but no config.json"),
    ],
)
def test_folders_of_other_programs_are_refused_and_untouched(
    tiny: list[str], name: str, text: str, message: str, tmp_path: Path, cli: Cli
) -> None:
    """Not even a lock file is left there."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_text(text)
    assert message in cli.refused("run", *tiny, "--out", tmp_path / "other", "--json")
    assert contents(tmp_path / "other") == {name: text.encode()}


def test_an_output_that_is_a_file_is_refused(tiny: list[str], tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("words")
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        cli.refused("run", *tiny, "--out", out, "--json")
    assert (tmp_path / "file").read_text() == "words"
    with pytest.raises(OutputError, match="exists and is not a folder; choose another --out"):
        RunFolder(tmp_path / "file", {}, {})


def test_tensorboard_in_a_new_folder(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Its writer creates a folder at once, as the real one does."""
    module = types.ModuleType("torch.utils.tensorboard")

    class SummaryWriter:
        def __init__(self, folder: str):
            Path(folder).mkdir(parents=True)

        def close(self) -> None:
            """Nothing is open."""

    vars(module)["SummaryWriter"] = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("mrdc.experiments.classes.learn_classes", lambda *a, **b: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("run", *tiny, "--out", tmp_path / "run", "--tensorboard", "--json")


def test_tensorboard_resumes_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs after a restart come after those before it; one that is repeated keeps its step."""
    drawn: list[tuple[str, float, int]] = []
    writer = SimpleNamespace(
        add_scalar=lambda *point: drawn.append(point),
        flush=lambda: None,
        close=lambda: drawn.append(("closed", 0, 0)),
    )
    module = types.ModuleType("torch.utils.tensorboard")
    vars(module)["SummaryWriter"] = lambda folder: writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    epochs = [{"event": "epoch", "phase": 0, "stage": 0, "epoch": n} for n in (1, 2, 3)]
    lines = [json.dumps(event) for event in ({"event": "start"}, *epochs)]
    (tmp_path / RESULTS).write_text("\n".join(lines) + "\n")
    with tensorboard(tmp_path, lambda kind, fields: None) as listen:
        for n in (3, 4):
            listen("epoch", {**epochs[0], "epoch": n, "loss": n, "images_per_second": 1.0})
    assert [point for point in drawn if point[0] == "train/loss"] == [
        ("train/loss", 3, 2),
        ("train/loss", 4, 3),
    ]
    assert drawn[-1][0] == "closed"


@pytest.mark.parametrize(
    "line", [b"null", b"3", b"[]", b'"x"', b"[" * 5000, b"{}", b'{"event": 1}']
)
def test_a_strange_line_does_not_keep_a_run_from_finishing(line: bytes, tmp_path: Path) -> None:
    """It is neither a result nor an event."""
    path = tmp_path / RESULTS
    path.write_bytes(b'{"event": "start", "commit": "abc"}\n' + line + b"\n")
    assert commits(path) == "abc"
    assert finished(tmp_path) is None


ROW = {"codec": "jpeg", "quality": 50, "by_phase": [], "mean": 1.0, "verdict": "chosen"}


@pytest.mark.parametrize(
    "damage",
    [
        {"accuracy": "x"},
        {"accuracy": [None]},
        {"memory": 3},
        {"seconds": None},
        {"volume_ratios": [{"codec": "jpeg"}]},
        {"volume_ratios": [ROW | {"quantity": []}]},
        {"phases": 3, "method": 7},
    ],
)
def test_a_damaged_result_counts_as_unfinished(damage: dict[str, Any], tmp_path: Path) -> None:
    """The run then writes it again."""
    (tmp_path / RESULTS).write_text(json.dumps(result().to_json()) + "\n")
    assert finished(tmp_path) == result()
    (tmp_path / RESULTS).write_text(json.dumps(result().to_json() | damage) + "\n")
    assert finished(tmp_path) is None


@pytest.mark.parametrize(
    "change", [{"about": "[]"}, {"about": "["}, {"architecture": "3"}, {"architecture": '{"a": 1}'}]
)
def test_a_forged_checkpoint_is_refused(change: dict[str, str], tmp_path: Path) -> None:
    """Even with a valid checksum."""
    texts = {"format": FORMAT, "architecture": "null", "about": "{}"} | change
    flat = {"model/weight": torch.ones(2)}
    right = digest(flat, json.dumps(texts, sort_keys=True))
    (tmp_path / "c").write_bytes(save(flat, {**texts, "sha256": right}))
    with pytest.raises(CheckpointError, match="not a checkpoint of mrdc"):
        read_checkpoint(tmp_path / "c")


def test_a_changed_description_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    """The checksum covers it, too."""
    write_checkpoint(tmp_path / "c", Checkpoint(None, {"a": {"b": torch.ones(2)}}, {"phase": 1}))
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data.replace(b'phase\\": 1', b'phase\\": 2'))
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        read_checkpoint(tmp_path / "c")


def test_a_network_of_another_shape_is_refused() -> None:
    """In one line, whatever torch reports."""
    made = Architecture("a", "Linear", 2, "7x7", 32)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="the checkpoint does not fit this network"):
        Checkpoint(made, {}).network()
