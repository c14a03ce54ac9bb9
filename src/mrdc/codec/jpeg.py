"""JPEG, 4:2:0, and the header shared by streams of one quality."""

import struct
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image

from mrdc._utils.errors import ImageError
from mrdc.codec.base import PillowCodec
from mrdc.codec.image import Pixels, segments, simplejpeg, upright

END = b"\xff\xd9"
BASELINE, PROGRESSIVE, SCAN, ADOBE = 0xC0, 0xC2, 0xDA, 0xEE  # markers
FRAMES = (BASELINE, PROGRESSIVE)
_version = cache(version)


def split(stream: bytes) -> tuple[bytes, bytes]:
    """Split a JPEG stream into (tables, body); `join` undoes it exactly.

    The tables are everything before the scan, or up to the frame header of a progressive stream,
    with height and width set to zero so that images of all sizes share them; the body is those
    four bytes and the rest. Any other stream comes back as (b"", stream).
    """
    size = None
    for marker, start, after in segments(stream):
        if marker in FRAMES:
            size = start + 5
        if marker in (PROGRESSIVE, SCAN):
            if size is None or not stream.endswith(END):
                break
            tables = stream[:size] + bytes(4) + stream[size + 4 : after]
            return tables, stream[size : size + 4] + stream[after:-2]
    return b"", stream


def join(tables: bytes, body: bytes) -> bytes:
    """Restore the JPEG stream of a body stored without its tables."""
    size = _size_position(tables)
    return tables[:size] + body[:4] + tables[size + 4 :] + body[4:] + END


def is_header(tables: bytes) -> bool:
    """Whether `join` can use these bytes."""
    return any(marker in FRAMES for marker, *_ in segments(tables))


@lru_cache(maxsize=256)
def _size_position(tables: bytes) -> int:
    found = (start + 5 for marker, start, _ in segments(tables) if marker in FRAMES)
    return next(found, len(tables))


def plain_sides(stream: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG that any decoder reads alike: baseline, YCbCr, upright.

    None for any other stream.
    """
    frame = b""
    for marker, start, end in segments(stream) if upright(stream) else ():
        block = stream[start + 4 : end]
        if marker == ADOBE and block[:5] == b"Adobe" and block[-1] != 1:
            return None  # RGB or CMYK
        if marker == BASELINE:
            frame = block
        if marker == SCAN:
            break
    if len(frame) != 15 or frame[6::3] == b"RGB":  # three channels
        return None
    bits, height, width = struct.unpack(">BHH", frame[:5])
    return (height, width) if bits == 8 and height and width else None


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
        if simplejpeg is None:
            return super().encoder
        return f"simplejpeg {_version('simplejpeg')} (libjpeg-turbo)"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "subsampling": "4:2:0"}

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        if simplejpeg is None:
            return super().encode(image, quality)
        self._check(image, quality)
        pixels = np.ascontiguousarray(image)
        try:
            return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))
        except ValueError as error:  # a side over 65,535 pixels
            raise ImageError(f"cannot be written as {self.name}: {error}") from None

    def tables(self, quality: int | None) -> bytes:
        return split(self.encode(np.zeros((8, 8, 3), np.uint8), quality))[0]
