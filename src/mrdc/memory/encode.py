"""One image, checked and encoded as a memory stores it."""

import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import Codec
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import join, split
from mrdc.data.photo import Photo, to_pixels

Entry = Callable[[str], int]  # bytes an image takes in the index, from its source


@dataclass(frozen=True)
class Encoding:
    """How images were encoded, as the memory file records it."""

    codec: str
    quality: int | None
    encoder: str

    def __str__(self) -> str:
        setting = "" if self.quality is None else f" {self.quality}"
        return f"{self.codec}{setting} by {self.encoder}"


@dataclass(frozen=True)
class Encoded:
    """An encoded image, as it is stored."""

    source: str  # id of the image it was made from
    body: bytes
    tables: bytes  # the header missing from `body`; empty if `body` is a whole file
    kept: bool  # `body` is the source itself, because encoding did not make it smaller
    digest: bytes  # SHA-256 of the whole file
    encoding: Encoding

    def cost(self, entry: Entry | None) -> int:
        """Bytes charged: the body, and the index entry if a budget bounds the file."""
        return len(self.body) + (entry(self.source) if entry else 0)


def encode(image: Photo | Encoded, codec: Codec, encoding: Encoding, tables: bytes) -> Encoded:
    """Encode a photo, or keep its bytes if those are no larger; never encode twice.

    `tables` are header bytes not to store with each image; empty to store whole files.
    """
    if isinstance(image, Encoded):
        if image.kept or image.tables == tables:
            return image
        stream = join(image.tables, image.body) if image.tables else image.body
        return _encoded(image.source, stream, tables, encoding)
    data = image.load()
    source = data if isinstance(data, bytes) else None
    pixels = to_pixels(data, image.id)
    if codec.name == "original" and source is not None:
        return _encoded(image.id, source, b"", encoding, kept=True)
    try:
        stream = codec.encode(pixels, encoding.quality)
    except ImageError as error:
        raise ImageError(f"{image.id}: {error}") from None
    if source is not None and len(source) <= len(stream):
        return _encoded(image.id, source, b"", encoding, kept=True)
    return _encoded(image.id, stream, tables, encoding)


def _encoded(
    source: str, stream: bytes, tables: bytes, encoding: Encoding, kept: bool = False
) -> Encoded:
    header, body = split(stream) if tables else (b"", stream)
    digest = hashlib.sha256(stream).digest()
    if header == tables:
        return Encoded(source, body, tables, kept, digest, encoding)
    return Encoded(source, stream, b"", kept, digest, encoding)


Image = Photo | Encoded | bytes | Pixels  # what callers may pass


def as_label(given: SupportsIndex) -> int:
    """A label as an int; numpy integers and integer tensors are accepted."""
    boolean = isinstance(given, bool) or "bool" in str(getattr(given, "dtype", ""))
    try:
        label = -1 if boolean else operator.index(given)
    except TypeError:
        label = -1
    if not 0 <= label < 2**31:
        raise UsageError(f"label {given!r} must be a whole number from 0 to 2147483647")
    return label


def as_image(label: int, rank: int, image: Image, encoding: Encoding) -> Photo | Encoded:
    """Photos and encoded images unchanged; bytes and pixels as a Photo named by label and rank."""
    if isinstance(image, bytes | np.ndarray):
        return Photo(f"{label}/{rank}", lambda: image)
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
