"""Cache of features, by the content of the image."""

import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.files import cache_folder

CACHE_BYTES = 4 * 2**30  # the oldest features are dropped beyond this


class FeatureCache:
    """Features by SHA-256 of the encoded image, in one file per embedder."""

    def __init__(self, folder: Path, key: str):
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._broken = False
        self._db = sqlite3.connect(
            folder / f"{key}.sqlite", timeout=60, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")  # a cache may be lost in a power cut
        self._db.execute("CREATE TABLE IF NOT EXISTS features (digest BLOB PRIMARY KEY, row BLOB)")

    def get(self, digest: bytes) -> Tensor | None:
        """Features of an image; None if it is not cached."""
        found = self._ask("SELECT row FROM features WHERE digest = ?", digest)
        if found is None or not found[0] or len(found[0]) % 4:
            return None
        return torch.frombuffer(bytearray(found[0]), dtype=torch.float32)

    def put(self, digest: bytes, row: Tensor) -> None:
        """Store the features of an image."""
        self._ask("INSERT OR REPLACE INTO features VALUES (?, ?)", digest, row.numpy().tobytes())

    def known(self) -> NDArray[np.uint64]:
        """The first eight bytes of the digests of all images in it, sorted."""
        text = "SELECT group_concat(hex(substr(digest, 1, 8)), '') FROM features"
        found = self._ask(text)
        return np.sort(np.frombuffer(bytes.fromhex((found and found[0]) or ""), np.uint64))

    def trim(self) -> None:
        """Drop the oldest features over the size limit."""
        last = self._ask("SELECT max(rowid), length(row) FROM features")
        if last is not None and last[1]:
            self._ask("DELETE FROM features WHERE rowid <= ?", last[0] - CACHE_BYTES // last[1])

    def close(self) -> None:
        self._db.close()

    def _ask(self, question: str, *values: Any) -> Any:
        """First row of the result; after an error the cache is off."""
        with self._lock:
            if self._broken:
                return None
            try:
                return self._db.execute(question, values).fetchone()
            except sqlite3.Error as error:
                self._broken = True
                print(f"mrdc: feature cache turned off ({error})", file=sys.stderr)
                return None


def open_cache(key: str | None) -> FeatureCache | None:
    """The cache of an embedder: in $MRDC_CACHE, or the user's cache folder.

    None without a key, or if the cache cannot be used, which is reported on standard error: a
    cache is a convenience, never a reason to stop.
    """
    if key is None:
        return None
    try:
        return FeatureCache(cache_folder(), key)
    except (OSError, RuntimeError, sqlite3.Error) as error:  # RuntimeError: no home folder
        print(f"mrdc: features are not cached ({error})", file=sys.stderr)
        return None
