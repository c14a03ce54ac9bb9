"""Run folders: consistent at every moment, for one process and one set of settings."""

import json
import os
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from mrdc._utils.errors import CheckpointError, MrdcError, OutputError, UsageError
from mrdc.experiments.folder import (
    PARTIAL,
    RESULTS,
    RunFolder,
    commits,
    finished,
    last_line,
    lock,
    open_events,
    rounded,
)
from mrdc.experiments.run import machine
from mrdc.experiments.settings import flat
from mrdc.nn.checkpoint import (
    FORMAT,
    Architecture,
    Checkpoint,
    digest,
    last_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from mrdc.training.resume import Partial
from tests.experiments.results import result
from tests.processes import (
    FORK,
    MOMENTS,
    Cli,
    Moment,
    check_whole,
    contents,
    events,
    mortal,
    running,
    saved,
    until,
)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[RunFolder]:
    """A folder with one phase."""
    folder = RunFolder(tmp_path, {"a": 1}, {"in_training": []})
    folder.save(saved(0))
    yield folder
    folder.close()


def keep_two_phases(folder: Path, death: tuple[Moment, int]) -> None:
    """Keep phase 0, then a partial checkpoint and phase 1, dying somewhere on the way."""
    keeper = RunFolder(folder, {"a": 1}, {}, every=0.0)
    keeper.save(saved(0))
    mortal(*death)
    keeper.save_partial(lambda: Partial(1, 1, saved(1).checkpoint))
    keeper.save(saved(1))
    os._exit(0)


def dies(folder: Path, death: tuple[Moment, int]) -> int:
    process = FORK.Process(target=keep_two_phases, args=(folder, death))
    process.start()
    process.join()
    return process.exitcode or 0


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_moment_of_keeping_a_phase(moment: Moment, tmp_path: Path) -> None:
    """The folder has the old phase with its memory, or the new one with its memory."""
    found, code, count = [], 9, 0
    while code == 9:
        count += 1
        folder = tmp_path / str(count)
        code = dies(folder, (moment, count))
        check_whole(folder)
        keeper = RunFolder(folder, {"a": 1}, {}, every=0.0)
        kept = keeper.load()
        assert kept is not None and kept.memory is not None
        assert kept.checkpoint.tensors["model"]["x"].tolist() == [kept.phase] * 4
        assert kept.memory.labels == list(range(kept.phase + 1))
        partial = keeper.load_partial(kept.phase + 1)
        assert partial is None or (kept.phase, partial.epoch) == (0, 1)
        keeper.save(saved(1))
        again = keeper.load()
        assert again is not None and again.phase == 1
        keeper.close()
        found.append(kept.phase)
    assert code == 0
    assert found == sorted(found) and found[-1] == 1 and len(found) > 2


def test_no_temporary_file_outlives_the_next_process(tmp_path: Path) -> None:
    assert dies(tmp_path / "run", ("replace", 3)) == 9
    assert list((tmp_path / "run").glob(".*.tmp"))
    RunFolder(tmp_path / "run", {"a": 1}, {}).close()
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_folder_without_a_config_yet_is_used(tmp_path: Path) -> None:
    """The run was killed while writing its very first file."""
    (tmp_path / "lock").touch()
    (tmp_path / ".config.json.x.tmp").write_text("{")
    RunFolder(tmp_path, {"a": 1}, {}).close()
    assert json.loads((tmp_path / "config.json").read_text())["settings"] == {"a": 1}


def test_a_checkpoint_inside_a_phase_waits_its_turn(keeper: RunFolder) -> None:
    """Unless it is requested at once."""
    partial = Partial(1, 1, saved(1).checkpoint)
    keeper.save_partial(lambda: partial)
    assert keeper.load_partial(1) is None
    keeper.save_partial(lambda: partial, now=True)
    kept = keeper.load_partial(1)
    assert kept is not None and kept.epoch == 1 and keeper.load_partial(2) is None


def test_the_hundredth_phase_is_the_last(tmp_path: Path) -> None:
    """Phases are numbers, not text."""
    for phase in (9, 99, 100):
        (tmp_path / f"phase-{phase:02d}.safetensors").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "phase-100.safetensors"


def test_a_phase_needs_its_memory(keeper: RunFolder) -> None:
    """A damaged or missing one is named."""
    file = keeper.path / "memory-00.mrdc"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"memory-00\.mrdc: damaged \(image"):
        keeper.load()
    file.unlink()
    with pytest.raises(MrdcError, match=r"memory-00\.mrdc"):
        keeper.load()


def test_damaged_checkpoints_are_named(tiny: list[str], unfinished: Path, cli: Cli) -> None:
    file = unfinished / "phase-02.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    err = cli.refused("run", *tiny, "--out", unfinished, "--json")
    assert err.startswith(f"mrdc: {file}: cannot be read as a checkpoint")


# Lines of results


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    """Complete lines are kept, and new ones follow them."""
    path = tmp_path / RESULTS
    assert last_line(path) is None
    path.write_bytes(b'{"event": "a"}\n{"event": "b", "x')
    assert last_line(path) == {"event": "a"}
    with open_events(path) as file:
        file.write(b'{"event": "c"}\n')
    assert path.read_bytes() == b'{"event": "a"}\n{"event": "c"}\n'
    path.write_bytes(b'{"event"')
    assert last_line(path) is None
    open_events(path).close()
    assert path.read_bytes() == b""


def test_a_result_names_every_commit_that_it_comes_from(tmp_path: Path) -> None:
    """Each once, in order; unknown ones and damaged lines are left out."""
    path = tmp_path / RESULTS
    starts = [{"event": "start", "commit": name} for name in ("a1", None, "a1", "b2", "a1")]
    lines = [*starts, {"event": "phase", "commit": "no start"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert commits(path) == "a1, then b2"
    path.write_bytes(b'{"event": "start", "commit": null}\n')
    assert commits(path) is None
    start = b'{"event": "start", "commit": "abc"}\n'
    path.write_bytes(start + b"\0\xff torn\n" + start)
    assert commits(path) == "abc"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once(keeper: RunFolder) -> None:
    """When the line is written, not again when the folder is closed."""
    keeper._events.close()
    keeper._events = Path("/dev/full").open("ab")
    with pytest.raises(OutputError, match=f"{RESULTS}: cannot be written"):
        keeper.event("epoch", {})
    keeper.close()
    RunFolder(keeper.path, {"a": 1}, {}).close()


def test_values_of_results() -> None:
    """Floats have six digits; nested settings have dotted names."""
    found = rounded({"a": 1 / 3, "b": [2e9 / 3, 12345678, None, True]})
    assert found == {"a": 0.333333, "b": [666667000.0, 12345678, None, True]}
    assert flat({"a": 1, "b": {"c": {"d": 2}, "e": [3]}}) == {"a": 1, "b.c.d": 2, "b.e": [3]}


# Refusals

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

    vars(module)["SummaryWriter"] = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("mrdc.experiments.classes.learn_classes", lambda *a, **b: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("run", *tiny, "--out", tmp_path / "run", "--tensorboard", "--json")


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


def test_a_damaged_checkpoint_inside_a_phase_is_not_used(
    keeper: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The phase starts again, which changes no number."""
    (keeper.path / PARTIAL).write_bytes(b"damaged")
    assert keeper.load_partial(0) is None
    assert "phase 0 starts again" in capsys.readouterr().err
    write_checkpoint(keeper.path / PARTIAL, Checkpoint(None, {}, {"phase": 0, "epoch": "x"}))
    assert keeper.load_partial(0) is None


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
