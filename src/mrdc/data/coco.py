"""COCO: a json with boxes, and images in a folder.

Everything the json says is checked when it is opened, the images' sizes by `check_sides`.
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from mrdc._utils.errors import DataError
from mrdc.codec.image import EXTENSIONS
from mrdc.data.images import file_photo, some_of
from mrdc.data.layouts import LAYOUTS, find_layout, image_folders
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes, Scenes, SceneSplits, as_images, check_sides

__all__ = [
    "Boxes", "SceneSplits", "Scenes", "as_images", "check_sides", "is_coco", "open_scenes",
    "read_scenes", "train_scenes",
]  # fmt: skip

KEYS = ("images", "annotations", "categories")
SLACK = 1.0  # pixels that a box may reach over the edge; it is cut there
SMALLEST = 1.0  # pixels, below which a box is left out
LARGEST = 2**24  # of a side: float32 holds every whole number up to it


def open_scenes(path: Path) -> SceneSplits:
    """Training and test scenes of a folder in one of the layouts.

    Raises:
        DataError: not such a folder, or a file that cannot be used.
    """
    if not path.exists():
        raise DataError(f"{path}: no such folder; give {LAYOUTS}")
    layout = find_layout(path)
    if layout is None:
        raise DataError(
            f"{path}: not a COCO data set with training and test scenes; give {LAYOUTS}"
        )
    if layout.test is None:
        raise DataError(f"{path}: {layout.train.name} has no test scenes beside it; give {LAYOUTS}")
    train, test = read_scenes(layout.train), read_scenes(layout.test)
    if (train.classes, train.categories) != (test.classes, test.categories):
        raise DataError(
            f"{path}: the categories of {layout.train.name} ({some_of(train.classes)}) and "
            f"{layout.test.name} ({some_of(test.classes)}) differ; both must list the same"
        )
    for file, scenes in ((layout.train, train), (layout.test, test)):
        if not any(map(len, scenes.boxes)):
            raise DataError(f"{file}: no image in it has a box; at least one is needed")
    pool = [photo for folder in layout.pools for photo in _unlabelled(folder)]
    return SceneSplits(train, test, tuple(pool) if layout.pools else None)


def is_coco(path: Path) -> bool:
    """Whether a path is a .json file, or a folder in one of the layouts."""
    if path.suffix.lower() == ".json" and path.is_file():
        return True
    return find_layout(path) is not None


def train_scenes(path: Path, missing: bool = False) -> Scenes:
    """Scenes of a .json file, or those to train on of a folder in one of the layouts.

    Args:
        missing: as for `read_scenes`.

    Raises:
        DataError: neither, or a file that cannot be used.
    """
    layout = None if path.is_file() else find_layout(path)
    return read_scenes(layout.train if layout else path, missing=missing)


def _unlabelled(folder: Path) -> list[Photo]:
    """Every image below a folder, without a look at what may be known of it."""
    root = folder.parent
    names = sorted(path.relative_to(root).as_posix() for path in folder.rglob("*"))
    shown = [name for name in names if "/." not in name]  # as elsewhere, not what systems hide
    images = [name for name in shown if os.path.splitext(name)[1].lower() in EXTENSIONS]
    if not images:
        raise DataError(f"{folder}: no image in it; add unlabelled images, or remove it")
    return [file_photo(os.path.join(root, name), name) for name in images]


# One json


def read_scenes(file: Path, missing: bool = False) -> Scenes:
    """Read a COCO json.

    Images are looked for in images/ beside it, beside it, and for instances_NAME.json in the
    folder NAME beside its folder.

    Args:
        missing: whether images may be missing, which is then told when they are read.

    Raises:
        DataError: not a COCO json, something in it that cannot be, or an image that is missing.
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
    """Names by id, sorted by id."""
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
    """Images by COCO's id."""
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
                f"{file}: image {number!r} has the file_name {name!r}; it must be a relative path "
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
    """Whether a name is that of a file below the folder it is looked for in."""
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
    """Boxes by whether they are crowds and by COCO's id of their image."""
    rows: dict[bool, dict[Any, list[Row]]] = {c: {i: [] for i in images} for c in (False, True)}
    for entry in entries:
        if not isinstance(entry, dict):
            raise DataError(f"{file}: an annotation must be an object, got {_few(entry)}")
        where = f"{file}: annotation {entry.get('id')!r}"
        owner, category = entry.get("image_id"), entry.get("category_id")
        if not isinstance(owner, int | str) or owner not in images:
            raise DataError(f"{where} is of the image {owner!r}, which is none of 'images'")
        where += f" of {images[owner].photo.id}"
        if not isinstance(category, int) or category not in labels:
            raise DataError(f"{where} has the category {category!r}; allowed are {[*labels]}")
        crowd = entry.get("iscrowd") or 0
        if crowd not in (0, 1):
            raise DataError(f"{where} has the iscrowd {_few(crowd)}; it must be 0 or 1")
        edges = _edges(where, entry.get("bbox"), images[owner].side)
        rows[crowd == 1][owner].append((*edges, labels[category]))
    return rows


def _edges(where: str, bbox: Any, side: tuple[int, int]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a COCO box, cut to the image."""
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_number, bbox)):
        raise DataError(
            f"{where} has the bbox {_few(bbox)}; it must be four finite numbers: left, top, "
            "width, height"
        )
    (left, top, width, height), (wide, high) = bbox, side
    if min(width, height) < 0:
        raise DataError(f"{where} has the bbox {bbox}; its width and height must be 0 or more")
    right, bottom = left + width, top + height
    over = max(-left, -top, right - wide, bottom - high, left - wide, top - high)
    if over > SLACK:
        raise DataError(
            f"{where} has the bbox {bbox}, {over:g} pixels outside the image of {wide} x {high}; "
            f"at most {SLACK:g} is allowed"
        )
    return max(left, 0.0), max(top, 0.0), min(right, wide), min(bottom, high)


def _tidy(rows: list[Row]) -> Boxes:
    """Boxes as an array, without those that are too small."""
    boxes = np.array(rows, np.float32).reshape(-1, 5)
    sides = boxes[:, 2:4].astype(np.float64) - boxes[:, :2]
    return boxes[(sides >= SMALLEST).all(axis=1)]


def _whole(value: Any, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST


def _number(value: Any) -> bool:
    """Whether a value is a finite number that a picture could measure."""
    return isinstance(value, int | float) and abs(value) < LARGEST


def _few(value: Any) -> str:
    """A value for an error, not the whole of it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
