"""Where stored bytes live: in RAM, in an unnamed file, or in a memory file."""

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.files import output_errors
from mrdc.memory.file import MemoryFile


class Payload(Protocol):
    """Bytes that can be sliced: a tensor, a `Spool` or a `Mapped` file."""

    def __getitem__(self, part: slice, /) -> Any: ...


def in_ram(bodies: Iterable[bytes]) -> Tensor:
    """Concatenate bytes in pages of their own, which leave no gaps in the heap when freed."""
    bodies = list(bodies)
    pages = mmap.mmap(-1, max(1, sum(map(len, bodies))))
    for body in bodies:
        pages.write(body)
    return torch.frombuffer(pages, dtype=torch.uint8)


class Spool:
    """An unnamed temporary file, which disappears with the process."""

    def __init__(self, folder: Path):
        self.folder = folder
        with output_errors(folder):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        weakref.finalize(self, self._file.close)
        self._end = 0

    def append(self, body: bytes) -> int:
        """Store some bytes and return their position."""
        rest = memoryview(body)
        with output_errors(self.folder):
            while rest:
                rest = rest[self._file.write(rest) :]
        self._end += len(body)
        return self._end - len(body)

    def __getitem__(self, part: slice) -> bytes:
        return os.pread(self._file.fileno(), part.stop - part.start, part.start)

    def __reduce__(self) -> str:
        raise TypeError("a spooled memory cannot be pickled: save it and load the file")


class Mapped:
    """The payload of a memory file, read in place; pickles as the path of the file."""

    def __init__(self, file: MemoryFile):
        self._file = file
        self._path = file.path.absolute()

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        return self._file.arrays["payload"][part]

    def digest(self, index: int) -> bytes:
        """SHA-256 stored for an image."""
        return self._file.digest(index)

    def is_at(self, path: Path) -> bool:
        """Tell whether this payload's path leads to the file at `path`."""
        return self._path.exists() and self._path.samefile(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._path, self._file.sha256)


def _reopen(path: Path, sha256: str) -> Mapped:
    file = MemoryFile(path)
    if file.sha256 != sha256:
        raise MemoryFileError(f"{path}: replaced since the memory was pickled")
    return Mapped(file)
