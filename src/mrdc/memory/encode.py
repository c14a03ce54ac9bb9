"""One image, encoded as a memory stores it."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from mrdc._utils.errors import ImageError
from mrdc.codec import Codec
from mrdc.codec.jpeg import join, split
from mrdc.data.photo import Photo
from mrdc.memory.file import IndexCost


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
    values: bytes = b""  # beside the image, as stored

    def cost(self, entry: IndexCost | None) -> int:
        """Bytes charged: body, values, and the index entry if a budget bounds the file."""
        return len(self.body) + len(self.values) + (entry(self.source) if entry else 0)


class Arrival(NamedTuple):
    """A photo to store, and the values beside it as they are stored."""

    photo: Photo
    values: bytes = b""

    @property
    def source(self) -> str:
        return self.photo.id


Item = Arrival | Encoded  # what can be stored


@dataclass(frozen=True)
class Encoder:
    """Makes images as a memory stores them; `packed` stores shared JPEG headers once."""

    codec: Codec
    quality: int | None
    packed: bool

    @cached_property
    def encoding(self) -> Encoding:
        """How new images are encoded."""
        return Encoding(self.codec.name, self.quality, self.codec.encoder)

    @cached_property
    def tables(self) -> bytes:
        """Header bytes not to store with each image; empty to store whole files."""
        return self.codec.tables(self.quality) if self.packed else b""

    def __call__(self, item: Item) -> Encoded:
        """Encode a photo, or keep its bytes if those are no larger; never encode twice."""
        if isinstance(item, Encoded):
            return self._stored(item)
        data, name = item.photo.load(), item.photo.id
        source = data if isinstance(data, bytes) else None
        pixels = item.photo.decode(data)
        if self.codec.name == "original" and source is not None:
            return self._made(item, source, kept=True)
        try:
            stream = self.codec.encode(pixels, self.quality)
        except ImageError as error:
            raise ImageError(f"{name}: {error}") from None
        if source is not None and len(source) <= len(stream):
            return self._made(item, source, kept=True)
        return self._made(item, stream)

    def _made(self, item: Arrival, stream: bytes, kept: bool = False) -> Encoded:
        digest = hashlib.sha256(stream).digest()
        whole = Encoded(item.source, stream, b"", kept, digest, self.encoding, item.values)
        return whole if kept else self._stored(whole)

    def _stored(self, image: Encoded) -> Encoded:
        """An encoded image with or without its header, as the memory stores it."""
        if image.tables and not self.packed:
            return replace(image, body=join(image.tables, image.body), tables=b"")
        if image.tables or image.kept or not self.tables:
            return image
        header, body = split(image.body)
        return replace(image, body=body, tables=self.tables) if header == self.tables else image
