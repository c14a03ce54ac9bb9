"""How much faster do we decode stored JPEGs than Pillow does, on one thread?"""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from common import Times, compare, emit, in_processes, machine, options, race, sources
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels, decode

IMAGES, REPEATS, PROCESSES, QUALITY = 400, 5, 7, 50


def pillow(data: bytes) -> Pixels:
    """The usual way to decode in a data set."""
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def bare(data: bytes) -> Pixels:
    """The decoder alone, without our checks."""
    pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    return pixels


def streams(photos: Path | None) -> list[bytes]:
    """JPEGs as a memory stores them."""
    return [CODECS["jpeg"].encode(decode(data), QUALITY) for data in sources(photos, IMAGES)]


def measure(photos: Path | None) -> Times:
    """Seconds per pass over all images, by decoder."""
    data = streams(photos)

    def each(function: Callable[[bytes], Pixels]) -> Callable[[], None]:
        def run() -> None:
            for stream in data:
                function(stream)

        return run

    return race(REPEATS, pillow=each(pillow), mrdc=each(decode), bare=each(bare))


def main() -> None:
    args = options(__doc__).parse_args()
    data = streams(args.photos)
    emit(
        "decode",
        images=len(data),
        label=args.label,
        mean_bytes=sum(map(len, data)) / len(data),
        quality=QUALITY,
        same_pixels=all(np.array_equal(decode(s), pillow(s)) for s in data),
        **compare(in_processes(PROCESSES, partial(measure, args.photos)), "pillow", "mrdc"),
        **machine(),
    )


if __name__ == "__main__":
    main()
