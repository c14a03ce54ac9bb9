"""AVIF, lossy, and the header shared by its files."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mrdc.codec.base import PillowCodec

INSIDE = {b"meta": 4, b"iprp": 0, b"ipco": 0}  # bytes before the boxes inside a box


class Fields(NamedTuple):
    """Where a header says what differs from image to image."""

    length: int  # bytes of the picture, 4 bytes
    sides: int  # width and height, 4 bytes each
    level: int  # of AV1, which grows with the size, in one byte


def split(stream: bytes) -> tuple[bytes, bytes]:
    """Split an AVIF file into (header, body); `join` undoes it exactly.

    The header is everything before the picture, with the picture's sides, level and length set to
    zero so that images of all sizes share it. The body is width and height (two bytes each), level
    (one byte) and picture. Any other file comes back as (b"", stream).
    """
    end = next((start for kind, start, _ in _boxes(stream) if kind == b"mdat"), 0)
    at = fields(stream[:end])
    if at is None:
        return b"", stream
    header = bytearray(stream[:end])
    width, height = (stream[at.sides + side + 2 : at.sides + side + 4] for side in (0, 4))
    body = width + height + stream[at.level : at.level + 1] + stream[end + 8 :]
    header[at.length : at.length + 4] = bytes(4)
    header[at.sides : at.sides + 8] = bytes(8)
    header[at.level] = 0
    return (bytes(header), body) if join(bytes(header), body) == stream else (b"", stream)


def join(header: bytes, body: bytes) -> bytes:
    """Restore the AVIF file of a body stored without its header."""
    at, whole, picture = fields(header), bytearray(header), body[5:]
    assert at is not None
    whole[at.length : at.length + 4] = len(picture).to_bytes(4)
    whole[at.sides : at.sides + 8] = bytes(2) + body[:2] + bytes(2) + body[2:4]
    whole[at.level : at.level + 1] = body[4:5]
    return bytes(whole) + (len(picture) + 8).to_bytes(4) + b"mdat" + picture


@lru_cache(maxsize=256)
def fields(header: bytes) -> Fields | None:
    """The places of what differs between images; None if this is no AVIF header of one picture."""
    found = {kind: (start, end) for kind, start, end in _boxes(header)}
    if not {b"ftyp", b"iloc", b"ispe", b"av1C"} <= found.keys():
        return None
    at = Fields(found[b"iloc"][1] - 4, found[b"ispe"][0] + 12, found[b"av1C"][0] + 9)
    return at if max(at.length + 4, at.sides + 8, at.level + 1) <= len(header) else None


def _boxes(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of every box, those inside others included."""
    start = 0
    while start + 8 <= len(data):
        size, kind = int.from_bytes(data[start : start + 4]), data[start + 4 : start + 8]
        if size < 8:
            return
        yield kind, start, start + size
        start += 8 + INSIDE[kind] if kind in INSIDE else size


class Avif(PillowCodec):
    """Small files at low qualities; slow to encode."""

    name = "avif"
    format, feature = "AVIF", "avif"
    considered = (5, 15, 25, 35, 50, 75)  # 5 is about as faithful as JPEG 10; 90 saves nothing

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "speed": 6, "subsampling": "4:2:0", "max_threads": 1}

    def tables(self, quality: int | None) -> bytes:
        return split(self.encode(np.zeros((8, 8, 3), np.uint8), quality))[0]
