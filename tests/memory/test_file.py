"""The memory file: readable elsewhere, and no flipped byte goes unseen."""

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from mrdc._utils.errors import MemoryFileError, OutputError
from mrdc._utils.files import whole_file
from mrdc.memory.audit import audit
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg


@pytest.fixture
def path(tmp_path: Path) -> Path:
    memory = ReplayMemory("20kB", "jpeg", 30)
    memory.add({label: [jpeg(10 * label + n, 95, 12, 12) for n in range(4)] for label in range(2)})
    memory.save(tmp_path / "a.mrdc")
    return tmp_path / "a.mrdc"


def test_safetensors_reads_it(path: Path) -> None:
    """The file is an ordinary safetensors file."""
    with safe_open(path, framework="numpy") as file:
        assert file.get_tensor("labels").tolist() == [0] * 4 + [1] * 4
        assert file.get_tensor("ranks").tolist() == [0, 1, 2, 3] * 2
        offsets = file.get_tensor("offsets")
        assert offsets[-1] == len(file.get_tensor("payload"))
        assert file.metadata()["format"] == "mrdc-memory-1"


def test_a_sound_file_passes(path: Path) -> None:
    """All numbers are recomputed, and agree."""
    found = audit(path)
    assert found.problems == []
    assert found.items == 8
    assert found.payload_bytes == ReplayMemory.load(path).nbytes <= found.budget_bytes == 20_000
    assert found.file_bytes == path.stat().st_size


def test_every_flipped_byte_is_found(path: Path) -> None:
    """Each byte of the file in turn, one bit of it changed."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        assert audit(path).problems, f"byte {position} of {len(data)}"


def test_every_cut_is_found(path: Path) -> None:
    """A file cut anywhere is refused when opened, and so is one with more at the end."""
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(MemoryFileError, match=r"a\.mrdc: "):
            MemoryFile(path)
    path.write_bytes(data + b"x")
    with pytest.raises(MemoryFileError):
        MemoryFile(path)


@pytest.mark.parametrize("content", [b"", b"not a memory", bytes(100)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    """With the file's name."""
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(MemoryFileError, match="x: not a memory file"):
        ReplayMemory.load(tmp_path / "x")


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    """Being safetensors is not enough."""
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(MemoryFileError, match="not a memory file of mrdc"):
        MemoryFile(tmp_path / "w.safetensors")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    """No traceback for a typo."""
    with pytest.raises(MemoryFileError, match="no such memory file"):
        MemoryFile(tmp_path / "nothing")
    with pytest.raises(MemoryFileError, match="not a regular file"):
        MemoryFile(tmp_path)


def test_equal_memories_make_equal_files(path: Path, tmp_path: Path) -> None:
    """No time stamps, no dictionary order."""
    first = path.read_bytes()
    ReplayMemory.load(path).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == first


class FullDisk(io.FileIO):
    """Accepts some bytes, then says the disk is full."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(memoryview(data).cast("B")) > 2000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what is wrong and what to do."""
    memory, before = ReplayMemory.load(path), path.read_bytes()
    monkeypatch.setattr(Path, "open", lambda path, mode: FullDisk(path, mode.removesuffix("b")))
    with pytest.raises(OutputError, match=r"a\.mrdc: cannot be written \(No space left"):
        memory.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_interruption_as_the_file_appears_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C when the file is there but nobody has been told so."""

    def interrupted(path: Path, mode: str) -> None:
        path.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "new"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while writing."""
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "new") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_lies_about_its_budget_is_caught(path: Path) -> None:
    """The audit adds the bytes up itself."""
    memory = ReplayMemory.load(path)
    memory.budget = type(memory.budget)(10.0, "bytes")
    memory.save(path)
    assert any("images exceed the budget of 10" in problem for problem in audit(path).problems)
    memory.budget, memory.whole_file = type(memory.budget)(2500.0, "bytes"), True
    memory.save(path)
    assert any("file exceed the budget of 2,500" in problem for problem in audit(path).problems)
