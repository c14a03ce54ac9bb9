"""Make a working copy of a folder of full-size photos, small enough for benchmarks.

`python benchmarks/resize.py SOURCE TARGET` copies a tree of images as JPEG files of quality 90
with the same names. The short side becomes 256 px (nothing is enlarged); the aspect ratio is kept.
Existing copies are kept, so an interrupted copy can be resumed.
"""

import argparse
import os
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from PIL import Image, ImageOps

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}

Job = tuple[Path, Path]  # a photo and its copy


def shrink(photo: Image.Image, side: int) -> Image.Image:
    """Upright and in colour, with a short side of at most `side` pixels."""
    upright = ImageOps.exif_transpose(photo).convert("RGB")
    scale = side / min(upright.size)
    if scale >= 1:
        return upright
    width, height = (max(side, round(length * scale)) for length in upright.size)
    return upright.resize((width, height), Image.Resampling.LANCZOS)


def copy(job: Job, side: int, quality: int) -> None:
    """Write one copy, under a temporary name until it is complete."""
    source, target = job
    part = target.with_suffix(".part")
    with Image.open(source) as photo:
        small = shrink(photo, side)
    target.parent.mkdir(parents=True, exist_ok=True)
    small.save(part, "JPEG", quality=quality, subsampling="4:2:0", comment=b"")
    os.replace(part, target)


def open_jobs(source: Path, target: Path) -> Iterator[Job]:
    """The photos of a tree that have no copy yet.

    Raises:
        SystemExit: two photos would have the same copy.
    """
    photos = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    copies = [target / photo.relative_to(source).with_suffix(".jpg") for photo in photos]
    if len(set(copies)) < len(copies):
        raise SystemExit(f"{source} has photos whose names differ only in their suffix")
    return (job for job in zip(photos, copies, strict=True) if not job[1].exists())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of photos, nested or not")
    parser.add_argument("target", type=Path, help="folder for the copies")
    parser.add_argument("--side", type=int, default=256, help="short side in pixels")
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    work = partial(copy, side=chosen.side, quality=chosen.quality)
    jobs = open_jobs(chosen.source, chosen.target)
    with Pool(chosen.jobs) as pool:
        made = sum(1 for _ in pool.imap_unordered(work, jobs, chunksize=16))
    sizes = [path.stat().st_size for path in chosen.target.rglob("*.jpg")]
    print(f"{made} new, {len(sizes)} in all, {sum(sizes) / max(1, len(sizes)):,.0f} bytes each")


if __name__ == "__main__":
    main()
