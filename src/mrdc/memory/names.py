"""Names of images as one array of bytes, and what an image costs in the index."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mrdc.data.scenes import Boxes

DIGEST = 16  # bytes of an image's digest: half of its SHA-256
ENTRY = 8 + DIGEST + 4 + 4 + 2 + 2 + 1  # bytes of the index for one image, besides its name


class Names:
    """Names end to end, each followed by a NUL; single ones are found without splitting all."""

    def __init__(self, data: NDArray[np.uint8]):
        self.data = data

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """Names from text."""
        return cls(np.frombuffer(b"".join(os.fsencode(name) + b"\0" for name in names), np.uint8))

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Where the NUL of each name is."""
        return np.flatnonzero(self.data == 0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each name, with its NUL."""
        return np.diff(self.ends, prepend=-1)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        begin = 0 if row == 0 else int(self.ends[row - 1]) + 1
        return os.fsdecode(self.data[begin : self.ends[row]].tobytes())

    def __iter__(self) -> Iterator[str]:
        return (os.fsdecode(name) for name in self.data.tobytes().split(b"\0")[:-1])

    def part(self, begin: int, end: int) -> "Names":
        """Some consecutive names."""
        if begin == end:
            return Names(self.data[:0])
        return Names(
            self.data[0 if begin == 0 else self.ends[begin - 1] + 1 : self.ends[end - 1] + 1]
        )

    def take(self, rows: Sequence[int]) -> "Names":
        """The names in these rows, in this order."""
        lengths = self.lengths[np.asarray(rows, np.intp)]
        ends = np.cumsum(lengths)
        shifts = self.ends[np.asarray(rows, np.intp)] + 1 - ends
        return Names(self.data[np.arange(lengths.sum()) + np.repeat(shifts, lengths)])

    def __add__(self, more: "Names") -> "Names":
        return Names(np.concatenate([self.data, more.data]))


@dataclass(frozen=True)
class IndexCost:
    """Bytes of the index for an image: what a budget in bytes is charged besides its body."""

    boxes: Mapping[str, Boxes] | None = None  # by source; None in a file without boxes
    values: bool = False  # whether the file has values

    def __call__(self, source: str) -> int:
        boxes = 0 if self.boxes is None else 4 + 20 * len(self.boxes.get(source, ()))
        return ENTRY + len(os.fsencode(source)) + 1 + boxes + 4 * self.values

    def all(self, names: Names) -> NDArray[np.int64]:
        """The bytes for every image, from their names."""
        costs = names.lengths + ENTRY + 4 * self.values
        if self.boxes is not None:
            costs += np.array([4 + 20 * len(self.boxes.get(name, ())) for name in names], np.int64)
        return costs
