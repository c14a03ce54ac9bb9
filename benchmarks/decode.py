"""How much faster are stored JPEGs decoded than by Pillow, on one thread?"""

import io
from collections.abc import Callable

import numpy as np
import simplejpeg
from PIL import Image

from common import compare, emit, machine, options, race, sources
from mrdc.codec import CODECS
from mrdc.image import Pixels, decode

IMAGES, REPEATS, QUALITY = 400, 15, 50


def pillow(data: bytes) -> Pixels:
    """What a data set usually does."""
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def bare(data: bytes) -> Pixels:
    """The decoder alone, without our checks."""
    pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    return pixels


def main() -> None:
    args = options(__doc__).parse_args()
    encode = CODECS["jpeg"].encode
    streams = [encode(decode(data), QUALITY) for data in sources(args.photos, IMAGES)]

    def each(function: Callable[[bytes], Pixels]) -> Callable[[], None]:
        def run() -> None:
            for stream in streams:
                function(stream)

        return run

    times = race(REPEATS, pillow=each(pillow), mrdc=each(decode), bare=each(bare))
    emit(
        "decode",
        images=len(streams),
        label=args.label,
        mean_bytes=sum(map(len, streams)) / len(streams),
        quality=QUALITY,
        same_pixels=all(np.array_equal(decode(s), pillow(s)) for s in streams),
        **compare(times, "pillow", "mrdc"),
        **machine(),
    )


if __name__ == "__main__":
    main()
