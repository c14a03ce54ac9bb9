"""Makes a working copy of a folder of full-size photos, small enough to measure with.

`python benchmarks/resize.py SOURCE TARGET` copies a tree of images: the aspect is kept, the
short side becomes 256 px (nothing is enlarged), and every file a JPEG 90 of the same name.
What is there is left as it is, so a copy that was stopped goes on.
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
    """One copy; it bears its name only when it is whole."""
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
        SystemExit: two photos would have one copy.
    """
    photos = sorted(p for p in source.rglob("*") if p.suffix.lower() in SUFFIXES)
    copies = [target / photo.relative_to(source).with_suffix(".jpg") for photo in photos]
    if len(set(copies)) < len(copies):
        raise SystemExit(f"{source} has photos whose names differ in their endings alone")
    return (job for job in zip(photos, copies, strict=True) if not job[1].exists())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a folder of photos, in folders or not")
    parser.add_argument("target", type=Path, help="the folder of the copies")
    parser.add_argument("--side", type=int, default=256, help="short side in pixels")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEG files")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    work = partial(copy, side=chosen.side, quality=chosen.quality)
    jobs = open_jobs(chosen.source, chosen.target)
    with Pool(chosen.jobs) as pool:
        made = sum(1 for _ in pool.imap_unordered(work, jobs, chunksize=16))
    sizes = [path.stat().st_size for path in chosen.target.rglob("*.jpg")]
    print(f"{made} made, {len(sizes)} there, {sum(sizes) / max(1, len(sizes)):,.0f} bytes each")


if __name__ == "__main__":
    main()
