"""How much longer does `pack` take than reading, decoding and encoding alone?

Fixed quality, random choice, everything fits, same threads, warm page cache.
The stages of `pack` are also timed separately: listing the folder, encoding into
the spool (hashing, duplicates), and saving (hashing again, fsync).
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from common import as_jpeg, compare, emit, machine, made_up, options, race
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.data import open_images
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.pack import run_pack
from mrdc.planning.settings import PackSettings

IMAGES, CLASSES, REPEATS, QUALITY, THREADS, BUDGET = 3000, 30, 7, 50, 2, "100GB"


def write_photos(folder: Path) -> Path:
    """Write synthetic photos to class folders."""
    for number, pixels in enumerate(made_up(IMAGES)):
        path = folder / f"class_{number % CLASSES:03d}" / f"photo_{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_jpeg(pixels))
    return folder


def bare(files: list[Path]) -> int:
    """Read, decode and encode; nothing is kept."""

    def encoded(path: Path) -> int:
        return len(CODECS["jpeg"].encode(decode(path.read_bytes()), QUALITY))

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(encoded, files))


def stages(photos: Path, output: Path) -> Iterator[tuple[str, float]]:
    """Seconds of each stage of `pack`, one after the other."""
    start = time.perf_counter()
    images = open_images(photos)
    yield "listing", time.perf_counter() - start
    memory = ReplayMemory(BUDGET, quality=QUALITY, spool=output.parent)
    start = time.perf_counter()
    memory.add(dict(enumerate(images.photos)), threads=THREADS)
    yield "adding", time.perf_counter() - start
    start = time.perf_counter()
    memory.save(output)
    yield "saving", time.perf_counter() - start


def main() -> None:
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        photos = args.photos or write_photos(Path(name, "photos"))
        files = sorted(path for path in photos.rglob("*") if path.is_file())
        output = Path(name, "memory.mrdc")
        settings = PackSettings(
            photos,
            BUDGET,
            qualities=(QUALITY,),
            select="random_choice",
            cache=False,
            threads=THREADS,
            output=output,
            force=True,
        )
        bare(files)  # warms the page cache
        times = race(REPEATS, pack=partial(run_pack, settings), bare=partial(bare, files))
        parts = [dict(stages(photos, output)) for _ in range(3)]
        best = {f"{part}_ms": 1e3 * min(each[part] for each in parts) for part in parts[0]}
    figures = compare(times, "pack", "bare")
    shape = {"images": len(files), "quality": QUALITY, "threads": THREADS}
    emit("pack", label=args.label, **shape, **best, **figures, **machine())


if __name__ == "__main__":
    main()
