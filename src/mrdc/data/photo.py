"""Source images that are read when they are needed."""

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from mrdc._utils import stores
from mrdc._utils.errors import ImageError
from mrdc._utils.extras import installed_torch
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import MAX_BYTES, Pixels, decode


class Photo(NamedTuple):
    """A source image that is read when it is needed.

    Attributes:
        id: a name, unique in its set, for messages and files.
        load: reads the file's bytes, or RGB uint8 pixels (height, width, 3).
        held: its bytes are in RAM, or in a mapped file, so that a copy would gain nothing.
        decoded: its pixels, if they are in RAM too.
    """

    id: str
    load: Callable[[], bytes | Pixels]
    held: bool = False
    decoded: Pixels | None = None

    def pixels(self) -> Pixels:
        """Load and decode the image.

        Raises:
            ImageError: it cannot be read.
        """
        return self.decode(self.load()) if self.decoded is None else self.decoded

    def decode(self, data: bytes | Pixels) -> Pixels:
        """Decode what `load` has returned."""
        return to_pixels(data, self.id) if self.decoded is None else self.decoded

    def digest(self) -> bytes:
        """SHA-256 of the file's bytes, or of the pixels and their shape."""
        return digest(self.load())


def loaded(photos: Sequence[Photo]) -> Sequence[Photo]:
    """The same photos, with their contents in RAM, so that they can be sent to other processes."""
    return [loaded_photo(photo.id, photo.load()) for photo in photos]


def loaded_photo(name: str, data: bytes | Pixels) -> Photo:
    """A photo with its contents in RAM."""
    return Photo(name, partial(_same, data), held=True)


def _same(data: bytes | Pixels) -> bytes | Pixels:
    return data


def to_pixels(data: bytes | Pixels, name: str) -> Pixels:
    """Decode a file's bytes; pixels are returned as they are."""
    return decode(data, name) if isinstance(data, bytes) else data


def channels_first(pixels: Pixels) -> Any:
    """Pixels as a uint8 tensor (3, h, w), sharing memory; an array if torch is not installed."""
    torch, image = installed_torch(), pixels.transpose(2, 0, 1)
    return image if torch is None else torch.from_numpy(image)


def digest(data: bytes | Pixels) -> bytes:
    """SHA-256 of a file's bytes, or of pixels and their shape."""
    raw = data if isinstance(data, bytes) else data.tobytes() + str(data.shape).encode()
    return hashlib.sha256(raw).digest()


def check_bytes(count: int, name: str) -> None:
    """Refuse a file so large that it cannot be an image, before it is read."""
    if count > MAX_BYTES:
        raise ImageError(f"{name}: {count:,} bytes; an image has at most {MAX_BYTES:,}")


def file_photo(path: str, name: str) -> Photo:
    """A photo stored in its own file."""
    folder = path.removesuffix(name)
    if folder == path:
        return Photo(name, partial(_read, path, name))
    return Photo(name, _InFolder(sys.intern(folder), name))


@dataclass(frozen=True, slots=True)
class _InFolder:
    """Reads a file by its name in a folder; small, as there may be millions in one folder."""

    folder: str
    name: str

    def __call__(self) -> bytes:
        return _read(self.folder + self.name, self.name)


def store_photo(url: str, name: str, size: int) -> Photo:
    """A photo of `size` bytes in an object store."""
    return Photo(name, partial(_fetch, url, name, size))


def _fetch(url: str, name: str, size: int) -> bytes:
    check_bytes(size, name)
    try:
        return stores.read_whole(url, size)
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None


def read_part(path: str, name: str, start: int, count: int) -> bytes:
    """Read an image that is a part of a file, or of an object in a store.

    Raises:
        ImageError: it cannot be read, but others may be.
        StoreError: the store cannot be used.
    """
    check_bytes(count, name)
    try:
        if stores.is_url(path):
            return stores.read(path, start, start + count)
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None


def _read(path: str, name: str) -> bytes:
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # reading a pipe would wait forever
            raise ImageError(f"{name}: not a regular file")
        check_bytes(about.st_size, name)
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None


def content_digest(photos: Sequence[Photo], threads: int | None) -> str:
    """SHA-256 of the contents of photos, in their order."""
    found = hashlib.sha256()
    with workers(threads) as pool:
        for _, one in ordered(pool, Photo.digest, photos):
            found.update(one)
    return found.hexdigest()
