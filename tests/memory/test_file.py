"""The memory file: readable by other programs, and every flipped byte is found."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from mrdc._utils.errors import MemoryFileError, OutputError
from mrdc._utils.files import whole_file
from mrdc.memory.audit import audit
from mrdc.memory.budget import Budget
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg


@pytest.fixture
def path(tmp_path: Path) -> Path:
    memory = ReplayMemory("20kB", "jpeg", 30)
    memory.boxes = {"0/1": np.array([[0, 1, 8, 9, 1]], np.float32)}
    memory.box_classes = ("cat", "dog")
    memory.add({label: [jpeg(10 * label + n, 95, 12, 12) for n in range(4)] for label in range(2)})
    memory.save(tmp_path / "a.mrdc")
    return tmp_path / "a.mrdc"


def test_safetensors_reads_it(path: Path) -> None:
    """The file is an ordinary safetensors file, and the audit's numbers agree with it."""
    with safe_open(path, framework="numpy") as file:
        assert file.get_tensor("labels").tolist() == [0] * 4 + [1] * 4
        assert file.get_tensor("ranks").tolist() == [0, 1, 2, 3] * 2
        offsets = file.get_tensor("offsets")
        assert offsets[-1] == len(file.get_tensor("payload"))
        assert file.metadata()["format"] == "mrdc-memory-2"
    found = audit(path)
    assert (found.problems, found.items) == ([], 8)
    assert found.payload_bytes == ReplayMemory.load(path).nbytes <= found.budget_bytes == 20_000
    assert found.file_bytes == path.stat().st_size


def test_every_flipped_byte_is_found(path: Path) -> None:
    """One bit of each byte in turn: header, index, boxes and images."""
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        assert audit(path).problems, f"byte {position} of {len(data)}"


def test_every_cut_is_found(path: Path) -> None:
    """A file cut anywhere, or with bytes appended, is refused when opened."""
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(MemoryFileError, match=r"a\.mrdc: "):
            MemoryFile(path)
    path.write_bytes(data + b"x")
    with pytest.raises(MemoryFileError):
        MemoryFile(path)


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    """Missing files, folders, other safetensors files and other files."""
    save_file({"weight": np.zeros(3)}, tmp_path / "w.safetensors")
    save_file({"weight": np.zeros(3)}, tmp_path / "older", {"format": "mrdc-memory-1"})
    others = {"x": b"", "y": b"not a memory", "z": bytes(100)}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    for path, message in (
        (tmp_path / "w.safetensors", "not a memory file of mrdc"),
        (tmp_path / "older", "the format mrdc-memory-1; this version of mrdc reads mrdc-memory-2"),
        (tmp_path / "nothing", "no such memory file"),
        (tmp_path, "not a regular file"),
        *((tmp_path / name, f"{name}: not a memory file") for name in others),
    ):
        with pytest.raises(MemoryFileError, match=message):
            MemoryFile(path)


class FullDisk(io.FileIO):
    """Accepts some bytes, then fails as if the disk were full."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(memoryview(data).cast("B")) > 2000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message gives the reason."""
    memory, before = ReplayMemory.load(path), path.read_bytes()
    monkeypatch.setattr(Path, "open", lambda path, mode: FullDisk(path, mode.removesuffix("b")))
    with pytest.raises(OutputError, match=r"a\.mrdc: cannot be written \(No space left"):
        memory.save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("moment", ["opening", "writing"])
def test_an_interrupted_write_leaves_nothing(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C just after the file appears, or while it is written."""

    def interrupted(path: Path, mode: str) -> None:
        path.touch()
        raise KeyboardInterrupt

    if moment == "opening":
        monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "new") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        (Budget(10.0, "originals", 1.0), "images exceed the budget of 10"),
        (Budget(2500.0, "bytes"), "file exceed the budget of 2,500"),
    ],
)
def test_a_file_over_its_budget_is_caught(budget: Budget, problem: str, path: Path) -> None:
    """The audit adds up the bytes itself; `save` would cut the images."""
    memory = ReplayMemory.load(path)
    memory.budget = budget
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_refit", lambda: None)
        memory.save(path)
    assert any(problem in found for found in audit(path).problems)


def test_reading_files_does_not_import_torch() -> None:
    """The commands info, audit and export start fast."""
    modules = ", ".join(f"mrdc.memory.{name}" for name in ("file", "audit", "export", "budget"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
