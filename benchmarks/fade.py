"""How good is a progressive JPEG after some scans are cut, and how fast does it decode?"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from common import Times, compare, emit, in_processes, machine, options, race, sources
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels, decode
from mrdc.codec.jpeg_progressive import SCANS, JpegProgressive, cut
from mrdc.memory.fade import mean_scans
from mrdc.memory.replay import ReplayMemory

IMAGES, QUALITY, REPEATS, PROCESSES = 240, 75, 5, 5
DIRECT = (10, 15, 20, 25, 30, 40, 50, 60, 75)  # qualities to compare with
CODEC = CODECS[JpegProgressive.name]
BUDGET, STEP = 1_000_000, 3  # bytes for all classes, and classes that arrive together
POLICIES = (("drop", CODEC.name, 75), ("fade", CODEC.name, 75), ("direct", "jpeg", 20))


def psnr(image: Pixels, other: Pixels) -> float:
    """Peak signal-to-noise ratio in decibels."""
    error = np.square(image.astype(float) - other).mean()
    return 10 * math.log10(255**2 / max(error, 1e-9))


def report(what: str, images: Sequence[Pixels], streams: Sequence[bytes], **about: object) -> None:
    """Emit mean bytes and PSNR of encoded images."""
    pairs = zip(images, streams, strict=True)
    emit(
        "fade",
        what=what,
        images=len(images),
        mean_bytes=float(np.mean([len(stream) for stream in streams])),
        psnr=float(np.mean([psnr(image, decode(stream)) for image, stream in pairs])),
        **about,
        **machine(),
    )


def pixels(photos: Path | None) -> list[Pixels]:
    return [decode(data) for data in sources(photos, IMAGES)]


def decoding(photos: Path | None) -> Times:
    """Seconds to decode baseline JPEG and files cut to 5 or more scans, at the same quality."""
    images = pixels(photos)
    whole = [CODEC.encode(image, QUALITY) for image in images]
    streams = {f"scans_{k}": [cut(stream, k) for stream in whole] for k in range(5, SCANS + 1)}
    streams["baseline"] = [CODECS["jpeg"].encode(image, QUALITY) for image in images]

    def run(data: list[bytes]) -> None:
        for stream in data:
            decode(stream)

    return race(REPEATS, **{name: partial(run, data) for name, data in streams.items()})


def held(photos: Path, label: str) -> None:
    """Emit what a memory of fixed size holds as classes arrive, by policy."""
    classes = [sorted(folder.iterdir()) for folder in sorted(photos.iterdir())]
    for policy, codec, quality in POLICIES:
        memory = ReplayMemory(BUDGET, codec, quality, fade=policy == "fade")
        for first in range(0, len(classes), STEP):
            arriving = range(first, min(first + STEP, len(classes)))
            memory.add({number: classes[number] for number in arriving})
            names = [name for number in memory.labels for name in memory.sources(number)]
            pairs = [(decode(Path(name).read_bytes()), n) for n, name in enumerate(names)]
            values = [psnr(image, decode(memory.encoded(n))) for image, n in pairs]
            scans = memory.scans()
            emit(
                "fade",
                what="held",
                policy=policy,
                codec=codec,
                quality=quality,
                budget=BUDGET,
                classes=len(memory.labels),
                items=len(memory),
                scans=mean_scans(scans) if scans else None,
                psnr=float(np.mean(values)),
                label=label,
                **machine(),
            )


def main() -> None:
    args = options(__doc__).parse_args()
    if args.photos is not None:
        held(args.photos, args.label)
    images = pixels(args.photos)
    about = {"label": args.label}
    whole = [CODEC.encode(image, QUALITY) for image in images]
    for scans in range(1, SCANS + 1):
        report("cut", images, [cut(s, scans) for s in whole], quality=QUALITY, scans=scans, **about)
    for quality in DIRECT:
        for name in ("jpeg", "jpeg-optimised", CODEC.name):
            streams = [CODECS[name].encode(image, quality) for image in images]
            report("direct", images, streams, codec=name, quality=quality, **about)
    decoded = [decode(CODECS["jpeg"].encode(image, QUALITY)) for image in images]
    again = [CODECS["jpeg"].encode(image, 50) for image in decoded]
    report("again", images, again, codec="jpeg", quality=50, **about)
    times = in_processes(PROCESSES, partial(decoding, args.photos))
    for scans in range(5, SCANS + 1):
        name = f"scans_{scans}"
        part = {key: times[key] for key in (name, "baseline")}
        figures = compare(part, name, "baseline")
        ratios = {key: figures[key] for key in ("ratio", "ratio_median")}
        emit("fade", what="decode", scans=scans, quality=QUALITY, **about, **ratios, **machine())


if __name__ == "__main__":
    main()
