"""WebDataset tars, read with a bound on everything that a file may claim.

A tar is a chain of headers with claims about sizes. Nothing is allocated because of a claim:
headers beyond 1 MB, sparse members, and members that reach beyond the file are refused.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mrdc._utils.errors import DataError
from mrdc._utils.text import printable, size
from mrdc.codec.image import EXTENSIONS
from mrdc.data.images import NOT_IMAGE, ImageSet, by_number, gather
from mrdc.data.photo import Photo, read_part

MAX_HEADER = 1 << 20  # bytes of an extended header: a long name, or attributes
MAX_CLASS = 4096  # bytes of a .cls
MAX_JSON = 1 << 20
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")  # compressed ones are refused


class Member(NamedTuple):
    """A regular file in a tar; its bytes lie within the tar."""

    name: str
    key: str  # the sample it belongs to: its name up to the first dot
    ending: str  # the rest, in lower case
    start: int
    size: int


def is_tar(path: Path) -> bool:
    """Check for a tar, by its name or its first header."""
    if path.name.lower().endswith(ENDINGS):
        return True
    with suppress(OSError), path.open("rb") as file:
        return file.read(512)[257:262] == b"ustar"
    return False


def read_tar(path: Path, prefix: str = "") -> ImageSet:
    """Open the samples of a tar: an image and a .cls with its class.

    Files belong to one sample if their names agree up to the first dot. A .json with a "class",
    as `export` writes it, gives the class a name; otherwise its name is the text of the .cls.
    Ids are the names of the images, after `prefix`.
    """
    images: dict[str, Member] = {}
    labels: dict[str, str] = {}
    names: dict[str, str] = {}
    ignored: list[str] = []
    with _opened(path) as file:
        for member in _members(path, file):
            key = member.key
            if f".{member.ending}" in EXTENSIONS:
                if key in images:
                    both = f"{images[key].name} and {member.name}"
                    raise DataError(f"{path}: two images for one sample: {both}")
                images[key] = member
            elif member.ending == "cls":
                labels[key] = _class_text(path, file, member)
            elif member.ending != "json":
                ignored.append(f"{prefix}{member.name}: {NOT_IMAGE}")
            elif member.size > MAX_JSON:
                ignored.append(f"{prefix}{member.name}: larger than {size(MAX_JSON)}")
            elif name := _class_name(_text(file, member)):
                names[key] = name
            else:
                ignored.append(f"{prefix}{member.name}: no class name in it")
    if not images:
        raise DataError(f"{path}: no image with a .cls file")
    entries = []
    for key, member in images.items():
        label = names.get(key, labels[key]) if key in labels else ""
        if not label:
            raise DataError(f"{path}: {member.name} has no .cls file with its class")
        name = prefix + member.name
        load = partial(read_part, str(path), name, member.start, member.size)
        entries.append((label, Photo(name, load), member.size))
    return gather(entries, sorted({label for label, _, _ in entries}, key=by_number), ignored)


class _Headers:
    """A tar as `tarfile` sees it: how far it reads and seeks is limited."""

    def __init__(self, file: BinaryIO, end: int):
        self._file, self._end = file, end
        self.tell = file.tell

    def seek(self, place: int) -> int:
        if not 0 <= place <= self._end:
            raise tarfile.ReadError(f"a member reaches beyond the {self._end:,} bytes of the file")
        return self._file.seek(place)

    def read(self, count: int) -> bytes:
        if not 0 <= count <= MAX_HEADER:
            raise tarfile.ReadError(f"a header of {count:,} bytes")
        return self._file.read(count)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """Regular files of a tar; whatever is wrong with a header becomes one message."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        with tarfile.open(fileobj=_Headers(file, end), mode="r:") as tar:  # type: ignore[call-overload]
            last = -1
            while (info := tar.next()) is not None:
                _check(info, last, end)
                last = info.offset
                tar.members.clear()  # which would grow with the tar
                folder, _, base = info.name.rpartition("/")
                stem, _, ending = base.partition(".")
                key = f"{folder}/{stem}"
                if info.isfile() and key.strip("/"):
                    yield Member(info.name, key, ending.lower(), info.offset_data, info.size)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # `tarfile` takes this for the end
                raise tarfile.ReadError(f"bad header at byte {tar.offset:,}")
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not an uncompressed, complete tar ({error})") from None


def _check(info: tarfile.TarInfo, last: int, end: int) -> None:
    """Refuse a member that claims bytes that are not there."""
    name = printable(info.name)
    if info.offset <= last:  # a negative size leads back
        raise tarfile.ReadError(f"{name} leads back to an earlier member")
    if info.issparse():
        raise tarfile.ReadError(f"{name} is sparse, a plain file is needed")
    if info.isfile() and not 0 <= info.size <= end - info.offset_data:
        raise tarfile.ReadError(f"{name} claims {info.size:,} bytes, the file has {end:,}")


def _class_text(path: Path, file: BinaryIO, member: Member) -> str:
    if member.size > MAX_CLASS:
        has = f"{printable(member.name)} has {member.size:,} bytes"
        raise DataError(f"{path}: {has}; a class takes at most {MAX_CLASS:,}")
    return _text(file, member)


def _text(file: BinaryIO, member: Member) -> str:
    file.seek(member.start)
    return file.read(member.size).decode("utf-8", "replace").strip()


def _class_name(text: str) -> str | None:
    """The "class" of a sample's .json."""
    with suppress(ValueError, AttributeError, RecursionError):
        name = json.loads(text).get("class")
        return name if isinstance(name, str) else None
    return None
