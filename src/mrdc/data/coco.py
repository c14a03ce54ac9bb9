"""COCO data sets: folders of annotations and images, in one of these layouts.

    train.json, val.json, images/      or test.json, valid.json; or one annotations.json
    annotations/instances_train*.json, instances_val*.json, train*/, val*/         COCO
    SSLAD-2D/labeled/annotations/instance_{train,val}.json, labeled/{train,val}/   SODA10M

Each may have a folder of unlabelled images: unlabelled/, unlabeled/, unlabeled2017/, unlabel/.
"""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from mrdc._utils.errors import DataError
from mrdc._utils.store_path import StorePath
from mrdc.data.coco_json import child_of
from mrdc.data.coco_json import read_scenes as read_scenes
from mrdc.data.files import sub_folders
from mrdc.data.images import is_image, some_of
from mrdc.data.photo import Photo, file_photo
from mrdc.data.scenes import SceneSplits

TRAIN_FILES = ("train.json", "annotations.json")
TEST_FILES = ("val.json", "test.json", "valid.json")
UNLABELLED = re.compile(r"unlabel(l?ed)?\d*", re.IGNORECASE)
LAYOUTS = (
    "a folder with train.json, val.json and images/, or COCO or SODA10M (SSLAD-2D) as published"
)


class Layout(NamedTuple):
    """The files of a data set, and the folder that may hold unlabelled images."""

    train: Path
    test: Path | None
    base: Path


def open_scenes(path: str | os.PathLike[str]) -> SceneSplits:
    """Open the training and test scenes of a folder in one of the layouts."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such folder; give {LAYOUTS}")
    layout = find_layout(path)
    if layout is None:
        kind = "a COCO data set with training and test scenes"
        raise DataError(f"{path}: not {kind}; give {LAYOUTS}")
    if layout.test is None:
        alone = f"{layout.train.name} has no test scenes next to it"
        raise DataError(f"{path}: {alone}; give {LAYOUTS}")
    train, test = read_scenes(layout.train), read_scenes(layout.test)
    if (train.classes, train.categories) != (test.classes, test.categories):
        raise DataError(
            f"{path}: the categories of {layout.train.name} ({some_of(train.classes)}) and "
            f"{layout.test.name} ({some_of(test.classes)}) differ; both must list the same"
        )
    for file, scenes in ((layout.train, train), (layout.test, test)):
        if not any(map(len, scenes.boxes)):
            raise DataError(f"{file}: no image in it has a box; at least one is needed")
    pools = [one for one in sub_folders(layout.base) if UNLABELLED.fullmatch(one.name)]
    unlabelled = tuple(photo for folder in pools for photo in _unlabelled(folder))
    return SceneSplits(train, test, unlabelled if pools else None)


def is_coco(path: Path) -> bool:
    """Check for a .json file, or a folder in one of the layouts."""
    if path.suffix.lower() == ".json" and path.is_file():
        return True
    return find_layout(path) is not None


def find_layout(root: Path) -> Layout | None:
    """Find the files of a COCO data set in a folder; None if it is not one."""
    readable = isinstance(root, StorePath) or os.access(root, os.R_OK | os.X_OK)
    if not root.is_dir() or not readable:
        return None
    train = _first(root, TRAIN_FILES)
    if train is not None and (root / "images").is_dir():
        test = _first(root, TEST_FILES) if train.name == TRAIN_FILES[0] else None
        return Layout(train, test, root)
    lists = root / "annotations"
    listed = lists.iterdir() if lists.is_dir() else ()
    found = sorted(one for one in listed if fnmatchcase(one.name, "instances_train*.json"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise DataError(f"{lists}: has {names}; keep one of them, or give a .json")
    if found:
        test = _first(lists, [found[0].name.replace("_train", "_val")])
        return Layout(found[0], test, root)
    return _soda(root)


def _first(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_file()), None)


def _soda(root: Path) -> Layout | None:
    for base in (root, child_of(root, "SSLAD-2D")):
        lists = child_of(base, "labeled", "annotations")
        train = child_of(lists, "instance_train.json")
        if base is not None and train is not None:
            return Layout(train, child_of(lists, "instance_val.json"), base)
    return None


def _unlabelled(folder: Path) -> list[Photo]:
    """Every image below a folder; annotations are not read."""
    root = folder.parent
    names = sorted(path.relative_to(root).as_posix() for path in folder.rglob("*"))
    images = [name for name in names if "/." not in name and is_image(name)]
    if not images:
        raise DataError(f"{folder}: no image in it; add unlabelled images, or remove the folder")
    return [file_photo(os.path.join(root, name), name) for name in images]
