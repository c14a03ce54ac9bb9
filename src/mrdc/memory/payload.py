"""Encoded images that are not in a memory file: in RAM, or in an unnamed file."""

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.files import output_errors


class Ram:
    """Bytes in pages of their own, which leave no gaps in the heap when freed.

    Worker processes share them: forked ones the pages, others a tensor, if torch is in use.
    """

    def __init__(self, data: Any):
        self._data = data  # an array, or a tensor once other processes share it

    @classmethod
    def of(cls, bodies: Iterable[bytes]) -> "Ram":
        """Bytes end to end."""
        bodies = list(bodies)
        pages = mmap.mmap(-1, max(1, sum(map(len, bodies))))
        for body in bodies:
            pages.write(body)
        return cls(np.frombuffer(pages, np.uint8))

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        return np.asarray(self._data[part])

    def __reduce__(self) -> tuple[Any, ...]:
        torch = sys.modules.get("torch")
        if torch is not None:
            self._data = torch.as_tensor(self._data)
        return Ram, (self._data,)


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


Payload = Ram | Spool
