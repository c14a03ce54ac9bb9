"""Encoded images that are not in a memory file: in RAM, or in an unnamed file."""

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.files import output_errors


class Ram:
    """Bytes in pages of their own, which leave no gaps in the heap when freed.

    Worker processes share them: forked ones the pages, others a tensor, if torch is in use.
    """

    def __init__(self, data: Any, used: int | None = None):
        self._data = data  # an array, or a tensor once other processes share it
        self._used = len(data) if used is None else used  # the rest is room to append

    @classmethod
    def of(cls, bodies: Iterable[bytes | memoryview], room: int = 0) -> "Ram":
        """Bytes end to end, and room to append more."""
        bodies = list(bodies)
        used = sum(map(len, bodies))
        pages = mmap.mmap(-1, max(1, used + room))
        for body in bodies:
            pages.write(body)
        return cls(np.frombuffer(pages, np.uint8), used)

    def __len__(self) -> int:
        return self._used

    def extended(self, bodies: Sequence[bytes]) -> tuple["Ram", list[int]]:
        """With more bytes, in place if there is room for them; and where each of them begins."""
        begin, more = self._used, sum(map(len, bodies))
        starts = list(accumulate(map(len, bodies), initial=begin))[:-1]
        if not isinstance(self._data, np.ndarray) or begin + more > len(self._data):
            return Ram.of([np.asarray(self._data[:begin]).data, *bodies], begin + more), starts
        self._data[begin : begin + more] = np.frombuffer(b"".join(bodies), np.uint8)
        self._used += more
        return self, starts

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        return np.asarray(self._data[part])

    def __reduce__(self) -> tuple[Any, ...]:
        torch = sys.modules.get("torch")
        if torch is not None:
            self._data = torch.as_tensor(self._data[: self._used])
        return Ram, (self._data[: self._used],)


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

    def extended(self, bodies: Sequence[bytes]) -> tuple["Spool", list[int]]:
        """With more bytes, and where each of them begins."""
        return self, [self.append(body) for body in bodies]

    def __getitem__(self, part: slice) -> bytes:
        return os.pread(self._file.fileno(), part.stop - part.start, part.start)

    def __reduce__(self) -> str:
        raise TypeError("a spooled memory cannot be pickled: save it and load the file")


Payload = Ram | Spool
