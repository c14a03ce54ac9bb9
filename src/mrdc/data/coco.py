"""COCO data sets: folders of annotations and images."""

import os
from pathlib import Path

from mrdc._utils.errors import DataError
from mrdc.data.coco_json import read_scenes
from mrdc.data.files import file_photo, is_image
from mrdc.data.images import some_of
from mrdc.data.layouts import LAYOUTS, find_layout
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes, Scenes, SceneSplits, as_images, check_sides

__all__ = [
    "Boxes",
    "SceneSplits",
    "Scenes",
    "as_images",
    "check_sides",
    "is_coco",
    "open_scenes",
    "read_scenes",
    "train_scenes",
]


def open_scenes(path: Path) -> SceneSplits:
    """Open the training and test scenes of a folder in one of the layouts.

    Raises:
        DataError: no such folder, or a file that cannot be used.
    """
    if not path.exists():
        raise DataError(f"{path}: no such folder; give {LAYOUTS}")
    layout = find_layout(path)
    if layout is None:
        raise DataError(
            f"{path}: not a COCO data set with training and test scenes; give {LAYOUTS}"
        )
    if layout.test is None:
        raise DataError(
            f"{path}: {layout.train.name} has no test scenes next to it; give {LAYOUTS}"
        )
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
    """Check for a .json file, or a folder in one of the layouts."""
    if path.suffix.lower() == ".json" and path.is_file():
        return True
    return find_layout(path) is not None


def train_scenes(path: Path, missing: bool = False) -> Scenes:
    """Scenes of a .json file, or the training scenes of a folder in one of the layouts.

    Args:
        missing: as for `read_scenes`.

    Raises:
        DataError: a file that cannot be used.
    """
    layout = None if path.is_file() else find_layout(path)
    return read_scenes(layout.train if layout else path, missing=missing)


def _unlabelled(folder: Path) -> list[Photo]:
    """Every image below a folder; annotations are not read."""
    root = folder.parent
    names = sorted(path.relative_to(root).as_posix() for path in folder.rglob("*"))
    images = [name for name in names if "/." not in name and is_image(name)]
    if not images:
        raise DataError(f"{folder}: no image in it; add unlabelled images, or remove the folder")
    return [file_photo(os.path.join(root, name), name) for name in images]
