"""The images of one class, as stored, and their way into the memory file."""

import hashlib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.errors import MemoryFileError, UsageError
from mrdc.codec.jpeg import join
from mrdc.data.scenes import Boxes
from mrdc.memory.file import Mapped, MemoryFile, join_names, split_names
from mrdc.memory.fill import Entry


class Payload(Protocol):
    """Bytes that can be sliced: a tensor, a mapped file or a spool."""

    def __getitem__(self, part: slice, /) -> Any: ...


@dataclass(frozen=True)
class Shelf:
    """The images of one class, in rank order."""

    payload: Payload
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    shared: NDArray[np.bool_]  # stored without `tables`
    kept: NDArray[np.bool_]  # source bytes
    sources: bytes
    tables: bytes
    codec: str
    quality: int | None
    encoder: str
    duplicates: int
    first: int = 0  # place of the first image in the file that the payload is mapped from

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    def costs(self, entry: Entry | None) -> NDArray[np.int64]:
        """Bytes charged for each image, with its index entry where entries count."""
        if entry is None:
            return self.sizes
        entries = [entry(name) for name in split_names(self.sources)]
        return self.sizes + np.array(entries, np.int64)

    def body(self, rank: int) -> bytes:
        """Stored bytes of an image."""
        start = int(self.starts[rank])
        part = self.payload[start : start + int(self.sizes[rank])]
        return part if isinstance(part, bytes) else np.asarray(part).tobytes()

    def stream(self, rank: int) -> bytes:
        """The whole encoded image, as a file would hold it."""
        return join(self.tables, self.body(rank)) if self.shared[rank] else self.body(rank)

    def cut(self, count: int) -> "Shelf":
        """The first so many images."""
        if count == len(self):
            return self
        payload = self.payload
        if isinstance(payload, Tensor):  # give the memory back
            payload = in_ram(map(self.body, range(count)))
        return replace(
            self,
            payload=payload,
            starts=self.starts[:count].copy(),
            sizes=self.sizes[:count].copy(),
            shared=self.shared[:count].copy(),
            kept=self.kept[:count].copy(),
            sources=join_names(split_names(self.sources)[:count]),
        )

    def digest(self, rank: int) -> bytes:
        """SHA-256 of an image.

        Raises:
            MemoryFileError: it is another than the file says that the image comes from.
        """
        found = hashlib.sha256(self.stream(rank)).digest()
        if isinstance(self.payload, Mapped) and self.payload.digest(self.first + rank) != found:
            name = split_names(self.sources)[rank]
            raise MemoryFileError(f"image {name}: its bytes do not match its checksum")
        return found


def in_ram(bodies: Iterable[bytes]) -> Tensor:
    """Bytes end to end in pages of their own: small blocks of malloc would leave gaps."""
    bodies = list(bodies)
    pages = mmap.mmap(-1, max(1, sum(map(len, bodies))))
    for body in bodies:
        pages.write(body)
    return torch.frombuffer(pages, dtype=torch.uint8)


def in_use(shelves: Mapping[int, Shelf]) -> list[bytes]:
    """The headers that images share, each once."""
    return list(dict.fromkeys(s.tables for s in shelves.values() if s.shared.any()))


def to_arrays(shelves: Mapping[int, Shelf]) -> tuple[dict[str, NDArray[Any]], list[bytes]]:
    """Arrays of the memory file, all but the payload, and the tables they point to."""
    tables = in_use(shelves)
    columns: dict[str, list[Any]] = {"sizes": [], "ranks": [], "tables": [], "kept": []}
    digests: list[bytes] = []
    labels: list[int] = []
    for label, shelf in shelves.items():
        labels += [label] * len(shelf)
        digests += map(shelf.digest, range(len(shelf)))
        columns["sizes"] += shelf.sizes.tolist()
        columns["ranks"] += range(len(shelf))
        columns["tables"] += [tables.index(shelf.tables) if s else -1 for s in shelf.shared]
        columns["kept"] += shelf.kept.tolist()
    sources = b"".join(shelf.sources for shelf in shelves.values())
    arrays = {
        "offsets": np.cumsum([0, *columns["sizes"]], dtype="<i8"),
        "digests": np.frombuffer(b"".join(digests), "u1").reshape(-1, 32),
        "labels": np.array(labels, "<i4"),
        "ranks": np.array(columns["ranks"], "<i4"),
        "tables": np.array(columns["tables"], "<i2"),
        "kept": np.array(columns["kept"], "u1"),
        "sources": np.frombuffer(sources, "u1"),
    }
    return arrays, tables


def box_arrays(sources: list[str], boxes: Mapping[str, Boxes]) -> dict[str, NDArray[Any]]:
    """Arrays of the memory file for the boxes of these images, in order.

    Raises:
        UsageError: boxes of another shape than (n, 5).
    """
    none = np.empty((0, 5), "<f4")
    rows = [np.asarray(boxes.get(source, none), "<f4") for source in sources]
    for source, of_image in zip(sources, rows, strict=True):
        if of_image.ndim != 2 or of_image.shape[1] != 5:
            raise UsageError(f"boxes of {source} must have the shape (n, 5), got {of_image.shape}")
    counts = np.array([len(of_image) for of_image in rows], "<i4")
    return {"box_counts": counts, "boxes": np.concatenate([none, *rows])}


def from_file(file: MemoryFile) -> dict[int, Shelf]:
    """The shelves of a memory file, by label; images stay mapped."""
    arrays, names, payload = file.arrays, file.sources, Mapped(file)
    shelves, begin = {}, 0
    for entry in file.meta["classes"]:
        end = begin + entry["items"]
        part = slice(begin, end)
        tables = arrays["tables"][part]
        shelves[entry["label"]] = Shelf(
            payload=payload,
            starts=np.array(arrays["offsets"][part]),
            sizes=np.diff(np.array(arrays["offsets"][begin : end + 1])),
            shared=np.array(tables >= 0),
            kept=arrays["kept"][part].astype(bool),
            sources=join_names(names[part]),
            tables=file.tables[tables.max()] if tables.max() >= 0 else b"",
            codec=entry.get("codec", file.meta["codec"]),
            quality=entry.get("quality", file.meta["quality"]),
            encoder=entry.get("encoder", file.meta["encoder"]),
            duplicates=entry["duplicates"],
            first=begin,
        )
        begin = end
    return shelves
