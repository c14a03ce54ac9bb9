"""Find and read memory files: the one place that does."""

import mmap
import os
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mrdc._utils import stores
from mrdc._utils.errors import MemoryFileError
from mrdc._utils.store_path import StorePath
from mrdc.memory.remote import RemoteFile


class Bytes(Protocol):
    """The bytes of a file, read by range."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.uint8]: ...


def open_bytes(path: Path) -> Bytes:
    """Map a file, or read an object as it is needed; ranges are views, which keep it mapped.

    Raises:
        MemoryFileError: it is missing, cannot be read, or is not a regular file.
    """
    if isinstance(path, StorePath):
        return RemoteFile(path)
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # opening a pipe would wait forever
            raise MemoryFileError(f"{path}: not a regular file, so not a memory file")
        if not about.st_size:
            raise MemoryFileError(f"{path}: not a memory file: it is empty")
        with open(path, "rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise MemoryFileError(f"{path}: no such memory file") from None
    except OSError as error:
        raise MemoryFileError(f"{path}: cannot be read ({error.strerror})") from None
    return np.frombuffer(whole, np.uint8)


def sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of the files in a folder, by name."""
    if isinstance(folder, StorePath):
        return {name: size for name, size in stores.listing(str(folder)).items() if "/" not in name}
    with os.scandir(folder) as found:
        return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}


def identity(path: Path) -> tuple[int, ...] | None:
    """Numbers that change when a file is replaced or written to; None if there is no file."""
    if isinstance(path, StorePath):
        found = stores.find(str(path))
        return None if found is None else (found.size, hash(found.stamp))
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
