"""Boxes of images in a memory file: two arrays, checked on the way in and out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import UsageError
from mrdc.data.scenes import Boxes


def box_arrays(
    sources: list[str], boxes: Mapping[str, Boxes], classes: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Arrays of the memory file for the boxes of these images, in order; none without boxes.

    Raises:
        UsageError: invalid boxes.
    """
    none = np.empty((0, 5), "<f4")
    rows = [np.asarray(boxes.get(source, none), "<f4") for source in sources]
    for source, of_image in zip(sources, rows, strict=True):
        if of_image.ndim != 2 or of_image.shape[1] != 5:
            raise UsageError(f"boxes of {source} must have the shape (n, 5), got {of_image.shape}")
    counts = np.array([len(of_image) for of_image in rows], "<i4")
    every = np.concatenate([none, *rows])
    if not classes and not len(every):
        return {}
    if problems := box_problems(counts, every, sources, len(classes)):
        raise UsageError(problems[0])
    return {"box_counts": counts, "boxes": every}


def box_problems(
    counts: NDArray[Any], rows: NDArray[Any], sources: list[str], classes: int
) -> list[str]:
    """List what is wrong with the boxes of a file.

    Args:
        counts: boxes of each image.
        rows: the boxes of all images, end to end.
        classes: number of box classes.
    """
    if rows.ndim != 2 or rows.shape[1] != 5:
        return [f"boxes must have the shape (n, 5), got {rows.shape}"]
    images = len(sources)
    if counts.shape != (images,) or (counts < 0).any() or counts.sum() != len(rows):
        return [f"box counts of {images} images do not add up to the {len(rows)} boxes"]
    wrong = {
        "a number is not finite": ~np.isfinite(rows).all(axis=1),
        "a negative size": (rows[:, 2] < rows[:, 0]) | (rows[:, 3] < rows[:, 1]),
        f"a label is not one of {classes} box_classes": ~np.isin(rows[:, 4], np.arange(classes)),
    }
    owners = np.repeat(np.arange(images), counts)
    return [
        f"boxes of {sources[owners[bad.argmax()]]}: {what}"
        for what, bad in wrong.items()
        if bad.any()
    ]


def box_entry(count: int) -> int:
    """Bytes of the index for the boxes of one image."""
    return 4 + 20 * count
