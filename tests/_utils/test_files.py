"""Writing on file systems that refuse some calls."""

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mrdc._utils.errors import OutputError, UsageError
from mrdc._utils.files import Opened, sweep, try_lock, whole_file
from mrdc.experiments.folder import lock


def refusing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int) -> None:
    """Make a call fail; fsync fails only for folders."""
    original = getattr(module, name)

    def call(file: Any, *more: Any) -> Any:
        descriptor = file if isinstance(file, int) else file.fileno()
        if name != "fsync" or Path(f"/proc/self/fd/{descriptor}").resolve().is_dir():
            raise OSError(number, os.strerror(number))
        return original(file, *more)

    monkeypatch.setattr(module, name, call)


def test_a_folder_that_cannot_be_synced_still_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems refuse to sync folders; only a real disk error is reported."""
    for number in (errno.EINVAL, errno.EACCES):
        refusing(monkeypatch, os, "fsync", number)
        with whole_file(tmp_path / "a") as file:
            file.write(b"x")
        assert (tmp_path / "a").read_bytes() == b"x"
    monkeypatch.undo()
    refusing(monkeypatch, os, "fsync", errno.EIO)
    message = "written, but the folder could not be synced"
    with pytest.raises(OutputError, match=message), whole_file(tmp_path / "b") as file:
        file.write(b"y")
    assert (tmp_path / "b").read_bytes() == b"y"


def test_a_lock_that_another_holds_is_refused(tmp_path: Path) -> None:
    with lock(tmp_path / "lock", "busy"), pytest.raises(UsageError, match="busy"):
        lock(tmp_path / "lock", "busy")


def test_a_file_system_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing(monkeypatch, fcntl, "flock", errno.ENOLCK)
    lock(tmp_path / "lock", "busy").close()
    assert "cannot be locked here: run one process at a time" in capsys.readouterr().err


@pytest.mark.parametrize("make", [Path.touch, lambda path: (path / "inside").mkdir(parents=True)])
def test_what_killed_processes_left_is_swept(make: Callable[[Path], None], tmp_path: Path) -> None:
    """What is being written, what is new and what has another name is kept."""
    left, held, new = (tmp_path / f".a[.mrdc.0000000{n}.tmp" for n in range(3))
    kept = [held, new, tmp_path / ".b.mrdc.00000003.tmp", tmp_path / ".a[.mrdc.backup.tmp"]
    for path in (left, *kept):
        make(path)
        os.utime(path, None if path == new else (0, 0))
    with closing(Opened(held)) as opened:
        assert try_lock(opened)
        sweep(tmp_path / "a[.mrdc")
    assert sorted(tmp_path.iterdir()) == sorted(kept)
