"""Image files, and the helpers shared by all readers."""

import os
import stat
from functools import partial
from typing import NamedTuple

from mrdc._utils.errors import ImageError
from mrdc.codec.image import EXTENSIONS
from mrdc.data.photo import Photo

CLASSES = (
    "a folder with one sub-folder of images for each class (or train/ and test/ folders of "
    "such), a .csv of path,label, or a WebDataset .tar"
)
FORMS = f"{CLASSES}; or scenes with boxes: a COCO .json, or a folder with train.json and images/"
NOT_IMAGE = "not an image (by its ending)"


class Listing(NamedTuple):
    """Labelled images found in a source.

    Attributes:
        entries: class, photo and bytes of each image.
        classes: class names in label order.
        ignored: files that are not used, each with the reason.
    """

    entries: list[tuple[str, Photo, int]]
    classes: list[str]
    ignored: list[str]


def is_image(name: str) -> bool:
    """Check for an ending that image files have."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def file_photo(path: str, name: str) -> Photo:
    """A photo stored in its own file."""
    return Photo(name, partial(_read, path, name))


def file_size(path: str) -> int | None:
    """Bytes of a file; None if it does not exist or cannot be read."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None


def by_number(name: str) -> tuple[int, int | str, str]:
    """Sort key: numbers in numerical order, then other names."""
    number = name.isdecimal() and len(name) < 20
    return (0, int(name), name) if number else (1, name, name)


def _read(path: str, name: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would wait for ever
            raise ImageError(f"{name}: not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None
