"""A memory file in an object store, read in blocks that are kept in an unnamed temporary file.

Forked processes share the blocks; others read their own. A file that is replaced while it is read
is noticed, because every block is followed by a look at the object's stamp.
"""

import mmap
import os
import tempfile
from copy import copy
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from mrdc._utils import stores
from mrdc._utils.errors import MemoryFileError
from mrdc._utils.files import output_errors, scratch_folder
from mrdc._utils.store_path import StorePath

BLOCK = 1 << 21  # bytes
LOCKS = 16


class RemoteFile:
    """The bytes of an object, as an array that is read when it is sliced."""

    def __init__(self, path: StorePath):
        self.url, self._first = str(path), 0
        found = stores.find(self.url)
        if found is None:
            raise MemoryFileError(f"{path}: no such memory file")
        self.size, self._stamp = found
        self._blocks = mmap.mmap(-1, self.size // BLOCK + 1)  # 1 for each that is there
        self._folder = scratch_folder(path)
        with output_errors(self._folder):
            self._kept = tempfile.TemporaryFile(dir=self._folder, buffering=0)
        self._owner, self._locks = os.getpid(), [Lock() for _ in range(LOCKS)]

    def __len__(self) -> int:
        return self.size - self._first

    @property
    def nbytes(self) -> int:
        return len(self)

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(len(self))
        data = self._read(self._first + start, self._first + max(start, stop))
        return np.frombuffer(data, np.uint8)

    def after(self, place: int) -> "RemoteFile":
        """The bytes from a place on; blocks are shared."""
        rest = copy(self)
        rest._first += place
        return rest

    def _read(self, start: int, stop: int) -> bytes:
        """Some bytes, from the store or kept."""
        if self._owner != os.getpid():  # a lock may have been held when this process was forked
            self._owner, self._locks = os.getpid(), [Lock() for _ in range(LOCKS)]
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            with self._locks[block % LOCKS]:
                if not self._blocks[block]:
                    self._fetch(block)
        return os.pread(self._kept.fileno(), stop - start, start)

    def _fetch(self, block: int) -> None:
        start = block * BLOCK
        data = memoryview(stores.read(self.url, start, min(start + BLOCK, self.size)))
        found = stores.find(self.url)
        if found is None or found.stamp != self._stamp:
            raise MemoryFileError(f"{self.url}: replaced since it was opened; open it again")
        with output_errors(self._folder):
            while data:
                written = os.pwrite(self._kept.fileno(), data, start)
                data, start = data[written:], start + written
        self._blocks[block] = 1
