"""What does a reservoir take beside encoding, and does that grow with the images it holds?"""

import time
from functools import partial
from statistics import mean

import numpy as np

from common import emit, machine, options, sources
from mrdc import ReplayMemory
from mrdc.codec.image import decode
from mrdc.data.photo import Photo
from mrdc.memory.encode import Arrival, Encoder

BATCH, CLASSES, HELD, TIMED = 10, 10, (1000, 4000, 16000), 50


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quality", type=int, default=50)
    given = parser.parse_args()
    images = [decode(data) for data in sources(given.photos, 100)]
    memory = ReplayMemory("100GB", "jpeg", given.quality)
    encode = Encoder(memory.codec, memory.quality, packed=True)

    def batch(start: int) -> list[Photo]:
        places = range(start, start + BATCH)
        return [  # shifted by a pixel more each time, so that none is a duplicate
            Photo(f"{n}", partial(np.roll, images[n % len(images)], n // len(images), axis=1))
            for n in places
        ]

    start = 0
    for held in HELD:
        offering, encoding = list[float](), list[float]()
        while start < held:
            photos, labels = batch(start), [n % CLASSES for n in range(start, start + BATCH)]
            begin = time.perf_counter()
            memory.reservoir(photos, labels, threads=1)
            middle = time.perf_counter()
            if start >= held - TIMED * BATCH:
                for photo in photos:
                    encode(Arrival(photo))
                offering.append(middle - begin)
                encoding.append(time.perf_counter() - middle)
            start += BATCH
        emit(
            "reservoir",
            label=given.label,
            held=len(memory),
            bytes=memory.nbytes,
            batch=BATCH,
            classes=CLASSES,
            ms=1e3 * mean(offering) / BATCH,
            encoding_ms=1e3 * mean(encoding) / BATCH,
            ratio=mean(offering) / mean(encoding),
            **machine(),
        )


if __name__ == "__main__":
    main()
