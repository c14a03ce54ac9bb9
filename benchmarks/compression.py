"""What do codecs make of the same photos: bytes as stored, fidelity, and time on one thread?"""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from common import Pixels, Row, emit, machine, options, sources
from mrdc.codec import CODECS, Codec
from mrdc.codec.headers import split
from mrdc.codec.image import decode

IMAGES = 100
CANDIDATES = {
    "jpeg": (50, 25, 10, 5),
    "jpeg-optimised": (10, 5),
    "jpeg2000": (50, 25),
    "webp": (50, 10, 2),
    "avif": (50, 35, 25, 15, 10, 5),
}

T = TypeVar("T")


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Result of a function, and its CPU time in seconds."""
    start = time.process_time()
    found = function()
    return found, time.process_time() - start


def stored(codec: Codec, quality: int, stream: bytes) -> int:
    """Bytes of an image in a memory, without the header that all of them share."""
    header, body = split(stream)
    return len(body if header and header == codec.tables(quality) else stream)


def psnr(one: Pixels, other: Pixels) -> float:
    """Peak signal-to-noise ratio in decibels."""
    return float(10 * np.log10(255**2 / np.square(one.astype(float) - other).mean()))


def measure(codec: Codec, quality: int, images: list[Pixels]) -> Row:
    """Bytes, fidelity and milliseconds of one image, on average."""
    codec.encode(images[0], quality)  # the first call loads the encoder
    streams, encoding = timed(lambda: [codec.encode(image, quality) for image in images])
    back, decoding = timed(lambda: [codec.decode(stream) for stream in streams])
    return {
        "codec": codec.name,
        "quality": quality,
        "bytes": round(float(np.mean([stored(codec, quality, stream) for stream in streams])), 1),
        "psnr": round(float(np.mean([psnr(*pair) for pair in zip(images, back, strict=True)])), 2),
        "encode_ms": round(1e3 * encoding / len(images), 3),
        "decode_ms": round(1e3 * decoding / len(images), 3),
    }


def main() -> None:
    args = options(__doc__).parse_args()
    images = [decode(data) for data in sources(args.photos, IMAGES)]
    rows = [
        measure(CODECS.find(name), quality, images)
        for name, qualities in CANDIDATES.items()
        for quality in qualities
    ]
    emit("compression", label=args.label, images=len(images), candidates=rows, **machine())


if __name__ == "__main__":
    main()
