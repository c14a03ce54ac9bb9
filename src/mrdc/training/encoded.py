"""The encoded images of a phase, read once if there is room for them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.forked import Forked
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import plain_sides
from mrdc.data.photo import Photo, to_pixels
from mrdc.training.ring import shared_bytes

SEGMENT = 1 << 26  # bytes


class Files:
    """Files of images, in RAM that forked processes share, as far as `room` bytes reach.

    The others are read from disk every time; images that a memory holds, from there.

    Attributes:
        sides: height and width of each image, (n, 2).
        plain: which images are JPEGs that any decoder reads alike, (n,).
    """

    def __init__(self, photos: Sequence[Photo], room: float, threads: int | None = None):
        self.photos, self._room = photos, room
        self.sides = np.zeros((len(photos), 2), np.int64)
        self.plain = np.zeros(len(photos), bool)
        self._where = np.full((len(photos), 3), -1, np.int64)  # segment, start, end
        self._segments: list[Tensor] = []
        self._end = SEGMENT  # of the last segment
        with workers(threads) as pool:
            loads = ordered(pool, lambda place: photos[place].load(), range(len(photos)))
            for place, data in loads:
                self._note(place, data)
        others = [int(place) for place in np.flatnonzero(self.sides[:, 0] == 0)]
        if others:
            with Forked(self._measure, threads) as processes:
                self.sides[others] = list(processes.ordered(others, 64))

    def __len__(self) -> int:
        return len(self.photos)

    def pixels(self, place: int) -> Pixels:
        """An image, decoded."""
        return to_pixels(self._load(place), self.photos[place].id)

    def file(self, place: int) -> Tensor:
        """A whole file (bytes,), not copied if it is in RAM."""
        segment, start, end = map(int, self._where[place])
        if segment >= 0:
            return self._segments[segment][start:end]
        data = self.photos[place].load()
        assert isinstance(data, bytes)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def _load(self, place: int) -> bytes | Pixels:
        if self._where[place, 0] < 0:
            return self.photos[place].load()
        return self.file(place).numpy().tobytes()

    def _note(self, place: int, data: bytes | Pixels) -> None:
        """Keep an image if there is room, and its sides if they are easy to know."""
        if not isinstance(data, bytes):
            self.sides[place] = data.shape[:2]
            return
        if (sides := plain_sides(data)) is not None:
            self.sides[place], self.plain[place] = sides, True
        if not self.photos[place].held and len(data) <= self._room:
            self._keep(place, data)

    def _keep(self, place: int, data: bytes) -> None:
        if self._end + len(data) > SEGMENT:
            self._segments.append(torch.from_numpy(shared_bytes(max(SEGMENT, len(data)))))
            self._end = 0
        start, self._end = self._end, self._end + len(data)
        self._segments[-1].numpy()[start : self._end] = np.frombuffer(data, np.uint8)
        self._where[place] = len(self._segments) - 1, start, self._end
        self._room -= len(data)

    def _measure(self, place: int) -> tuple[int, int]:
        height, width, _ = self.pixels(place).shape
        return height, width
