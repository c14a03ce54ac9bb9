"""Write files completely or not at all, and find the cache folder."""

import errno
import glob
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO
from weakref import WeakSet

from mrdc._utils import stores
from mrdc._utils.errors import OutputError
from mrdc._utils.store_path import StorePath

LONGEST_NAME = 240  # bytes; file systems allow 255, and `beside` adds 14
SETTLED = 60.0  # seconds after which a writer is sure to have locked its file


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that gets its name only when it is complete and synced.

    A file for a URL is written to a temporary folder, then put.

    Raises:
        OutputError: it cannot be written; an existing file is untouched.
    """
    if isinstance(path, StorePath):
        send = partial(stores.put, url=str(path))
        with stores.staged(str(path), send) as local, whole_file(local) as file:
            yield file
        return
    with output_errors(path):
        temporary = beside(path)
        try:
            with temporary.open("xb") as file:
                try_lock(file)  # until it is complete, so that `sweep` knows it is being written
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def beside(path: Path) -> Path:
    """A hidden name for a file that is not complete yet.

    It is known before the file exists, so that an interruption at any moment leaves nothing behind.
    """
    return path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"


def check_folder(path: Path) -> None:
    """Refuse, before any work, a path in a folder or a bucket that does not exist."""
    if isinstance(path, StorePath):
        stores.check_bucket(str(path))
    elif not path.absolute().parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")


def scratch_folder(path: Path) -> Path:
    """Where large temporary files for an output go: next to it, if it is local."""
    return Path(tempfile.gettempdir()) if isinstance(path, StorePath) else path.parent


def check_name(path: Path) -> None:
    """Refuse a name too long to make a temporary file's name from."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise OutputError(f"{str(path)[:60]}...: the name is longer than {LONGEST_NAME} bytes")


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an error that names the file."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space or choose another path; " if full else ""
        raise OutputError(
            f"{path}: cannot be written ({error.strerror}): {hint}nothing was kept"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a new name durable, if the file system can sync folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.EIO:
            raise OutputError(
                f"{folder}: written, but the folder could not be synced ({error.strerror}): check "
                "the disk"
            ) from error


class Opened:
    """A file or folder, opened to be locked."""

    def __init__(self, path: Path):
        self._number, self.closed = os.open(path, os.O_RDONLY), False

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._number)


def try_lock(file: IO[bytes] | Opened, wait: bool = False) -> bool | None:
    """Lock a file or folder until it is closed.

    Returns True; False if another process holds it; None if locks are not supported.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (OSError, ImportError):  # the file system, or the operating system, has no locks
        return None
    _locked.add(file)
    return True


_locked: WeakSet[IO[bytes] | Opened] = WeakSet()


def _leave_locks() -> None:
    """Close locked files in a forked process, which would otherwise keep the locks."""
    for file in _locked:
        if not file.closed:
            os.close(file.fileno())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def sweep(path: Path) -> None:
    """Remove unfinished files and folders for a path that killed processes have left.

    Only with a name from `beside`, and only if no process holds the lock; stores have none.
    """
    if isinstance(path, StorePath):
        return
    with suppress(OSError):
        for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
            with suppress(OSError), closing(Opened(left)) as opened:
                settled = time.time() - left.stat().st_mtime > SETTLED
                if not settled or not try_lock(opened):
                    continue
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()


def cache_folder() -> Path:
    """$MRDC_CACHE, or the user's cache folder.

    Raises:
        RuntimeError: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MRDC_CACHE") or Path(base) / "mrdc")
