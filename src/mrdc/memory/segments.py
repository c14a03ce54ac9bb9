"""Consecutive images of a class in one place, in rank order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc.memory.encode import Encoded, Encoding
from mrdc.memory.names import DIGEST, Names
from mrdc.memory.payload import Payload, Ram, Spool
from mrdc.memory.rows import Rows
from mrdc.memory.stored import Part


@dataclass(frozen=True)
class Saved(Rows):
    """Images in a memory file, or in a part of one; nothing is read before it is needed."""

    part: Part
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def table_list(self) -> Sequence[bytes]:
        return self.part.file.table_list

    @property
    def encoding_list(self) -> Sequence[Encoding]:
        return self.part.file.encoding_list

    @property
    def names(self) -> Names:
        return self.part.file.names.part(self.begin, self.end)

    @property
    def sizes(self) -> NDArray[Any]:
        return np.diff(self.part.file.arrays["offsets"][self.begin : self.end + 1])

    def column(self, name: str) -> NDArray[Any]:
        return self.part.file.column(name)[self.begin : self.end]

    def stored(self, row: int) -> bytes:
        return self.part.file.stored(self.begin + row)

    def expected(self, row: int) -> bytes | None:
        return self.part.file.expected(self.begin + row)

    def name(self, row: int) -> str:
        """Id of the source of an image."""
        return self.part.file.names[self.begin + row]

    def slice(self, begin: int, end: int) -> "Saved":
        """Some consecutive images."""
        return Saved(self.part, self.begin + begin, self.begin + end)


@dataclass(frozen=True)
class Held(Rows):
    """Images that are in RAM or in an unnamed file."""

    payload: Payload
    starts: NDArray[np.int64]  # in the payload
    lengths: NDArray[np.int64]  # values included
    columns: Mapping[str, NDArray[Any]]
    sources: Names
    tables: Sequence[bytes]
    encodings: Sequence[Encoding]

    @classmethod
    def of(
        cls,
        images: Sequence[Encoded],
        starts: Sequence[int],
        sizes: Sequence[int],
        spool: Spool | None,
    ) -> "Held":
        """Images as they were taken."""
        tables = list(dict.fromkeys(image.tables for image in images if image.tables))
        encodings = list(dict.fromkeys(image.encoding for image in images))
        table_at = {b"": -1} | {table: place for place, table in enumerate(tables)}
        encoding_at = {encoding: place for place, encoding in enumerate(encodings)}
        return cls(
            payload=Ram.of(i.body + i.values for i in images) if spool is None else spool,
            starts=np.array(starts, np.int64),
            lengths=np.array(sizes, np.int64),
            columns={
                "value_sizes": np.array([len(image.values) for image in images], "<i4"),
                "kept": np.array([image.kept for image in images], "u1"),
                "tables": np.array([table_at[image.tables] for image in images], "<i2"),
                "encodings": np.array([encoding_at[image.encoding] for image in images], "<i2"),
                "identities": np.frombuffer(
                    b"".join(image.identity for image in images), "u1"
                ).reshape(-1, DIGEST),
            },
            sources=Names.of(image.source for image in images),
            tables=tables,
            encodings=encodings,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def table_list(self) -> Sequence[bytes]:
        return self.tables

    @property
    def encoding_list(self) -> Sequence[Encoding]:
        return self.encodings

    @property
    def names(self) -> Names:
        return self.sources

    @property
    def sizes(self) -> NDArray[Any]:
        return self.lengths

    def column(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def stored(self, row: int) -> bytes:
        start = int(self.starts[row])
        part = self.payload[start : start + int(self.lengths[row])]
        return part if isinstance(part, bytes) else part.tobytes()

    def expected(self, row: int) -> bytes | None:
        return None

    def name(self, row: int) -> str:
        """Id of the source of an image."""
        return self.sources[row]

    def slice(self, begin: int, end: int) -> "Held":
        """Some consecutive images, in the same payload."""
        return replace(
            self,
            starts=self.starts[begin:end],
            lengths=self.lengths[begin:end],
            columns={name: column[begin:end] for name, column in self.columns.items()},
            sources=self.sources.part(begin, end),
        )

    def __add__(self, more: "Held") -> "Held":
        """These images and others, in the payload of these."""
        if more.payload is self.payload:
            payload, starts = self.payload, more.starts
        else:
            payload, begun = self.payload.extended([*map(more.stored, range(len(more)))])
            starts = np.array(begun, np.int64)
        tables = list(dict.fromkeys([*self.tables, *more.tables]))
        encodings = list(dict.fromkeys([*self.encodings, *more.encodings]))
        renamed = {
            "tables": np.array([*map(tables.index, more.tables), -1], "<i2"),  # -1 stays the last
            "encodings": np.array([*map(encodings.index, more.encodings), -1], "<i2"),
        }
        others = dict(more.columns)
        for name, places in renamed.items():
            others[name] = places[others[name]]
        return Held(
            payload=payload,
            starts=np.concatenate([self.starts, starts]),
            lengths=np.concatenate([self.lengths, more.lengths]),
            columns={n: np.concatenate([self.columns[n], others[n]]) for n in others},
            sources=self.sources + more.sources,
            tables=tables,
            encodings=encodings,
        )

    def take(self, rows: Sequence[int]) -> "Held":
        """The images in these rows, in this order.

        In RAM they are copied once less than half of the payload is in use, to free the others.
        """
        chosen = np.array(rows, np.intp)
        payload, starts, lengths = self.payload, self.starts[chosen], self.lengths[chosen]
        if isinstance(payload, Ram) and 2 * int(lengths.sum()) < len(payload):
            payload = Ram.of(map(self.stored, rows))
            starts = np.cumsum(lengths) - lengths
        columns = {name: column[chosen] for name, column in self.columns.items()}
        names = self.sources.take(rows)
        return replace(
            self, payload=payload, starts=starts, lengths=lengths, columns=columns, sources=names
        )


Segment = Held | Saved
