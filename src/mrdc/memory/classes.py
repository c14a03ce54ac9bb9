"""The images of one class as stored."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import MemoryFileError
from mrdc.codec.jpeg import join
from mrdc.memory.encode import Encoded, Encoding
from mrdc.memory.file import IndexCost, image_digest, join_names, split_names
from mrdc.memory.payload import Mapped, Payload, Ram, Spool

PER_IMAGE = ("starts", "sizes", "value_sizes", "kept", "table", "encoding")  # arrays of a class


@dataclass(frozen=True)
class ClassImages:
    """The images of one class, in rank order."""

    payload: Payload
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]  # values included
    value_sizes: NDArray[np.int32]
    kept: NDArray[np.bool_]  # source bytes
    table: NDArray[np.int16]  # position in `tables`; -1 for a whole file
    encoding: NDArray[np.int16]  # position in `encodings`
    names: bytes  # ids of the sources
    tables: tuple[bytes, ...]
    encodings: tuple[Encoding, ...]
    seen: int  # images offered so far
    duplicates: int  # exact duplicates among these
    first: int = 0  # index of the first image in the file the payload is mapped from

    @classmethod
    def of(
        cls,
        images: Sequence[Encoded],
        starts: Sequence[int],
        sizes: Sequence[int],
        spool: Spool | None,
        **counts: int,
    ) -> "ClassImages":
        """Images as they were taken; `counts` are `seen` and `duplicates`."""
        tables = tuple(dict.fromkeys(image.tables for image in images if image.tables))
        encodings = tuple(dict.fromkeys(image.encoding for image in images))
        places = {encoding: place for place, encoding in enumerate(encodings)}
        return cls(
            payload=Ram.of(i.body + i.values for i in images) if spool is None else spool,
            starts=np.array(starts, np.int64),
            sizes=np.array(sizes, np.int64),
            value_sizes=np.array([len(image.values) for image in images], np.int32),
            kept=np.array([image.kept for image in images], bool),
            table=np.array([_place(image.tables, tables) for image in images], np.int16),
            encoding=np.array([places[image.encoding] for image in images], np.int16),
            names=join_names(image.source for image in images),
            tables=tables,
            encodings=encodings,
            **counts,
        )

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        """Stored bytes of images and values, without shared tables."""
        return int(self.sizes.sum())

    @property
    def sources(self) -> list[str]:
        return split_names(self.names)

    @cached_property
    def used_tables(self) -> list[bytes]:
        """The tables that images share."""
        return [self.tables[place] for place in np.unique(self.table) if place >= 0]

    @cached_property
    def used_encodings(self) -> list[Encoding]:
        """How the images were encoded."""
        return [self.encodings[place] for place in np.unique(self.encoding)]

    def costs(self, entry: IndexCost | None) -> NDArray[np.int64]:
        """Bytes charged for each image, with index entries if they count."""
        return self.sizes if entry is None else self.sizes + entry.all(self.names)

    def stored(self, rank: int) -> bytes:
        """Stored bytes of an image, followed by its values."""
        start = int(self.starts[rank])
        part = self.payload[start : start + int(self.sizes[rank])]
        return part if isinstance(part, bytes) else part.tobytes()

    def _parts(self, rank: int) -> tuple[bytes, bytes, bytes]:
        """Tables, stored body and values of an image."""
        stored, table = self.stored(rank), self.table[rank]
        end = len(stored) - int(self.value_sizes[rank])
        return self.tables[table] if table >= 0 else b"", stored[:end], stored[end:]

    def values(self, rank: int) -> bytes:
        """The values beside an image, as stored."""
        return self._parts(rank)[2]

    def stream(self, rank: int) -> bytes:
        """An image as a whole file."""
        tables, body, _ = self._parts(rank)
        return join(tables, body) if tables else body

    def digest(self, rank: int) -> bytes:
        """SHA-256 of an image and its values, checked if it is mapped from a file."""
        tables, body, values = self._parts(rank)
        found = image_digest(join(tables, body) if tables else body, values)
        if (
            isinstance(self.payload, Mapped)
            and self.payload.file.digest(self.first + rank) != found
        ):
            raise MemoryFileError(
                f"image {self.sources[rank]}: its bytes do not match its checksum"
            )
        return found

    def encoded(self) -> list[Encoded]:
        """All images with how they were made."""
        images = []
        for rank, name in enumerate(self.sources):
            tables, body, values = self._parts(rank)
            digest = self.digest(rank)
            if values:
                digest = hashlib.sha256(self.stream(rank)).digest()
            kept, encoding = bool(self.kept[rank]), self.encodings[self.encoding[rank]]
            images.append(Encoded(name, body, tables, kept, digest, encoding, values))
        return images

    def cut(self, count: int) -> "ClassImages":
        """The first `count` images."""
        return self if count == len(self) else self.take(range(count))

    def take(self, ranks: Sequence[int]) -> "ClassImages":
        """The images with these ranks, in this order."""
        chosen = np.array(ranks, np.intp)
        parts: dict[str, Any] = {name: getattr(self, name)[chosen] for name in PER_IMAGE}
        sources = self.sources
        prefix = np.array_equal(chosen, np.arange(len(chosen)))
        if isinstance(self.payload, Ram) or (isinstance(self.payload, Mapped) and not prefix):
            for rank in ranks if isinstance(self.payload, Mapped) else ():
                self.digest(rank)  # damaged bytes must not get a new checksum
            parts["payload"] = Ram.of(map(self.stored, ranks))
            parts["starts"] = np.cumsum([0, *parts["sizes"][:-1]], dtype=np.int64)
        return replace(self, names=join_names(sources[rank] for rank in ranks), **parts)


def _place(tables: bytes, known: Sequence[bytes]) -> int:
    return known.index(tables) if tables else -1


def tables_in_use(classes: Mapping[int, ClassImages]) -> list[bytes]:
    """The tables that images share, each once."""
    return list(dict.fromkeys(table for c in classes.values() for table in c.used_tables))


def encodings_in_use(classes: Mapping[int, ClassImages]) -> list[Encoding]:
    """How the images were encoded, each way once."""
    return list(dict.fromkeys(made for c in classes.values() for made in c.used_encodings))


def to_arrays(classes: Mapping[int, ClassImages]) -> dict[str, NDArray[Any]]:
    """Arrays of the memory file except payload and boxes."""
    tables, encodings = tables_in_use(classes), encodings_in_use(classes)
    parts = classes.values()
    digests = b"".join(c.digest(rank) for c in parts for rank in range(len(c)))
    table_of = [tables.index(c.tables[t]) if t >= 0 else -1 for c in parts for t in c.table]
    arrays = {
        "offsets": np.cumsum([0, *(size for c in parts for size in c.sizes)], dtype="<i8"),
        "digests": np.frombuffer(digests, "u1").reshape(-1, 32),
        "labels": np.array([label for label, c in classes.items() for _ in range(len(c))], "<i4"),
        "ranks": np.array([rank for c in parts for rank in range(len(c))], "<i4"),
        "tables": np.array(table_of, "<i2"),
        "encodings": np.array(
            [encodings.index(c.encodings[e]) for c in parts for e in c.encoding], "<i2"
        ),
        "kept": np.array([kept for c in parts for kept in c.kept], "u1"),
        "sources": np.frombuffer(b"".join(c.names for c in parts), "u1"),
    }
    if has_values(classes):
        arrays["value_sizes"] = np.array([size for c in parts for size in c.value_sizes], "<i4")
    return arrays


def has_values(classes: Mapping[int, ClassImages]) -> bool:
    """True if there are values beside any image."""
    return any(images.value_sizes.any() for images in classes.values())


def from_file(payload: Mapped) -> dict[int, ClassImages]:
    """The classes of a memory file by label; their images stay mapped."""
    file = payload.file
    arrays, names = file.arrays, file.sources
    encodings = tuple(Encoding(**entry) for entry in file.meta["encodings"])
    values = arrays.get("value_sizes", np.zeros(len(file), "<i4"))
    classes, begin = {}, 0
    for entry in file.meta["classes"]:
        end = begin + entry["items"]
        part = slice(begin, end)
        classes[entry["label"]] = ClassImages(
            payload=payload,
            starts=np.array(arrays["offsets"][part]),
            sizes=np.diff(np.array(arrays["offsets"][begin : end + 1])),
            value_sizes=np.array(values[part]),
            kept=arrays["kept"][part].astype(bool),
            table=np.array(arrays["tables"][part]),
            encoding=np.array(arrays["encodings"][part]),
            names=join_names(names[part]),
            tables=tuple(file.tables),
            encodings=encodings,
            seen=entry["seen"],
            duplicates=entry["duplicates"],
            first=begin,
        )
        begin = end
    return classes
