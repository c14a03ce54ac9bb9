"""One image, encoded as a memory stores it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import Codec
from mrdc.codec.headers import join, split
from mrdc.codec.image import decode
from mrdc.codec.jpeg_progressive import has_scans, seal
from mrdc.codec.scaled import restored, stored_scale
from mrdc.data.photo import Photo
from mrdc.memory.names import DIGEST, IndexCost


@dataclass(frozen=True)
class Encoding:
    """How images were encoded, as the memory file records it."""

    codec: str
    quality: int | None
    encoder: str

    def __str__(self) -> str:
        setting = "" if self.quality is None else f" {self.quality}"
        return f"{self.codec}{setting} by {self.encoder}"


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded image, as it is stored."""

    source: str  # id of the image it was made from
    body: bytes
    tables: bytes  # the header missing from `body`; empty if `body` is a whole file
    kept: bool  # `body` is the source itself, because encoding did not make it smaller
    digest: bytes  # of the whole file
    encoding: Encoding
    values: bytes = b""  # beside the image, as stored

    @property
    def stream(self) -> bytes:
        """The image as a whole file."""
        return join(self.tables, self.body)

    @property
    def can_fade(self) -> bool:
        """True if scans may be cut: source files stay as they are."""
        return not self.kept and has_scans(self.encoding.codec)

    @property
    def identity(self) -> bytes:
        """Equal for exact duplicates, even if scans of one were cut."""
        sealed = seal(self.stream) if has_scans(self.encoding.codec) else b""
        return image_digest(sealed) if sealed else self.digest

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


class Stored(NamedTuple):
    """An image of another memory, to be stored as it is; read when its turn comes."""

    source: str
    tables: bytes
    kept: bool
    encoding: Encoding
    values: bool  # whether there are any
    load: Callable[[], Encoded]


Item = Arrival | Encoded | Stored  # what can be stored


@dataclass(frozen=True)
class Encoder:
    """Makes images as a memory stores them; `packed` stores shared headers once."""

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
        if not isinstance(item, Arrival):
            return self._stored(item.load() if isinstance(item, Stored) else item)
        data, name = item.photo.load(), item.photo.id
        source = data if isinstance(data, bytes) else None
        pixels = item.photo.decode(data)
        if self.codec.name == "original" and source is not None:
            return self._made(item, source, kept=True)
        try:
            stream = self.codec.encode(pixels, self.quality)
        except ImageError as error:
            raise ImageError(f"{name}: {error}") from None
        if not type(self.codec).__module__.startswith("mrdc."):
            self._check(stream, pixels.shape, name)
        if source is not None and len(source) <= len(stream):
            return self._made(item, source, kept=True)
        return self._made(item, stream)

    def _check(self, stream: object, shape: tuple[int, ...], name: str) -> None:
        """Refuse what the codec of another package made, unless it is an image of this shape."""
        codec = f"codec {self.codec.name}"
        if not isinstance(stream, bytes):
            raise UsageError(f"{codec}: encode returned {type(stream).__name__} instead of bytes")
        try:
            found = decode(stream, name).shape
        except ImageError as error:
            raise UsageError(f"{codec}: encode returned what is no image file ({error})") from None
        if found != shape:
            raise UsageError(f"{codec}: encode made {found} of an image of the shape {shape}")

    def _made(self, item: Arrival, stream: bytes, kept: bool = False) -> Encoded:
        digest = image_digest(stream)
        whole = Encoded(item.source, stream, b"", kept, digest, self.encoding, item.values)
        return self._stored(whole)

    def _stored(self, image: Encoded) -> Encoded:
        """An image with or without its header, as the memory stores it."""
        if image.tables and not self.packed:
            return replace(image, body=image.stream, tables=b"")
        if image.tables or not self.tables:
            return image
        header, body = split(image.body)  # source files that were kept may share it, too
        return replace(image, body=body, tables=self.tables) if header == self.tables else image


def image_digest(stream: bytes, values: bytes = b"") -> bytes:
    """Half of the SHA-256 of an image as a whole file, followed by the values beside it."""
    return hashlib.sha256(stream + values).digest()[:DIGEST]


def as_stored(
    photo: Photo,
    codec: Codec,
    quality: int | None,
    fade: Callable[[Encoded], Encoded] = lambda image: image,
) -> Photo:
    """A photo as training sees it once a memory has stored it; encoded now, and held in RAM.

    `fade` cuts scans of the image, if the memory would.
    """
    stored = fade(Encoder(codec, quality, packed=False)(Arrival(photo)))
    load = partial(restored, stored.body, stored_scale(codec.name, stored.kept))
    return Photo(photo.id, load, held=True)
