"""Export a memory file as a folder of images, a WebDataset tar or a COCO data set."""

import csv
import io
import itertools
import json
import os
import re
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mrdc._utils import stores
from mrdc._utils.errors import MemoryFileError, OutputError, UsageError
from mrdc._utils.files import (
    Opened,
    beside,
    check_folder,
    check_name,
    output_errors,
    sweep,
    try_lock,
    whole_file,
)
from mrdc._utils.store_path import StorePath
from mrdc._utils.text import harmless
from mrdc.codec.image import decode
from mrdc.data.scenes import Boxes
from mrdc.memory.stored import StoredMemory
from mrdc.memory.values import unpack

Format = Literal["folder", "webdataset", "coco"]
Advance = Callable[[int], None]  # called with 1 after each image
KINDS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"\0\0\0\x0cjP": "jp2",
    b"\xff\x4f\xff\x51": "jp2",
    **dict.fromkeys([b"P1", b"P4"], "pbm"),
    **dict.fromkeys([b"P2", b"P5"], "pgm"),
    **dict.fromkeys([b"P3", b"P6"], "ppm"),
}


def export(
    memory: StoredMemory,
    output: Path,
    format: Format | None = None,
    progress: Advance = lambda count: None,
) -> int:
    """Write every image, as it is stored, to its own file, and return how many there are.

    Shrunk images stay small: the manifest or the JSON gives their scale, and boxes are scaled.
    The default format is webdataset if the output ends in .tar, coco for images with
    boxes, and folder otherwise. An error leaves no partial output, and what killed processes
    have left is removed.
    """
    check_name(output)
    sweep(output)
    if output.exists() or output.is_symlink():
        raise OutputError(f"{output}: exists already; choose a new path")
    check_folder(output)
    plain = "coco" if memory.box_classes else "folder"
    writers = {"folder": _folder, "webdataset": _webdataset, "coco": _coco}
    write = writers[format or ("webdataset" if output.suffix == ".tar" else plain)]
    write(memory, output, progress)
    return len(memory)


class Exported(NamedTuple):
    """An image, and what a memory records about it."""

    number: int  # from 0
    stream: bytes
    label: int
    rank: int
    source: str
    scale: float
    boxes: list[list[float]]  # in the pixels of the stored file
    values: bytes

    @property
    def kind(self) -> str:
        """File extension."""
        return extension(self.stream)


def _images(memory: StoredMemory, progress: Advance) -> Iterator[Exported]:
    """Every image, in order, checked."""
    ranks: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)
    for first, file in memory.files():
        boxes, labels = file.boxes, file.arrays["labels"]
        for row, source in enumerate(file.names):
            if not file.intact(row):
                raise MemoryFileError(
                    f"{file.path}: image {row} does not match its SHA-256: damaged"
                )
            label, scale = int(labels[row]), file.scale(row)
            own = in_file(boxes[row], scale) if boxes else []
            about = (label, next(ranks[label]), source, scale, own, file.values(row))
            yield Exported(first + row, file.stream(row), *about)
            progress(1)


def extension(stream: bytes) -> str:
    """File extension of encoded bytes."""
    if stream[:4] == b"RIFF" and stream[8:12] == b"WEBP":
        return "webp"
    if stream[4:8] == b"ftyp":
        return "avif"
    return next((kind for start, kind in KINDS.items() if stream.startswith(start)), "bin")


def safe_names(names: list[str]) -> list[str]:
    """Turn names into safe, distinct file names.

    Letters, digits, space, dot, dash and underscore stay; other characters become
    underscores. A name that changes or is taken gets a number.
    """
    taken = {"manifest.csv"}
    safe: list[str] = []
    for position, name in enumerate(names):
        plain = re.sub(r"[^\w .-]", "_", name).strip(" .").encode()[:100].decode(errors="ignore")
        numbered = (f"{number:04d}_{plain}" for number in itertools.count(position))
        wanted = itertools.chain([plain] if plain == name != "" else [], numbered)
        free = next(choice for choice in wanted if choice.casefold() not in taken)
        taken.add(free.casefold())
        safe.append(free)
    return safe


def in_file(boxes: Boxes, scale: float) -> list[list[float]]:
    """Boxes in the pixels of an exported file, which may have been shrunk."""
    return [[*(scale * side for side in sides), label] for *sides, label in boxes.tolist()]


@contextmanager
def _whole_folder(output: Path, last: str) -> Iterator[Path]:
    """Make a folder that appears under its name only when it is complete.

    In an object store, the file `last` appears when all others are there.
    """
    if isinstance(output, StorePath):
        send = partial(_put_folder, url=str(output), last=last)
        with stores.staged(str(output), send) as local, _whole_folder(local, last) as folder:
            yield folder
        return
    with output_errors(output):
        temporary = beside(output.absolute())
        try:
            temporary.mkdir()
            with closing(Opened(temporary)) as opened:
                try_lock(opened)  # until it is complete, so that `sweep` knows it is being written
                yield temporary
                temporary.rename(output)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _put_folder(folder: Path, url: str, last: str) -> None:
    files = (path for path in folder.rglob("*") if path.is_file())
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    stores.put_files(folder, [*(name for name in names if name != last), last], url)


def _folder(memory: StoredMemory, output: Path, progress: Advance) -> None:
    names = memory.class_names
    folders = dict(zip(names, safe_names(list(names.values())), strict=True))
    with _whole_folder(output, "manifest.csv") as folder:
        manifest = folder / "manifest.csv"
        with manifest.open("w", newline="", encoding="utf-8", errors="replace") as listing:
            writer = csv.writer(listing)
            writer.writerow(["file", "label", "class", "rank", "source", "scale"])
            for image in _images(memory, progress):
                label, rank = image.label, image.rank
                target = folder / folders[label] / f"{rank:06d}.{image.kind}"
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(image.stream)
                relative, scale = target.relative_to(folder).as_posix(), f"{image.scale:g}"
                writer.writerow(
                    [relative, label, harmless(names[label]), rank, harmless(image.source), scale]
                )


def _webdataset(memory: StoredMemory, output: Path, progress: Advance) -> None:
    names = memory.class_names
    with whole_file(output) as target, tarfile.open(fileobj=target, mode="w") as tar:
        for image in _images(memory, progress):
            about: dict[str, Any] = {"class": names[image.label], "rank": image.rank}
            about |= {"source": image.source}
            about |= {"scale": image.scale} if image.scale != 1 else {}
            about |= {"boxes": image.boxes} if memory.box_classes else {}
            values = unpack(image.values)
            about |= {"values": values} if values else {}
            text = json.dumps(about, default=lambda array: array.tolist())
            label = str(image.label).encode()
            parts = {image.kind: image.stream, "cls": label, "json": text.encode()}
            for suffix, data in parts.items():
                entry = tarfile.TarInfo(f"{image.number:08d}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def _coco(memory: StoredMemory, output: Path, progress: Advance) -> None:
    """Write images/ and annotations.json; category ids are labels + 1."""
    if not memory.box_classes:
        raise UsageError(
            f"{memory.path}: the images have no boxes, which format coco needs; choose folder or "
            "webdataset"
        )
    sources = [os.path.splitext(name)[0] for _, file in memory.files() for name in file.names]
    names = safe_names(sources)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    with _whole_folder(output, "annotations.json") as folder:
        (folder / "images").mkdir()
        for image in _images(memory, progress):
            number, name = image.number + 1, f"{names[image.number]}.{image.kind}"
            (folder / "images" / name).write_bytes(image.stream)
            height, width, _ = decode(image.stream, image.source).shape
            images.append({"id": number, "file_name": name, "width": width, "height": height})
            annotations += [
                {
                    "id": box,
                    "image_id": number,
                    "category_id": int(label) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": 0,
                }
                for box, (left, top, right, bottom, label) in enumerate(
                    image.boxes, len(annotations) + 1
                )
            ]
        classes = enumerate(memory.box_classes, start=1)
        data = {
            "info": {"description": f"images and boxes of {memory.path.name}, written by mrdc"},
            "images": images,
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in classes],
        }
        (folder / "annotations.json").write_text(json.dumps(data))
