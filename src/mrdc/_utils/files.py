"""Write files completely or not at all, and find the cache folder."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mrdc._utils.errors import OutputError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that gets its name only when it is complete and synced.

    Raises:
        OutputError: it cannot be written; an existing file is untouched.
    """
    with output_errors(path):
        temporary = beside(path)
        try:
            with temporary.open("xb") as file:
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
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """$MRDC_CACHE, or the user's cache folder.

    Raises:
        RuntimeError: the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MRDC_CACHE") or Path(base) / "mrdc")
