"""One COCO json: boxes of images, checked as it is read.

The images' own sizes are checked by `scenes.check_sides`.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from mrdc._utils.errors import DataError
from mrdc.data.files import file_photo
from mrdc.data.layouts import image_folders
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes, Scenes

KEYS = ("images", "annotations", "categories")
SLACK = 1.0  # pixels that a box may extend past the edge, where it is cut
SMALLEST = 1.0  # pixels; smaller boxes are left out
LARGEST = 2**24  # longest side: float32 holds every whole number up to it


def read_scenes(file: Path, missing: bool = False) -> Scenes:
    """Read a COCO json.

    Images are searched for in images/ next to it, next to it, and for instances_NAME.json in the
    folder NAME next to its folder.

    Args:
        missing: accept missing images; loading one raises an ImageError.

    Raises:
        DataError: not a COCO json, an invalid entry, or a missing image.
    """
    data = _parse(file)
    categories = _categories(file, data["categories"])
    places = [str(folder) for folder in image_folders(file)]
    images = _images(file, data["images"], places, missing)
    labels = {number: label for label, number in enumerate(categories)}
    rows = _rows(file, data["annotations"], images, labels)
    boxes, crowds = ([_tidy(rows[crowd][image]) for image in images] for crowd in (False, True))
    read = sum(len(part) for kind in rows.values() for part in kind.values())
    return Scenes(
        classes=tuple(categories.values()),
        categories=tuple(categories),
        photos=tuple(image.photo for image in images.values()),
        sizes=tuple(image.size for image in images.values()),
        sides=tuple(image.side for image in images.values()),
        boxes=tuple(boxes),
        crowds=tuple(crowds),
        dropped=read - sum(map(len, boxes)) - sum(map(len, crowds)),
    )


def _parse(file: Path) -> dict[str, list[Any]]:
    try:
        data: dict[str, list[Any]] = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not JSON ({error})") from None
    for key in KEYS:
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            raise DataError(
                f"{file}: not a COCO file: no list {key!r}; it must be an object with the lists "
                f"{', '.join(KEYS)}"
            )
    for key in ("images", "categories"):
        if not data[key]:
            raise DataError(f"{file}: the list {key!r} is empty; at least one is needed")
    return data


def _categories(file: Path, entries: list[Any]) -> dict[int, str]:
    """Category names by id, sorted by id."""
    names: dict[int, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not _whole(entry.get("id"), least=0):
            raise DataError(f"{file}: a category needs a whole number as its id, got {_few(entry)}")
        if not isinstance(entry.get("name"), str):
            raise DataError(f"{file}: category {entry['id']} needs a name")
        if entry["id"] in names:
            raise DataError(f"{file}: two categories have the id {entry['id']}")
        if entry["name"] in names.values():
            raise DataError(f"{file}: two categories have the name {entry['name']!r}")
        names[entry["id"]] = entry["name"]
    return dict(sorted(names.items()))


class _Image(NamedTuple):
    photo: Photo
    size: int
    side: tuple[int, int]


def _images(file: Path, entries: list[Any], folders: list[str], missing: bool) -> dict[Any, _Image]:
    """Images by COCO id."""
    images: dict[Any, _Image] = {}
    names: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int | str):
            raise DataError(f"{file}: an image needs an id, got {_few(entry)}")
        number, name = entry["id"], entry.get("file_name")
        if number in images:
            raise DataError(f"{file}: two images have the id {number!r}")
        if not isinstance(name, str) or not _stays(name):
            raise DataError(
                f"{file}: image {number!r} has file_name {name!r}; it must be a relative path "
                "that does not leave the folder"
            )
        if name in names:
            raise DataError(f"{file}: two images have the file_name {name!r}")
        names.add(name)
        images[number] = _image(file, entry, folders, missing)
    return images


def _image(file: Path, entry: dict[str, Any], folders: list[str], missing: bool) -> _Image:
    about, name = f"{file}: image {entry['id']!r} ({entry['file_name']})", entry["file_name"]
    width, height = entry.get("width"), entry.get("height")
    if not (_whole(width, least=1) and _whole(height, least=1)):
        raise DataError(
            f"{about} needs width and height, whole numbers from 1, got {width!r} and {height!r}"
        )
    for folder in folders:
        path = os.path.join(folder, name)
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            return _Image(file_photo(path, name), found.st_size, (width, height))
    if missing:
        return _Image(file_photo(os.path.join(folders[0], name), name), 0, (width, height))
    raise DataError(f"{about} is missing: no such file in {' or '.join(folders)}")


def _stays(name: str) -> bool:
    """Check that a name stays below the folder it is searched for in."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    path = PurePosixPath(name.replace("\\", "/"))
    return (
        bool(path.name) and "\0" not in name and not path.is_absolute() and ".." not in path.parts
    )


Row = tuple[float, float, float, float, int]  # left, top, right, bottom, label


def _rows(
    file: Path, entries: list[Any], images: Mapping[Any, _Image], labels: Mapping[int, int]
) -> dict[bool, dict[Any, list[Row]]]:
    """Boxes by crowd (True) or not, then by COCO id of their image."""
    rows: dict[bool, dict[Any, list[Row]]] = {c: {i: [] for i in images} for c in (False, True)}
    for entry in entries:
        if not isinstance(entry, dict):
            raise DataError(f"{file}: an annotation must be an object, got {_few(entry)}")
        where = f"{file}: annotation {entry.get('id')!r}"
        owner, category = entry.get("image_id"), entry.get("category_id")
        if not isinstance(owner, int | str) or owner not in images:
            raise DataError(f"{where} belongs to image {owner!r}, which is not in 'images'")
        where += f" of {images[owner].photo.id}"
        if not isinstance(category, int) or category not in labels:
            raise DataError(f"{where} has category {category!r}; allowed are {[*labels]}")
        crowd = entry.get("iscrowd") or 0
        if crowd not in (0, 1):
            raise DataError(f"{where} has iscrowd {_few(crowd)}; it must be 0 or 1")
        edges = _edges(where, entry.get("bbox"), images[owner].side)
        rows[crowd == 1][owner].append((*edges, labels[category]))
    return rows


def _edges(where: str, bbox: Any, side: tuple[int, int]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a COCO box, cut to the image."""
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_number, bbox)):
        raise DataError(
            f"{where} has bbox {_few(bbox)}; it must be four finite numbers: left, top, "
            "width, height"
        )
    (left, top, width, height), (wide, high) = bbox, side
    if min(width, height) < 0:
        raise DataError(f"{where} has bbox {bbox}; its width and height must be 0 or more")
    right, bottom = left + width, top + height
    over = max(-left, -top, right - wide, bottom - high, left - wide, top - high)
    if over > SLACK:
        raise DataError(
            f"{where} has bbox {bbox}, {over:g} pixels outside the image of {wide} x {high}; "
            f"at most {SLACK:g} is allowed"
        )
    return max(left, 0.0), max(top, 0.0), min(right, wide), min(bottom, high)


def _tidy(rows: list[Row]) -> Boxes:
    """Boxes as an array, without the ones that are too small."""
    boxes = np.array(rows, np.float32).reshape(-1, 5)
    sides = boxes[:, 2:4].astype(np.float64) - boxes[:, :2]
    return boxes[(sides >= SMALLEST).all(axis=1)]


def _whole(value: Any, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST


def _number(value: Any) -> bool:
    """Check for a finite number that can be a length in an image."""
    return isinstance(value, int | float) and abs(value) < LARGEST


def _few(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
