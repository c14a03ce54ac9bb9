"""`export`: the images of a memory file as a folder or a WebDataset tar."""

import csv
import io
import itertools
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from mrdc.errors import MemoryFileError, OutputError
from mrdc.store import MemoryFile, output_errors, umask, whole_file

Format = Literal["folder", "webdataset"]
KINDS = {
    b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"BM": "bmp", b"II*\0": "tif",
    b"MM\0*": "tif", b"\0\0\0\x0cjP": "jp2", b"\xff\x4f\xff\x51": "jp2", b"P5": "pgm", b"P6": "ppm",
}  # fmt: skip


def export(
    file: MemoryFile,
    output: Path,
    format: Format | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> int:
    """Write every image as a file of its own; how many there were.

    Without a format, a name that ends in .tar means webdataset.

    Raises:
        OutputError: the output exists or cannot be written; nothing is left of it.
        MemoryFileError: an image does not match its checksum.
    """
    if output.exists() or output.is_symlink():
        raise OutputError(f"{output}: exists already; name a new one")
    if not output.absolute().parent.is_dir():
        raise OutputError(f"{output}: there is no folder {output.parent}")
    if format is None:
        format = "webdataset" if output.suffix == ".tar" else "folder"
    writer = _folder if format == "folder" else _webdataset
    writer(file, output, progress)
    return len(file)


def _images(file: MemoryFile) -> Iterator[tuple[int, bytes, str, int, int, str]]:
    """Position, bytes, ending, label, rank and source of every image."""
    sources = file.sources
    for index in range(len(file)):
        stream = file.stream(index)
        if not file.intact(index):
            raise MemoryFileError(f"{file.path}: image {index} does not match its SHA-256: damaged")
        label, rank = (int(file.arrays[name][index]) for name in ("labels", "ranks"))
        yield index, stream, ending(stream), label, rank, sources[index]


def ending(stream: bytes) -> str:
    """The file ending that fits encoded bytes."""
    if stream[:4] == b"RIFF" and stream[8:12] == b"WEBP":
        return "webp"
    if stream[4:8] == b"ftyp":
        return "avif"
    return next((kind for start, kind in KINDS.items() if stream.startswith(start)), "bin")


def safe_names(names: list[str]) -> list[str]:
    """A distinct, harmless folder name for each class.

    Letters, digits, space, dot, dash and underscore stay, other characters
    become underscores; a name that is changed by this, or taken, gets a number.
    """
    taken = {"manifest.csv"}
    safe: list[str] = []
    for position, name in enumerate(names):
        plain = re.sub(r"[^\w .-]", "_", name).strip(" .")
        plain = plain.encode()[:100].decode(errors="ignore")
        numbered = (f"{number:04d}_{plain}" for number in itertools.count(position))
        wanted = itertools.chain([plain] if plain == name else [], numbered)
        free = next(choice for choice in wanted if choice.casefold() not in taken)
        taken.add(free.casefold())
        safe.append(free)
    return safe


def _folder(file: MemoryFile, output: Path, progress: Callable[[int], None]) -> None:
    classes = file.meta["classes"]
    folders = dict(
        zip((c["label"] for c in classes), safe_names([c["name"] for c in classes]), strict=True)
    )
    names = {c["label"]: c["name"] for c in classes}
    with output_errors(output):
        parent = output.absolute().parent
        temporary = Path(tempfile.mkdtemp(".tmp", f".{output.name}.", parent))
        try:
            manifest = temporary / "manifest.csv"
            with manifest.open("w", newline="", encoding="utf-8", errors="replace") as listing:
                writer = csv.writer(listing)
                writer.writerow(["file", "label", "class", "rank", "source"])
                for _, stream, kind, label, rank, source in _images(file):
                    relative = f"{folders[label]}/{rank:06d}.{kind}"
                    target = temporary / relative
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(stream)
                    writer.writerow([relative, label, names[label], rank, source])
                    progress(1)
            temporary.chmod(0o777 & ~umask())
            temporary.rename(output)
        except BaseException:
            shutil.rmtree(temporary)
            raise


def _webdataset(file: MemoryFile, output: Path, progress: Callable[[int], None]) -> None:
    names = {entry["label"]: entry["name"] for entry in file.meta["classes"]}
    with whole_file(output) as target, tarfile.open(fileobj=target, mode="w") as tar:
        for index, stream, kind, label, rank, source in _images(file):
            about = {"class": names[label], "rank": rank, "source": source}
            _put(tar, f"{index:08d}.{kind}", stream)
            _put(tar, f"{index:08d}.cls", str(label).encode())
            _put(tar, f"{index:08d}.json", json.dumps(about).encode())
            progress(1)


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
