"""Images, labels and values that callers may pass."""

import operator
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from reprlib import repr as shortened
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from mrdc._utils.errors import UsageError
from mrdc._utils.extras import Tensor
from mrdc._utils.lazy import LazyList
from mrdc.codec.image import Pixels, from_pillow
from mrdc.data.photo import Photo, file_photo
from mrdc.memory.encode import Arrival, Encoded, Item
from mrdc.memory.values import rows_of

Image: TypeAlias = Photo | Encoded | str | os.PathLike[str] | bytes | Pillow.Image | Pixels | Tensor
Columns = Mapping[str, Any]  # values by name: arrays, tensors or lists with one for each image

ALLOWED = (
    "pass a path, the bytes of a file, a PIL image, a uint8 array (height, width, 3) or "
    "(height, width), a uint8 tensor (3, height, width), or a Photo"
)


def as_label(given: SupportsIndex) -> int:
    """A label as an int; numpy integers and integer tensors are accepted."""
    boolean = isinstance(given, bool) or "bool" in str(getattr(given, "dtype", ""))
    try:
        label = -1 if boolean else operator.index(given)
    except TypeError:
        label = -1
    if not 0 <= label < 2**31:
        raise UsageError(f"label {shortened(given)} must be a whole number from 0 to 2147483647")
    return label


def as_items(
    label: int, images: Iterable[Image], values: Columns | None = None, start: int = 0
) -> Sequence[Item]:
    """Images of a class, checked, with the values beside them.

    Images without a name are named by the label and a number, from `start`.

    Raises:
        UsageError: an image or value that is not allowed; the message says which.
    """
    if isinstance(images, str | bytes):
        raise UsageError(f"images of class {label} are one {type(images).__name__}: pass a list")
    if isinstance(images, LazyList) and not values:  # photos that a search has ranked
        return images.map(lambda image: as_item(image, b"", "", ""))
    given = list(images)
    rows = zip(given, rows_of(values or {}, len(given)), strict=True)
    return [
        as_item(image, beside, f"{label}/{start + number}", f"image {number} of class {label}")
        for number, (image, beside) in enumerate(rows)
    ]


def as_item(image: Image, values: bytes, name: str, where: str) -> Item:
    """An image with the values beside it; `name` is used if it has none."""
    if isinstance(image, Encoded):
        _check_name(image.source, where)
        return replace(image, values=values) if values else image
    return Arrival(as_photo(image, name, where), values)


def as_photo(image: Any, name: str, where: str) -> Photo:
    """Any allowed image as a Photo; a path is its own name."""
    torch = sys.modules.get("torch")
    if isinstance(image, Photo):
        _check_name(image.id, where)
        return image
    if isinstance(image, bytes):
        return Photo(name, lambda: image)
    if isinstance(image, str | os.PathLike):
        path = os.fspath(image)
        return file_photo(path, path)
    if isinstance(image, Pillow.Image):
        return Photo(name, partial(from_pillow, image, name))
    if isinstance(image, np.ndarray):
        kind, array = "array", image
    elif torch is not None and isinstance(image, torch.Tensor):
        kind, array = "tensor", image.detach().cpu().numpy()
    else:
        raise UsageError(f"{where}: got {type(image).__name__}; {ALLOWED}")
    if array.dtype != np.uint8:
        raise UsageError(f"{where}: got {array.dtype} {kind}; {ALLOWED}")
    last = np.moveaxis(array, 0, -1) if kind == "tensor" and array.ndim == 3 else array
    if not array.size or last.ndim not in (2, 3) or last.shape[2:] not in ((), (1,), (3,)):
        raise UsageError(f"{where}: got {kind} of shape {array.shape}; {ALLOWED}")
    return Photo(name, partial(_pixels, last))


def _check_name(name: str, where: str) -> None:
    """Refuse a name that a memory file cannot hold: one that no file could have either."""
    try:
        fits = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise UsageError(f"{where}: {name!r} cannot be the name of an image")


def _pixels(array: NDArray[Any]) -> Pixels:
    """RGB pixels (height, width, 3); grey is repeated."""
    grey = array[:, :, None] if array.ndim == 2 else array
    return np.repeat(grey, 3, axis=2) if grey.shape[2] == 1 else np.ascontiguousarray(grey)
