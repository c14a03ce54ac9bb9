"""A memory file in an object store, read in blocks that are kept in an unnamed temporary file.

Forked processes share the blocks; others read their own. The object is checked after each block,
so that a file that was replaced meanwhile is noticed.
"""

import mmap
import os
import tempfile
import weakref
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
    """The bytes of an object, as an array that is read when it is sliced.

    Raises:
        MemoryFileError: there is no such object, or it was replaced since it was opened.
    """

    def __init__(self, path: StorePath):
        self._blocks = Blocks(path)

    def __len__(self) -> int:
        return self._blocks.size

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(len(self))
        return np.frombuffer(self._blocks.read(start, max(start, stop)), np.uint8)


class Blocks:
    """Blocks of an object, each read once."""

    def __init__(self, path: StorePath):
        self.url, self.folder = str(path), scratch_folder(path)
        found = stores.find(self.url)
        if found is None:
            raise MemoryFileError(f"{path}: no such memory file")
        self.size, self.stamp = found
        self._there = mmap.mmap(-1, self.size // BLOCK + 1)  # 1 for each block that was read
        with output_errors(self.folder):
            self._kept = tempfile.TemporaryFile(dir=self.folder, buffering=0)
        weakref.finalize(self, self._kept.close)
        self._owner, self._locks = 0, list[Lock]()

    def read(self, start: int, stop: int) -> bytes:
        """Some bytes, from the store if they are not there yet."""
        if self._owner != os.getpid():  # a lock may have been held when this process was forked
            self._locks = [Lock() for _ in range(LOCKS)]
            self._owner = os.getpid()
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            with self._locks[block % LOCKS]:
                if not self._there[block]:
                    self._fetch(block)
        return os.pread(self._kept.fileno(), stop - start, start)

    def _fetch(self, block: int) -> None:
        start = block * BLOCK
        data = memoryview(stores.read(self.url, start, min(start + BLOCK, self.size)))
        found = stores.find(self.url)
        if found is None or found.stamp != self.stamp:
            raise MemoryFileError(f"{self.url}: replaced since it was opened; open it again")
        with output_errors(self.folder):
            while data:
                written = os.pwrite(self._kept.fileno(), data, start)
                data, start = data[written:], start + written
        self._there[block] = 1
