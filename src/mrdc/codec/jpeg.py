"""JPEG, 4:2:0, and the header shared by streams of one quality."""

from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image

from mrdc._utils.errors import ImageError
from mrdc.codec.base import PillowCodec
from mrdc.codec.image import Pixels, simplejpeg

END = b"\xff\xd9"


def split(stream: bytes) -> tuple[bytes, bytes]:
    """Split a baseline JPEG stream into (tables, body); `join` undoes it exactly.

    The tables are everything before the scan, with height and width set to zero so that images
    of all sizes share them; the body is those four bytes and the scan. Any other stream comes
    back as (b"", stream).
    """
    position, size = 2, None
    while position + 4 <= len(stream) and stream[position] == 0xFF:
        marker = stream[position + 1]
        if marker == 0xC0:
            size = position + 5
        after = position + 2 + int.from_bytes(stream[position + 2 : position + 4], "big")
        if marker == 0xDA:
            if size is None or not stream.endswith(END):
                break
            tables = stream[:size] + bytes(4) + stream[size + 4 : after]
            return tables, stream[size : size + 4] + stream[after:-2]
        position = after
    return b"", stream


def join(tables: bytes, body: bytes) -> bytes:
    """Restore the JPEG stream of a body stored without its tables."""
    size = _size_position(tables)
    return tables[:size] + body[:4] + tables[size + 4 :] + body[4:] + END


@lru_cache(maxsize=256)
def _size_position(tables: bytes) -> int:
    position = 2
    while tables[position + 1] != 0xC0:
        position += 2 + int.from_bytes(tables[position + 2 : position + 4], "big")
    return position + 5


class JpegOptimised(PillowCodec):
    """JPEG with Huffman tables optimised for each image: smaller, slower."""

    name = "jpeg-optimised"
    format = "JPEG"
    feature = "libjpeg_turbo"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "subsampling": "4:2:0", "optimize": True}


class Jpeg(PillowCodec):
    """JPEG with standard tables, as in the paper; uses simplejpeg if installed."""

    name = "jpeg"
    format = "JPEG"
    feature = "libjpeg_turbo"

    @property
    def encoder(self) -> str:
        return super().encoder if simplejpeg is None else _simplejpeg_version()

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "subsampling": "4:2:0"}

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        if simplejpeg is None:
            return super().encode(image, quality)
        self._check(image, quality)
        try:
            stream: bytes = simplejpeg.encode_jpeg(
                np.ascontiguousarray(image), quality, "RGB", "420"
            )
        except ValueError as error:  # a side over 65,535 pixels
            raise ImageError(f"cannot be written as {self.name}: {error}") from None
        return stream

    def tables(self, quality: int | None) -> bytes:
        return split(self.encode(np.zeros((8, 8, 3), np.uint8), quality))[0]


@cache
def _simplejpeg_version() -> str:
    return f"simplejpeg {version('simplejpeg')} (libjpeg-turbo)"
