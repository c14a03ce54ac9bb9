"""Images of a phase on the host: as files, or decoded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.forked import Forked, crew
from mrdc._utils.ring import shared_bytes
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import plain_sides
from mrdc.data.crops import resize, tensor
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo, to_pixels

SEGMENT = 1 << 26  # bytes
AHEAD = 64  # jobs in flight
UNLIMITED = 1 << 30  # pixels


class Pictures(Protocol):
    """Images by place, none of them longer than a limit."""

    sides: NDArray[np.int64]  # height and width, (n, 2)

    def image(self, place: int) -> Tensor:
        """An image (3, h, w), uint8."""
        ...


class Files:
    """Encoded images, in RAM that forked processes share, up to `room` bytes.

    The others are read from disk every time; images that a memory holds, from there. Images
    longer than `limit` are scaled down to it when they are decoded.

    Attributes:
        plain: which images are JPEGs that every decoder decodes alike, (n,).
    """

    def __init__(
        self, photos: Sequence[Photo], limit: int, room: float = 0, threads: int | None = None
    ):
        self.photos, self.limit, self._room = photos, limit, room
        self.sides = np.zeros((len(photos), 2), np.int64)
        self.plain = np.zeros(len(photos), bool)
        self._where = np.full((len(photos), 3), -1, np.int64)  # segment, start, end
        self._segments: list[Tensor] = []
        self._end = SEGMENT  # of the last segment
        with workers(threads) as pool:
            loads = ordered(pool, lambda place: photos[place].load(), range(len(photos)))
            for place, data in loads:
                self._note(place, data)
        others = np.flatnonzero(self.sides[:, 0] == 0).tolist()
        if others:
            with Forked(self._measure, crew(threads, len(others))) as pools:
                self.sides[others] = list(pools.ordered(others, AHEAD))

    @property
    def at_hand(self) -> bool:
        """Whether no file is on disk."""
        pairs = zip(self.photos, self._where[:, 0].tolist(), strict=True)
        return all(photo.held or segment >= 0 for photo, segment in pairs)

    def image(self, place: int) -> Tensor:
        """An image (3, h, w), decoded now."""
        return shrunk(tensor(to_pixels(self._load(place), self.photos[place].id)), self.limit)

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
            self.sides[place] = shrunk_sides(data.shape[0], data.shape[1], self.limit)
            return
        if (sides := plain_sides(data)) is not None:
            self.sides[place], self.plain[place] = shrunk_sides(*sides, self.limit), True
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

    def _measure(self, place: int) -> tuple[int, ...]:
        return tuple(self.image(place).shape[1:])


class Decoded:
    """Images in RAM that forked processes share, decoded once."""

    def __init__(self, files: Files, threads: int | None = None):
        self.sides = files.sides
        self._ends = np.cumsum(3 * self.sides.prod(1))
        self._space = shared_bytes(int(self._ends[-1]))

        def decode(place: int) -> None:
            self.image(place)[:] = files.image(place)

        count = len(self.sides)
        with Forked(decode, crew(threads, count)) as pool:
            for _ in pool.ordered(range(count), AHEAD):
                pass

    def image(self, place: int) -> Tensor:
        """An image (3, h, w), not a copy."""
        height, width = map(int, self.sides[place])
        end = int(self._ends[place])
        pixels = self._space[end - 3 * height * width : end]
        return tensor(pixels.reshape(height, width, 3))


def decoded(images: ImageSet, room: float, threads: int | None = None) -> ImageSet:
    """The same images with their pixels in RAM, if there is room for them."""
    photos = images.all_photos
    files = Files(photos, UNLIMITED, 0, threads)
    if 3 * files.sides.prod(1).sum() > room:
        return images
    pictures = Decoded(files, threads)
    pixels = (pictures.image(place).permute(1, 2, 0).numpy() for place in range(len(photos)))
    return replace(
        images,
        photos=tuple([p._replace(decoded=next(pixels)) for p in of] for of in images.photos),
    )


def shrunk_sides(height: int, width: int, limit: int) -> tuple[int, int]:
    """Sides of an image, scaled so that the long side is at most `limit`."""
    scale = min(1.0, limit / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrunk(image: Tensor, limit: int) -> Tensor:
    """An image (3, h, w) whose long side is at most `limit`."""
    _, height, width = image.shape
    return resize(image, *shrunk_sides(height, width, limit))
