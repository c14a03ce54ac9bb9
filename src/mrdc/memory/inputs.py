"""Check what callers pass to a memory: budgets, labels and images."""

import operator
from functools import partial
from typing import SupportsIndex

import numpy as np

from mrdc._utils.errors import UsageError
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget, parse_budget
from mrdc.memory.encode import Encoded, Encoding

Image = Photo | Encoded | bytes | Pixels


def as_budget(budget: Budget | int | str, original_bytes: float | None) -> Budget:
    """A budget, parsed unless it is one."""
    return budget if isinstance(budget, Budget) else parse_budget(budget, original_bytes)


def as_label(given: SupportsIndex) -> int:
    """A label as an int; numpy integers and integer tensors are accepted.

    Raises:
        UsageError: not a whole number, or too large for the file.
    """
    boolean = isinstance(given, bool) or "bool" in str(getattr(given, "dtype", ""))
    try:
        label = -1 if boolean else operator.index(given)
    except TypeError:
        label = -1
    if not 0 <= label < 2**31:
        raise UsageError(f"label {given!r} must be a whole number from 0 to 2147483647")
    return label


def as_image(label: int, rank: int, image: Image, encoding: Encoding) -> Photo | Encoded:
    """Photos and encoded images unchanged; bytes and pixels as a Photo named by label and rank.

    Raises:
        UsageError: another type, or an image that was not encoded with `encoding`.
    """
    if isinstance(image, bytes | np.ndarray):
        return Photo(f"{label}/{rank}", partial(_same, image))
    if not isinstance(image, Photo | Encoded):
        raise UsageError(
            f"image {rank} of class {label} is a {type(image).__name__}: pass a Photo, the bytes "
            "of a file, or pixels (height, width, 3)"
        )
    if isinstance(image, Encoded) and image.encoding != encoding:
        raise UsageError(
            f"image {rank} of class {label} was encoded as {image.encoding}, but the memory "
            f"stores {encoding}: pass the photo instead"
        )
    return image


def _same(image: bytes | Pixels) -> bytes | Pixels:
    return image
