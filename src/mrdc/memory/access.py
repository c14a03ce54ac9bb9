"""Find and read memory files: the one place that does."""

import mmap
import os
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import MemoryFileError


class Bytes(Protocol):
    """The bytes of a file, read by range."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.uint8]: ...


def open_bytes(path: Path) -> Bytes:
    """Map a file; ranges are views, which keep it mapped.

    Raises:
        MemoryFileError: it is missing, cannot be read, or is not a regular file.
    """
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # opening a pipe would wait for ever
            raise MemoryFileError(f"{path}: not a regular file, so not a memory file")
        if not about.st_size:
            raise MemoryFileError(f"{path}: not a memory file, but empty")
        with open(path, "rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise MemoryFileError(f"{path}: no such memory file") from None
    except OSError as error:
        raise MemoryFileError(f"{path}: cannot be read ({error.strerror})") from None
    return np.frombuffer(whole, np.uint8)


def sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of the files in a folder, by name."""
    with os.scandir(folder) as found:
        return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}


def identity(path: Path) -> tuple[int, ...] | None:
    """Numbers that change when a file is replaced or written to; None if there is no file."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
