"""Fading: a memory gives up scans of progressive JPEGs before it gives up images.

A level is a number of scans above `LEAST_SCANS`. Scans are given up level by level: the last scan
of all images goes before the one below it of any image. Within a level, images with lower ranks
lose it first, and of equal ranks those of older classes. So images differ by one level at most,
and the scans kept under a smaller budget are among those kept under a larger one: what is left
does not depend on the steps that led there. An image is dropped, or not stored when its class
arrives, only if the images of better ranks leave no room for it at the lowest level.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import ImageError, MemoryFileError
from mrdc.codec.jpeg import split
from mrdc.codec.jpeg_progressive import LEAST_SCANS, SCANS, cut, has_scans, scan_ends
from mrdc.memory.classes import ClassImages
from mrdc.memory.encode import Encoded, image_digest
from mrdc.memory.names import IndexCost
from mrdc.memory.rows import Rows

TOP = SCANS - LEAST_SCANS  # the level of an image that was not cut
Sizes = NDArray[np.int64]  # (images, TOP + 1): bytes of each image of a class at each level


def sizes_by_level(image: Encoded, charged: int) -> list[int]:
    """Bytes charged for an image at each level, from what is charged for it as it is."""
    if not image.can_fade:
        return [charged] * (TOP + 1)
    ends = scan_ends(image.stream)
    kept = [ends[:scans][-1] for scans in range(LEAST_SCANS, SCANS + 1)]
    return [charged - (ends[-1] - end) for end in kept]


def sizes_of(images: ClassImages, entry: IndexCost | None) -> Sizes:
    """Bytes charged for each image of a class at each level."""
    pairs = zip(images.encoded(), images.costs(entry), strict=True)
    return np.array([sizes_by_level(image, int(cost)) for image, cost in pairs], np.int64)


def scan_counts(places: Iterable[Rows]) -> dict[int, int]:
    """Number of images by their scans; images whose scans cannot be cut do not count.

    Raises:
        MemoryFileError: an image is damaged.
    """
    found = Counter[int]()
    for rows in places:
        if any(has_scans(encoding.codec) for encoding in rows.encoding_list):  # else read nothing
            chosen = (row for row in range(len(rows)) if rows.has_scans(row))
            found.update(_scans(rows, row) for row in chosen)
    return dict(sorted(found.items()))


def usual_level(scans: Mapping[int, int]) -> int:
    """The most frequent level, from the number of images by scans; the top one if none fades."""
    return max(scans, key=lambda count: scans[count]) - LEAST_SCANS if scans else TOP


def _scans(rows: Rows, row: int) -> int:
    try:
        return len(scan_ends(rows.stream(row)))
    except ImageError as error:
        raise MemoryFileError(f"image {rows.names[row]}: {error}: damaged or forged") from None


def mean_scans(counts: Mapping[int, int]) -> float:
    """Mean scans of an image, from the number of images by their scans."""
    return sum(scans * images for scans, images in counts.items()) / sum(counts.values())


def faded(image: Encoded, to: int) -> Encoded:
    """An image cut to a level; unchanged if it is not above that."""
    stream = image.stream
    part = cut(stream, LEAST_SCANS + to) if image.can_fade else stream
    if len(part) == len(stream):
        return image
    body = split(part)[1] if image.tables else part
    return replace(image, body=body, digest=image_digest(part))


def fitting_levels(sizes: Sequence[Sizes], room: int) -> list[NDArray[np.int64]]:
    """Level of each image, by class in order of arrival, with which all fit into `room` bytes.

    All are at level 0 if they do not fit even then.
    """
    every = np.concatenate([np.zeros((0, TOP + 1), np.int64), *sizes])
    base = int(np.searchsorted(every.sum(axis=0), room, side="right")) - 1
    levels = np.full(len(every), max(base, 0))
    if 0 <= base < TOP:
        ranks = np.concatenate([np.arange(len(of_class)) for of_class in sizes])
        age = np.repeat(-np.arange(len(sizes)), list(map(len, sizes)))
        order = np.lexsort([age, ranks])
        more = np.cumsum((every[:, base + 1] - every[:, base])[order])
        spare = room - int(every[:, base].sum())
        levels[order[: int(np.searchsorted(more, spare, side="right"))]] += 1
    return np.split(levels, np.cumsum(list(map(len, sizes)))[:-1]) if sizes else []


def least_cost(image: Encoded, entry: IndexCost | None) -> int:
    """Bytes charged for an image at the lowest level."""
    return sizes_by_level(image, image.cost(entry))[0]
