"""One image, encoded as a memory stores it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from mrdc._utils.errors import ImageError
from mrdc.codec import Codec
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
    """An encoded image, as it is stored.

    Attributes:
        source: id of the image it was made from.
        body: the stored bytes.
        tables: the header missing from `body`; empty if `body` is a whole file.
        kept: `body` is the source itself, because encoding did not make it smaller.
        digest: SHA-256 of the whole file.
        encoding: how it was made.
    """

    source: str
    body: bytes
    tables: bytes
    kept: bool
    digest: bytes
    encoding: Encoding

    def cost(self, entry: Entry | None) -> int:
        """Bytes charged: the body, and the index entry if a budget bounds the file."""
        return len(self.body) + (entry(self.source) if entry else 0)

    def sharing(self, tables: bytes) -> "Encoded":
        """The same image stored without these tables, or whole if they are empty."""
        if self.kept or self.tables == tables:
            return self
        stream = join(self.tables, self.body) if self.tables else self.body
        return _encoded(self.source, stream, tables, self.encoding)


def encode(image: Photo | Encoded, codec: Codec, encoding: Encoding, tables: bytes) -> Encoded:
    """Encode a photo, or keep its bytes if those are no larger.

    An image that is already encoded is not encoded again.

    Args:
        tables: header bytes not to store with each image; empty to store whole files.

    Raises:
        ImageError: the photo cannot be read, or the codec cannot write it.
    """
    if isinstance(image, Encoded):
        return image.sharing(tables)
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
    if tables and header == tables:
        return Encoded(source, body, tables, kept, digest, encoding)
    return Encoded(source, stream, b"", kept, digest, encoding)
