"""The images of one class as stored."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc.codec.image import Pixels
from mrdc.memory.encode import Encoded, Encoding, Stored
from mrdc.memory.names import DIGEST, IndexCost, Names
from mrdc.memory.segments import Held, Saved, Segment
from mrdc.memory.stored import StoredMemory


@dataclass(frozen=True)
class ClassImages:
    """The images of one class, in rank order."""

    segments: Sequence[Segment]
    seen: int  # images offered so far
    duplicates: int  # exact duplicates among these

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.segments)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, rank: int) -> tuple[Segment, int]:
        """Where an image is: a segment, and its row there."""
        number = bisect_right(self._ends, rank)
        return self.segments[number], rank - (self._ends[number - 1] if number else 0)

    def rows(self) -> Iterator[tuple[Segment, int]]:
        """Where each image is."""
        return ((segment, row) for segment in self.segments for row in range(len(segment)))

    # All images

    @property
    def nbytes(self) -> int:
        """Stored bytes of images and values, without shared tables."""
        return sum(int(segment.sizes.sum()) for segment in self.segments)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Stored bytes of each image, values included."""
        return _joined(segment.sizes for segment in self.segments)

    @property
    def sources(self) -> list[str]:
        return [name for segment in self.segments for name in segment.names]

    @property
    def names(self) -> Names:
        """The sources as one array."""
        return sum((segment.names for segment in self.segments), start=Names.of(()))

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Whether each image is stored as its source bytes."""
        return np.concatenate([segment.column("kept") for segment in self.segments]).astype(bool)

    @property
    def has_values(self) -> bool:
        """True if there are values beside any image."""
        return any(segment.column("value_sizes").any() for segment in self.segments)

    @cached_property
    def used_tables(self) -> list[bytes]:
        """The tables that images share."""
        return _used(self.segments, "tables", lambda segment: segment.table_list)

    @cached_property
    def used_encodings(self) -> list[Encoding]:
        """How the images were encoded."""
        return _used(self.segments, "encodings", lambda segment: segment.encoding_list)

    def costs(self, entry: IndexCost | None) -> NDArray[np.int64]:
        """Bytes charged for each image, with index entries if they count."""
        if entry is None:
            return self.sizes
        return _joined(segment.sizes + entry.all(segment.names) for segment in self.segments)

    def encoded(self) -> list[Encoded]:
        """All images, and how they were made."""
        names = self.sources
        return [s.encoded(row, name) for (s, row), name in zip(self.rows(), names, strict=True)]

    def items(self) -> list[Stored]:
        """All images for another memory, not read yet."""
        names = self.sources
        return [s.item(row, name) for (s, row), name in zip(self.rows(), names, strict=True)]

    # Single images

    def name(self, rank: int) -> str:
        """Id of the source of an image."""
        segment, row = self.at(rank)
        return segment.name(row)

    def values(self, rank: int) -> bytes:
        """The values beside an image, as stored."""
        segment, row = self.at(rank)
        return segment.values(row)

    def stream(self, rank: int) -> bytes:
        """An image as a whole file."""
        segment, row = self.at(rank)
        return segment.stream(row)

    def load(self, rank: int) -> bytes | Pixels:
        """An image as training sees it: a whole file, or pixels if it was shrunk."""
        segment, row = self.at(rank)
        return segment.load(row)

    # Some of the images

    def as_one(self) -> Held:
        """All images in one place, in RAM unless they are in one place already."""
        first = self.segments[0]
        if len(self.segments) == 1 and isinstance(first, Held):
            return first
        held = self.take(range(len(self))).segments[0]
        assert isinstance(held, Held)
        return held

    def part(self, begin: int, end: int) -> "ClassImages":
        """The images of some consecutive ranks, where they are."""
        found, first = list[Segment](), 0
        for segment in self.segments:
            low, high = max(begin - first, 0), min(end - first, len(segment))
            if low < high:
                found.append(segment.slice(low, high))
            first += len(segment)
        return replace(self, segments=tuple(found))

    def cut(self, count: int) -> "ClassImages":
        """The first `count` images."""
        if count == len(self):
            return self
        in_files = all(isinstance(segment, Saved) for segment in self.segments)
        return self.part(0, count) if in_files else self.take(range(count))

    def take(self, ranks: Sequence[int]) -> "ClassImages":
        """The images with these ranks, in this order."""
        first = self.segments[0]
        if isinstance(first, Held) and len(self.segments) == 1:
            return replace(self, segments=(first.take(ranks),))
        places = [self.at(rank) for rank in ranks]
        images = [segment.encoded(row, segment.name(row)) for segment, row in places]
        sizes = [len(image.body) + len(image.values) for image in images]
        starts = list(accumulate(sizes, initial=0))[:-1]
        return replace(self, segments=(Held.of(images, starts, sizes, None),))


def _joined(arrays: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    """Arrays end to end; one alone is not copied."""
    given = list(arrays)
    return given[0] if len(given) == 1 else np.concatenate([np.empty(0, np.int64), *given])


def _used(segments: Iterable[Segment], name: str, known: Callable[[Segment], Any]) -> list[Any]:
    """Distinct entries that a column refers to."""
    found: dict[Any, None] = {}
    for segment in segments:
        counts = np.bincount(segment.column(name).astype(np.int64) + 1)
        places = (np.flatnonzero(counts) - 1).tolist()
        found |= dict.fromkeys(known(segment)[place] for place in places if place >= 0)
    return list(found)


def tables_in_use(classes: Mapping[int, ClassImages]) -> list[bytes]:
    """The tables that images share, each once."""
    return list(dict.fromkeys(table for c in classes.values() for table in c.used_tables))


def encodings_in_use(classes: Mapping[int, ClassImages]) -> list[Encoding]:
    """How the images were encoded, each way once."""
    return list(dict.fromkeys(made for c in classes.values() for made in c.used_encodings))


def has_values(classes: Mapping[int, ClassImages]) -> bool:
    """True if there are values beside any image."""
    return any(images.has_values for images in classes.values())


def to_arrays(classes: Mapping[int, ClassImages]) -> dict[str, NDArray[Any]]:
    """Arrays of the memory file except payload and boxes."""
    segments = [segment for images in classes.values() for segment in images.segments]
    counts = [len(images) for images in classes.values()]
    sizes = _joined(segment.sizes for segment in segments)
    tables, encodings = tables_in_use(classes), encodings_in_use(classes)
    arrays = {
        "offsets": np.concatenate([[0], np.cumsum(sizes)]).astype("<i8"),
        "digests": _digests(segments, len(sizes)),
        "labels": np.repeat(np.array(list(classes), "<i4"), counts),
        "ranks": np.concatenate([np.empty(0, "<i4"), *(np.arange(n, dtype="<i4") for n in counts)]),
        "tables": _column(segments, "tables", tables, lambda segment: segment.table_list),
        "encodings": _column(segments, "encodings", encodings, lambda s: s.encoding_list),
        "kept": _joined_as("u1", (segment.column("kept") for segment in segments)),
        "sources": _joined_as("u1", (segment.names.data for segment in segments)),
    }
    if has_values(classes):
        values = (segment.column("value_sizes") for segment in segments)
        arrays["value_sizes"] = _joined_as("<i4", values)
    return arrays


def _digests(segments: Sequence[Segment], count: int) -> NDArray[np.uint8]:
    """The digest of every image, checked for images in files."""
    digests = (segment.digest(row) for segment in segments for row in range(len(segment)))
    found = bytearray(DIGEST * count)
    for place, digest in enumerate(digests):
        found[DIGEST * place : DIGEST * (place + 1)] = digest
    return np.frombuffer(found, "u1").reshape(-1, DIGEST)


def _column(
    segments: Sequence[Segment],
    name: str,
    targets: Sequence[Any],
    known: Callable[[Segment], Sequence[Any]],
) -> NDArray[np.int16]:
    """A column of all segments, which refers to `targets` instead of what each segment knows."""
    places = {target: place for place, target in enumerate(targets)}
    found = []
    for segment in segments:
        renamed = np.array([*(places.get(one, -1) for one in known(segment)), -1], "<i2")
        found.append(renamed[segment.column(name)])  # -1 stays -1, the last
    return _joined_as("<i2", found)


def _joined_as(dtype: str, arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype, copy=False)


def from_stored(memory: StoredMemory) -> dict[int, ClassImages]:
    """The classes of a memory on disk by label; nothing of them is read."""
    runs = {label: list(of) for label, of in groupby(memory.runs, key=lambda run: run.label)}
    return {
        entry["label"]: ClassImages(
            tuple(Saved(run.part, run.begin, run.end) for run in runs[entry["label"]]),
            seen=entry["seen"],
            duplicates=entry["duplicates"],
        )
        for entry in memory.meta["classes"]
    }
