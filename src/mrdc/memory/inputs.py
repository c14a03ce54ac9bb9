"""Labels, images of a class, and values beside them, as callers may pass them."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from reprlib import repr as shortened
from typing import Any, SupportsIndex, TypeAlias

from mrdc._utils.errors import UsageError
from mrdc._utils.lazy import LazyList
from mrdc.data.inputs import AnyImage, as_photo, check_name
from mrdc.memory.encode import Arrival, Encoded, Item
from mrdc.memory.values import rows_of

Image: TypeAlias = AnyImage | Encoded
Columns = Mapping[str, Any]  # values by name: arrays, tensors or lists with one for each image


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
        check_name(image.source, where)
        return replace(image, values=values) if values else image
    return Arrival(as_photo(image, name, where), values)
