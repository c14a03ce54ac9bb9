"""Decoding of image files to RGB pixels.

Every image passes through `decode`: grey, palette, alpha, CMYK and 16-bit sources become RGB
uint8, and the EXIF orientation is applied.
"""

import importlib
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mrdc._utils.errors import ImageError

simplejpeg: Any
try:
    simplejpeg = importlib.import_module("simplejpeg")
except ImportError:  # Pillow decodes the same pixels, but slower
    simplejpeg = None

Pixels = NDArray[np.uint8]  # (height, width, 3), RGB

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "JPEG2000", "GIF", "BMP", "TIFF", "PPM")  # Pillow's names
MAX_PIXELS = 89_000_000  # a larger image is treated as a decompression bomb
MAX_BYTES = 6 * MAX_PIXELS  # of a file: three 16-bit channels, not compressed
MAX_SCANS = 100  # of a JPEG; each takes as long as decoding a plain one
IN_FLIGHT = 2 << 30  # bytes that all threads together may use for decoding
COPIES = 16  # bytes per pixel while Pillow's image becomes RGB, copies included
PLAIN_COPIES = 9  # bytes per pixel of a JPEG: its pixels, and its coefficients if progressive
NAMES = ("jpg", "jpeg", "png", "webp", "avif", "jp2", "gif", "bmp", "tif", "tiff", "pgm", "ppm")
EXTENSIONS = frozenset(f".{name}" for name in NAMES)
ORIENTATION = 0x0112  # tag
SIXTEEN_BIT = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})


def decode(data: bytes, name: str = "image") -> Pixels:
    """Decode an image file's bytes to upright RGB pixels; refusals begin with `name`."""
    if len(data) == 0:
        raise ImageError(f"{name}: the file is empty (0 bytes)")
    if data[:2] == b"\xff\xd8" and (scans := data.count(b"\xff\xda")) > MAX_SCANS:
        raise ImageError(f"{name}: a JPEG with {scans} scans; at most {MAX_SCANS} are allowed")
    fast = _decode_plain_jpeg(data, name)
    if fast is not None:
        return fast
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            check_pixels(*image.size, name)
            with _room.take(COPIES * image.width * image.height):
                return _rgb(ImageOps.exif_transpose(image), name)
    except ImageError:
        raise
    except UnidentifiedImageError:
        known = "JPEG, PNG, WebP, AVIF, JPEG 2000, GIF, BMP, TIFF, PPM"
        raise ImageError(f"{name}: not an image file mrdc can read ({known})") from None
    except Image.DecompressionBombError:
        raise ImageError(_too_large(name, "hundreds of millions of")) from None
    except Exception as error:  # Pillow's plug-ins raise many kinds
        raise ImageError(f"{name}: the image is damaged ({error})") from None


class Room:
    """Bounds the bytes that threads use at the same time; one alone may exceed the bound."""

    def __init__(self, limit: int):
        self.limit, self.used = limit, 0
        self.changed = threading.Condition()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait until there is room for `size` bytes, and use it."""
        with self.changed:
            self.changed.wait_for(lambda: self.used == 0 or self.used + size <= self.limit)
            self.used += size
        try:
            yield
        finally:
            with self.changed:
                self.used -= size
                self.changed.notify_all()


_room = Room(IN_FLIGHT)
if hasattr(os, "register_at_fork"):  # a thread may be using it
    os.register_at_fork(after_in_child=partial(_room.__init__, IN_FLIGHT))  # type: ignore[misc]


def upright(data: bytes) -> bool:
    """Check that a JPEG stream has no EXIF or XMP block that could rotate it."""
    known = False  # an EXIF block came before: several form one block
    for marker, start, end in segments(data):
        block = data[start + 4 : end] if marker == 0xE1 else b""
        if b"Orientation" in block or (block.startswith(b"Exif") and (known or turned(block))):
            return False
        known = known or block.startswith(b"Exif")
        if (0xC0 <= marker <= 0xCF and marker != 0xC4) or marker == 0xDA:
            return True
    return False


def turned(exif: bytes) -> bool:
    """Whether an EXIF block may rotate or mirror an image: True if it cannot be read."""
    tiff = exif[6:]
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"

    def number(place: int, count: int) -> int:
        return int.from_bytes(tiff[place : place + count], order)

    start = number(4, 4)
    entries = range(start + 2, start + 2 + 12 * number(start, 2), 12)
    if tiff[:2] not in (b"II", b"MM") or number(2, 2) != 42 or entries.stop > len(tiff):
        return True
    tags = {number(entry, 2): entry for entry in entries}
    return ORIENTATION in tags and number(tags[ORIENTATION] + 8, 2) != 1


def segments(stream: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of each segment of a JPEG stream."""
    start = 2
    while start + 4 <= len(stream) and stream[start] == 0xFF:
        end = start + 2 + int.from_bytes(stream[start + 2 : start + 4], "big")
        yield stream[start + 1], start, end
        start = end


def _decode_plain_jpeg(data: bytes, name: str) -> Pixels | None:
    """Decode with simplejpeg; None for a stream that needs Pillow."""
    if simplejpeg is None or data[:2] != b"\xff\xd8" or not upright(data):
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        check_pixels(width, height, name)
        if space not in ("YCbCr", "RGB", "Gray"):
            return None
        with _room.take(PLAIN_COPIES * width * height):
            pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
        return pixels
    except ImageError:
        raise
    except ValueError:  # Pillow may tolerate or explain the damage
        return None


def check_pixels(width: int, height: int, name: str) -> None:
    """Refuse an image that would take too much memory when decoded."""
    if width * height > MAX_PIXELS:
        raise ImageError(_too_large(name, f"{width} x {height} = {width * height:,}"))


def _too_large(name: str, size: str) -> str:
    return f"{name}: {size} pixels; at most {MAX_PIXELS:,} are allowed"


def from_pillow(image: Image.Image, name: str = "image") -> Pixels:
    """Upright RGB pixels of a Pillow image of any mode."""
    check_pixels(*image.size, name)
    try:
        return _rgb(ImageOps.exif_transpose(image), name)
    except ImageError:
        raise
    except Exception as error:  # Pillow's plug-ins raise many kinds, as the image may load now
        raise ImageError(f"{name}: the image is damaged ({error})") from None


def _rgb(image: Image.Image, name: str) -> Pixels:
    """Convert a Pillow image of any mode to RGB pixels, alpha over white."""
    if image.mode in SIXTEEN_BIT:
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ImageError(f"{name}: values outside 0..65535; save it with 8 or 16 bits")
        if 0 < grey.max() < 256:  # as 16-bit values they would be black
            bits = "32-bit" if image.mode == "I" else "16-bit"
            raise ImageError(f"{name}: {bits} pixels up to {grey.max()}; save it with 8 bits")
        return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise ImageError(f"{name}: floating-point pixels; save it with 8 or 16 bits")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image.convert("RGBA"))
    return np.array(image.convert("RGB"))
