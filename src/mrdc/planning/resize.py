"""Shrink large images before anything else, as if the source had been resized."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mrdc._utils.errors import ImageError, UsageError
from mrdc._utils.threads import ordered, workers
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo, to_pixels
from mrdc.memory.export import extension
from mrdc.memory.payload import Spool

LOSSY = frozenset({"jpg", "webp", "avif", "jp2"})
QUALITY = 95  # of a shrunk image, if the source was lossy


def check_side(side: int | None) -> None:
    """Refuse a limit that leaves nothing to see."""
    if side is not None and side < 16:
        raise UsageError(f"--max-side must be 16 or more, got {side}")


def shrink_all(
    images: ImageSet,
    side: int,
    *,
    threads: int | None,
    folder: Path,
    progress: Callable[[int], None],
) -> ImageSet:
    """The same images, none with a side above `side`.

    A larger one becomes a JPEG of quality 95, or a PNG if its file was lossless, in an unnamed file
    in `folder`; these files are the originals from then on, for budgets too. An image that cannot
    be read is left as it is, to be reported when it is used.
    """
    if images.scenes is not None:
        raise UsageError("--max-side is for classes: boxes are in pixels of the whole image")
    spool = Spool(folder)
    every: list[tuple[Photo, int]] = []
    sizes = (size for of_class in images.sizes for size in of_class)
    with workers(threads) as pool:
        made = ordered(pool, partial(_attempt, side=side), images.all_photos)
        for (photo, data), size in zip(made, sizes, strict=True):
            progress(1)
            if data is not None:
                start = spool.append(data)
                part = slice(start, start + len(data))
                photo, size = Photo(photo.id, _Spooled(spool, part)), len(data)
            every.append((photo, size))
    rest = iter(every)
    pairs = [[next(rest) for _ in of_class] for of_class in images.photos]
    return replace(
        images,
        photos=tuple([photo for photo, _ in of_class] for of_class in pairs),
        sizes=tuple([size for _, size in of_class] for of_class in pairs),
    )


@dataclass(frozen=True)
class _Spooled:
    """Reads a file from a spool; other processes get the file itself."""

    spool: Spool
    part: slice

    def __call__(self) -> bytes:
        return self.spool[self.part]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (bytes, self())


def _attempt(photo: Photo, side: int) -> bytes | None:
    try:
        return shrink(photo.load(), side, photo.id)
    except ImageError:
        return None


def shrunk(photo: Photo, side: int) -> Photo:
    """One photo as `shrink_all` leaves it, in RAM."""
    data = shrink(photo.load(), side, photo.id)
    return photo if data is None else Photo(photo.id, partial(bytes, data))


def shrink(data: bytes | Pixels, side: int, name: str) -> bytes | None:
    """An image as a file whose longer side is `side`; None if it is not larger than that."""
    pixels = to_pixels(data, name)
    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return None
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    lossy = isinstance(data, bytes) and extension(data) in LOSSY
    return CODECS["jpeg" if lossy else "png"].encode(np.asarray(small), QUALITY if lossy else None)
