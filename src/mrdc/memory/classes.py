"""The images of one class as stored: in RAM, in an unnamed file, or in a memory file."""

import hashlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.files import output_errors
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import join
from mrdc.codec.scaled import restored, stored_scale
from mrdc.memory.encode import Encoded, Encoding, Entry
from mrdc.memory.file import MemoryFile, join_names, split_names
from mrdc.memory.fill import Growing


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

    def __init__(self, path: Path, sha256: str | None = None):
        self.path, self.file = path.absolute(), MemoryFile(path)
        if sha256 not in (None, self.file.sha256):
            raise MemoryFileError(f"{path}: replaced since the memory was pickled")

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        return self.file.arrays["payload"][part]

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped, (self.path, self.file.sha256)


@dataclass(frozen=True)
class ClassImages:
    """The images of one class, in rank order."""

    payload: Tensor | Spool | Mapped
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    shared: NDArray[np.bool_]  # stored without `tables`
    kept: NDArray[np.bool_]  # source bytes
    names: bytes  # ids of the sources
    tables: bytes
    encoding: Encoding
    duplicates: int
    first: int = 0  # index of the first image in the file the payload is mapped from

    @classmethod
    def of(
        cls, grown: Growing, encoding: Encoding, tables: bytes, spool: Spool | None
    ) -> "ClassImages":
        """The images a class was filled with."""
        return cls(
            payload=in_ram(image.body for image in grown.taken) if spool is None else spool,
            starts=np.array(grown.starts, np.int64),
            sizes=np.array(grown.sizes, np.int64),
            shared=np.array([bool(image.tables) for image in grown.taken], bool),
            kept=np.array([image.kept for image in grown.taken], bool),
            names=join_names(image.source for image in grown.taken),
            tables=tables,
            encoding=encoding,
            duplicates=grown.duplicates,
        )

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        """Stored bytes, without shared tables."""
        return int(self.sizes.sum())

    @property
    def sources(self) -> list[str]:
        return split_names(self.names)

    def costs(self, entry: Entry | None) -> NDArray[np.int64]:
        """Bytes charged for each image, with index entries if they count."""
        if entry is None:
            return self.sizes
        return self.sizes + np.array([entry(name) for name in self.sources], np.int64)

    def body(self, rank: int) -> bytes:
        """Stored bytes of an image."""
        start = int(self.starts[rank])
        part = self.payload[start : start + int(self.sizes[rank])]
        return part if isinstance(part, bytes) else np.asarray(part).tobytes()

    def stream(self, rank: int) -> bytes:
        """An image as a whole file."""
        return join(self.tables, self.body(rank)) if self.shared[rank] else self.body(rank)

    def load(self, rank: int) -> bytes | Pixels:
        """An image as training sees it: a whole file, or pixels if it was shrunk."""
        scale = stored_scale(self.encoding.codec, bool(self.kept[rank]))
        return restored(self.stream(rank), scale)

    def digest(self, rank: int) -> bytes:
        """SHA-256 of an image, checked if it is mapped from a file."""
        found, payload = hashlib.sha256(self.stream(rank)).digest(), self.payload
        if isinstance(payload, Mapped) and payload.file.digest(self.first + rank) != found:
            raise MemoryFileError(
                f"image {self.sources[rank]}: its bytes do not match its checksum"
            )
        return found

    def encoded(self) -> list[Encoded]:
        """All images with how they were made."""
        return [
            Encoded(
                source=name,
                body=self.body(rank),
                tables=self.tables if self.shared[rank] else b"",
                kept=bool(self.kept[rank]),
                digest=self.digest(rank),
                encoding=self.encoding,
            )
            for rank, name in enumerate(self.sources)
        ]

    def cut(self, count: int) -> "ClassImages":
        """The first `count` images."""
        if count == len(self):
            return self
        fields = ("starts", "sizes", "shared", "kept")
        parts: dict[str, Any] = {name: getattr(self, name)[:count].copy() for name in fields}
        if isinstance(self.payload, Tensor):  # release the rest
            parts["payload"] = in_ram(map(self.body, range(count)))
        return replace(self, names=join_names(self.sources[:count]), **parts)


def in_use(classes: Mapping[int, ClassImages]) -> list[bytes]:
    """The tables that images share, each once."""
    return list(dict.fromkeys(c.tables for c in classes.values() if c.shared.any()))


def to_arrays(classes: Mapping[int, ClassImages]) -> tuple[dict[str, NDArray[Any]], list[bytes]]:
    """Arrays of the memory file except the payload, and the tables they refer to."""
    tables, parts = in_use(classes), classes.values()
    table_of = [tables.index(c.tables) if shared else -1 for c in parts for shared in c.shared]
    digests = b"".join(c.digest(rank) for c in parts for rank in range(len(c)))
    arrays = {
        "offsets": np.cumsum([0, *(size for c in parts for size in c.sizes)], dtype="<i8"),
        "digests": np.frombuffer(digests, "u1").reshape(-1, 32),
        "labels": np.array([label for label, c in classes.items() for _ in range(len(c))], "<i4"),
        "ranks": np.array([rank for c in parts for rank in range(len(c))], "<i4"),
        "tables": np.array(table_of, "<i2"),
        "kept": np.array([kept for c in parts for kept in c.kept], "u1"),
        "sources": np.frombuffer(b"".join(c.names for c in parts), "u1"),
    }
    return arrays, tables


def from_file(payload: Mapped) -> dict[int, ClassImages]:
    """The classes of a memory file by label; their images stay mapped."""
    file = payload.file
    arrays, names = file.arrays, file.sources
    classes, begin = {}, 0
    for entry in file.meta["classes"]:
        end = begin + entry["items"]
        part = slice(begin, end)
        tables = arrays["tables"][part]
        made = file.meta | entry  # a class made with other settings has its own
        classes[entry["label"]] = ClassImages(
            payload=payload,
            starts=np.array(arrays["offsets"][part]),
            sizes=np.diff(np.array(arrays["offsets"][begin : end + 1])),
            shared=np.array(tables >= 0),
            kept=arrays["kept"][part].astype(bool),
            names=join_names(names[part]),
            tables=file.tables[tables.max()] if tables.max() >= 0 else b"",
            encoding=Encoding(made["codec"], made["quality"], made["encoder"]),
            duplicates=entry["duplicates"],
            first=begin,
        )
        begin = end
    return classes
