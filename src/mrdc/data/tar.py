"""Images in a WebDataset tar."""

import json
import tarfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mrdc._utils.errors import DataError, ImageError
from mrdc.codec.image import EXTENSIONS
from mrdc.data.files import NOT_IMAGE, Listing, by_number
from mrdc.data.photo import Photo


def read_tar(path: Path) -> Listing:
    """List the samples of a tar: an image and a .cls with its class.

    Files belong to one sample if their names agree up to the first dot. A .json with a "class",
    as `export` writes it, gives the class a name; otherwise its name is the text of the .cls.

    Raises:
        DataError: not an uncompressed tar, or an image without a class.
    """
    samples = _Samples(path)
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isfile():
                    samples.add(tar, member)
    except tarfile.ReadError as error:
        raise DataError(f"{path}: not an uncompressed, complete tar ({error})") from None
    return samples.listing()


@dataclass
class _Samples:
    """Members of a tar by sample."""

    path: Path
    images: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        folder, _, base = member.name.rpartition("/")
        stem, _, ending = base.partition(".")
        key, ending = f"{folder}/{stem}", ending.lower()
        if not key.strip("/"):
            return
        if f".{ending}" in EXTENSIONS:
            if key in self.images:
                both = f"{self.images[key].name} and {member.name}"
                raise DataError(f"{self.path}: two images for one sample: {both}")
            self.images[key] = member
        elif ending == "cls":
            self.labels[key] = _text(tar, member)
        elif ending != "json":
            self.ignored.append(f"{member.name}: {NOT_IMAGE}")
        elif name := _class_name(_text(tar, member)):
            self.names[key] = name
        else:
            self.ignored.append(f"{member.name}: no class name in it")

    def listing(self) -> Listing:
        labels = {key: self.names.get(key, label) for key, label in self.labels.items()}
        for key, member in self.images.items():
            if not labels.get(key):
                raise DataError(f"{self.path}: {member.name} has no .cls file with its class")
        if not self.images:
            raise DataError(f"{self.path}: no image with a .cls file")
        entries = [
            (labels[key], Photo(member.name, partial(_read, self.path, member)), member.size)
            for key, member in self.images.items()
        ]
        classes = sorted({labels[key] for key in self.images}, key=by_number)
        return Listing(entries, classes, self.ignored)


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = tar.extractfile(member)
    assert content is not None
    return content.read().decode("utf-8", "replace").strip()


def _class_name(text: str) -> str | None:
    """The "class" of a sample's .json."""
    with suppress(ValueError):
        found = json.loads(text)
        name = found.get("class") if isinstance(found, dict) else None
        return name if isinstance(name, str) else None
    return None


def _read(path: Path, member: tarfile.TarInfo) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(member.offset_data)
            return file.read(member.size)
    except OSError as error:
        raise ImageError(f"{member.name}: cannot be read ({error.strerror})") from None
