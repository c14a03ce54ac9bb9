"""The images of one class as stored."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    def costs(self, entry: IndexCost | None) -> NDArray[np.int64]:
        """Bytes charged for each image, with index entries if they count."""
        return self.sizes if entry is None else self.sizes + entry.all(self.names)

    def body(self, rank: int) -> bytes:
        """Stored bytes of an image."""
        start = int(self.starts[rank])
        return self._bytes(start, start + int(self.sizes[rank] - self.value_sizes[rank]))

    def values(self, rank: int) -> bytes:
        """The values beside an image, as stored."""
        end = int(self.starts[rank] + self.sizes[rank])
        return self._bytes(end - int(self.value_sizes[rank]), end)

    def stored(self, rank: int) -> bytes:
        """Stored bytes of an image, followed by its values."""
        start = int(self.starts[rank])
        return self._bytes(start, start + int(self.sizes[rank]))

    def _bytes(self, start: int, end: int) -> bytes:
        part = self.payload[start:end]
        return part if isinstance(part, bytes) else part.tobytes()

    def stream(self, rank: int) -> bytes:
        """An image as a whole file."""
        table = self.table[rank]
        return self.body(rank) if table < 0 else join(self.tables[table], self.body(rank))

    def digest(self, rank: int) -> bytes:
        """SHA-256 of an image and its values, checked if it is mapped from a file."""
        found, payload = image_digest(self.stream(rank), self.values(rank)), self.payload
        if isinstance(payload, Mapped) and payload.file.digest(self.first + rank) != found:
            raise MemoryFileError(
                f"image {self.sources[rank]}: its bytes do not match its checksum"
            )
        return found

    def encoded(self) -> list[Encoded]:
        """All images with how they were made."""
        images = []
        for rank, name in enumerate(self.sources):
            values, digest = self.values(rank), self.digest(rank)
            images.append(
                Encoded(
                    source=name,
                    body=self.body(rank),
                    tables=self.tables[self.table[rank]] if self.table[rank] >= 0 else b"",
                    kept=bool(self.kept[rank]),
                    digest=hashlib.sha256(self.stream(rank)).digest() if values else digest,
                    encoding=self.encodings[self.encoding[rank]],
                    values=values,
                )
            )
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
    used = [c.tables[place] for c in classes.values() for place in np.unique(c.table) if place >= 0]
    return list(dict.fromkeys(used))


def encodings_in_use(classes: Mapping[int, ClassImages]) -> list[Encoding]:
    """How the images were encoded, each way once."""
    used = [c.encodings[place] for c in classes.values() for place in np.unique(c.encoding)]
    return list(dict.fromkeys(used))


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
