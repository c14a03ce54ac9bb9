"""Progressive JPEG: files whose scans can be cut from the end.

A progressive JPEG holds an image as ten scans, coarse to fine. Without its last scans it is still
an image, with about the bytes and the quality of a direct encode at a lower quality, and nothing
is encoded again. An APP9 segment has a checksum for each scan, so that a cut file can be checked
against what was written.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from PIL import Image

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec.base import PillowCodec
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import END, split
from mrdc.codec.scaled import split_scale

ORIGINAL = "original"  # the codec of source files, which never fade
SCANS = 10  # of a file that was not cut
LEAST_SCANS = 5  # below, a direct encode of the same bytes is better
SEAL = b"\xff\xe9\x00\x2fmrdc\0"  # followed by the checksums, four bytes for each scan
START, FRAME, SCAN, LAST = 0xD8, 0xC2, 0xDA, 0xD9  # markers
MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]", re.DOTALL)  # stuffed bytes and restarts are not


class JpegProgressive(PillowCodec):
    """Progressive JPEG, 4:2:0: smaller than plain JPEG, slower to decode; a memory can fade it."""

    name = "jpeg-progressive"
    format = "JPEG"
    feature = "libjpeg_turbo"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "subsampling": "4:2:0", "progressive": True}

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        return _sealed(super().encode(image, quality))

    def tables(self, quality: int | None) -> bytes:
        return split(self.encode(np.zeros((8, 8, 3), np.uint8), quality))[0]


def has_scans(codec: str) -> bool:
    """True for this codec, with or without a scale."""
    return split_scale(codec)[0] == JpegProgressive.name


def check_fade(codecs: Iterable[str], what: str) -> None:
    """Refuse codecs that a memory cannot fade; `what` is the option that asks for it.

    Raises:
        UsageError: a codec other than this one, or originals.
    """
    for codec in codecs:
        if codec != ORIGINAL and not has_scans(codec):
            name = JpegProgressive.name
            raise UsageError(f"{what} cuts scans of codec {name}, which {codec} does not have")


def scan_ends(stream: bytes) -> list[int]:
    """Position after each scan of a progressive JPEG.

    Raises:
        ImageError: not a whole progressive JPEG.
    """
    found = list(_markers(stream))
    kinds = [marker for marker, _, _ in found]
    if kinds[:1] != [START] or FRAME not in kinds or SCAN not in kinds or kinds[-1] != LAST:
        raise ImageError("not a whole progressive JPEG")
    return [end for marker, _, end in found if marker == SCAN]


def cut(stream: bytes, scans: int) -> bytes:
    """A progressive JPEG with its first `scans` scans, or all if it has fewer.

    Raises:
        UsageError: less than one scan.
        ImageError: not a whole progressive JPEG.
    """
    if scans < 1:
        raise UsageError(f"scans must be at least 1, got {scans}")
    ends = scan_ends(stream)
    return stream if scans >= len(ends) else stream[: ends[scans - 1]] + END


def seal(stream: bytes) -> bytes:
    """The checksums of all scans that a file was written with; empty if it has none."""
    start = stream.find(SEAL)
    return stream[start + len(SEAL) :][: 4 * SCANS] if start >= 0 else b""


def scans_intact(stream: bytes) -> bool:
    """Check the scans of a file, cut or not, against the checksums written with it."""
    try:
        ends, start = scan_ends(stream), stream.find(SEAL)
    except ImageError:
        return False
    if not 0 <= start < ends[0]:
        return False
    after = start + len(SEAL) + 4 * SCANS
    return seal(stream).startswith(_checksums(stream[:start], after, stream, ends))


def _sealed(stream: bytes) -> bytes:
    """Add the segment with the checksums of all scans, after the frame header."""
    place = next(end for marker, _, end in _markers(stream) if marker == FRAME)
    ends = scan_ends(stream)
    if len(ends) != SCANS:
        raise UsageError(
            f"codec {JpegProgressive.name} needs an encoder that writes {SCANS} scans, as "
            f"libjpeg-turbo does; this Pillow writes {len(ends)}"
        )
    sums = _checksums(stream[:place], place, stream, ends)
    return stream[:place] + SEAL + sums + stream[place:]


def _checksums(head: bytes, start: int, stream: bytes, ends: list[int]) -> bytes:
    """CRC-32 of the header and the scans up to each scan, in order."""
    sums, running = b"", zlib.crc32(head)
    for end in ends:
        running = zlib.crc32(stream[start:end], running)
        sums, start = sums + running.to_bytes(4, "big"), end
    return sums


def _markers(stream: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of each segment, scans with their data; stops at the first fault."""
    place = 0
    while place + 2 <= len(stream) and stream[place] == 0xFF:
        marker, start = stream[place + 1], place
        place += 2
        if marker not in (START, LAST):
            place += max(2, int.from_bytes(stream[place : place + 2], "big"))
        if marker == SCAN:
            following = MARKER.search(stream, place)
            place = following.start() if following else len(stream) + 1
        if place > len(stream):
            return
        yield marker, start, place
        if marker == LAST:
            return
