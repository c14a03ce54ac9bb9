"""Run folders: phases are kept whole at every moment, and lines of results."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrdc._utils.errors import CheckpointError, MrdcError, OutputError
from mrdc.experiments.folder import (
    PARTIAL,
    RESULTS,
    RunFolder,
    commits,
    last_line,
    open_events,
    rounded,
)
from mrdc.experiments.settings import flat
from mrdc.nn.checkpoint import Checkpoint, last_checkpoint, write_checkpoint
from mrdc.training.resume import Partial
from tests.processes import FORK, MOMENTS, Cli, Moment, check_whole, mortal, saved


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


def test_a_damaged_checkpoint_inside_a_phase_is_not_used(
    keeper: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The phase starts again, which changes no number."""
    (keeper.path / PARTIAL).write_bytes(b"damaged")
    assert keeper.load_partial(0) is None
    assert "phase 0 starts again" in capsys.readouterr().err
    write_checkpoint(keeper.path / PARTIAL, Checkpoint(None, {}, {"phase": 0, "epoch": "x"}))
    assert keeper.load_partial(0) is None


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
