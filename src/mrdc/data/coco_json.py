"""One COCO json, checked as it is read; `scenes.check_sides` checks the images' own sizes."""

import json
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from mrdc._utils.errors import DataError
from mrdc.data.photo import Photo, file_photo
from mrdc.data.scenes import Boxes, Scenes

PART = re.compile(r"instances?_(.+)")  # the images are in a folder of that name
KEYS = ("images", "annotations", "categories")
SLACK = 1.0  # pixels that a box may extend past the edge, where it is cut
SMALLEST = 1.0  # pixels; smaller boxes are left out
LARGEST = 2**24  # longest side: float32 holds every whole number up to it

Row = tuple[float, float, float, float, int]  # left, top, right, bottom, label


def read_scenes(file: Path, missing: bool = False) -> Scenes:
    """Read a COCO json.

    Images are searched for in images/ next to it, then next to it, then (for instances_NAME.json)
    in the folder NAME next to its folder. `missing` accepts images that are not found; loading one
    raises an ImageError.
    """
    data = _parse(file)
    categories = _categories(file, data["categories"])
    folders = [file.parent / "images", file.parent]
    if part := PART.fullmatch(file.stem):
        beside = child_of(file.absolute().parent.parent, part[1])
        folders += [beside] if beside else []
    images = _images(file, data["images"], list(map(str, folders)), missing)
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


def child_of(folder: Path | None, *names: str) -> Path | None:
    """A file or folder below another, ignoring case; None if there is none."""
    for name in names:
        if folder is None or not folder.is_dir():
            return None
        known = {child.name.lower(): child for child in sorted(folder.iterdir(), reverse=True)}
        folder = known.get(name.lower())
    return folder


def _parse(file: Path) -> dict[str, list[Any]]:
    try:
        data: dict[str, list[Any]] = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not JSON ({error})") from None
    for key in KEYS:
        if not isinstance(data, dict) or not isinstance(data.get(key), list):
            rule = f"it must be an object with the lists {', '.join(KEYS)}"
            raise DataError(f"{file}: not a COCO file: no list {key!r}; {rule}")
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
            rule = "it must be a relative path that does not leave the folder"
            raise DataError(f"{file}: image {number!r} has file_name {name!r}; {rule}")
        if name in names:
            raise DataError(f"{file}: two images have the file_name {name!r}")
        names.add(name)
        images[number] = _image(file, entry, folders, missing)
    return images


def _image(file: Path, entry: dict[str, Any], folders: list[str], missing: bool) -> _Image:
    about, name = f"{file}: image {entry['id']!r} ({entry['file_name']})", entry["file_name"]
    width, height = entry.get("width"), entry.get("height")
    if not (_whole(width, least=1) and _whole(height, least=1)):
        rule = "needs width and height, whole numbers from 1"
        raise DataError(f"{about} {rule}, got {width!r} and {height!r}")
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
    """Check that a name does not leave the folder it is searched for in."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    path = PurePosixPath(name.replace("\\", "/"))
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and bool(path.name) and "\0" not in name


def _rows(
    file: Path, entries: list[Any], images: dict[Any, _Image], labels: dict[int, int]
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
    values = bbox if isinstance(bbox, list) else []
    if [isinstance(v, int | float) and abs(v) < LARGEST for v in values] != [True] * 4:
        rule = "it must be four finite numbers: left, top, width, height"
        raise DataError(f"{where} has bbox {_few(bbox)}; {rule}")
    (left, top, width, height), (wide, high) = bbox, side
    if min(width, height) < 0:
        raise DataError(f"{where} has bbox {bbox}; its width and height must be 0 or more")
    right, bottom = left + width, top + height
    over = max(-left, -top, right - wide, bottom - high, left - wide, top - high)
    if over > SLACK:
        outside = f"{over:g} pixels outside the image of {wide} x {high}"
        raise DataError(f"{where} has bbox {bbox}, {outside}; at most {SLACK:g} is allowed")
    return max(left, 0.0), max(top, 0.0), min(right, wide), min(bottom, high)


def _tidy(rows: list[Row]) -> Boxes:
    """Boxes as an array, without the ones that are too small."""
    boxes = np.array(rows, np.float32).reshape(-1, 5)
    sides = boxes[:, 2:4].astype(np.float64) - boxes[:, :2]
    return boxes[(sides >= SMALLEST).all(axis=1)]


def _whole(value: Any, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST


def _few(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
