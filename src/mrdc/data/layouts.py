"""Layouts of COCO data sets.

    train.json, val.json, images/      or test.json, valid.json; or one annotations.json
    annotations/instances_train*.json, instances_val*.json, train*/, val*/         COCO
    SSLAD-2D/labeled/annotations/instance_{train,val}.json, labeled/{train,val}/   SODA10M

Each may have a folder of unlabelled images: unlabelled/, unlabeled/, unlabeled2017/, unlabel/.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mrdc._utils.errors import DataError
from mrdc.data.folders import sub_folders

TRAIN_FILES = ("train.json", "annotations.json")
TEST_FILES = ("val.json", "test.json", "valid.json")
UNLABELLED = re.compile(r"unlabel(l?ed)?\d*", re.IGNORECASE)
PART = re.compile(r"instances?_(.+)")  # the images are in a folder of that name
LAYOUTS = (
    "a folder with train.json, val.json and images/, or COCO or SODA10M (SSLAD-2D) as published"
)


class Layout(NamedTuple):
    """The files of a data set, and its folders of unlabelled images."""

    train: Path
    test: Path | None
    pools: list[Path]


def find_layout(root: Path) -> Layout | None:
    """Find the files of a COCO data set in a folder; None if it is not one.

    Raises:
        DataError: several files of training images.
    """
    if not root.is_dir() or not os.access(root, os.R_OK | os.X_OK):
        return None
    return _plain(root) or _coco(root) or _soda(root)


def image_folders(file: Path) -> list[Path]:
    """Folders to search for the images of a json."""
    folders = [file.parent / "images", file.parent]
    part = PART.fullmatch(file.stem)
    beside = _child(file.absolute().parent.parent, part[1]) if part else None
    return [*folders, beside] if beside else folders


def _plain(root: Path) -> Layout | None:
    train = _first(root, TRAIN_FILES)
    if train is None or not (root / "images").is_dir():
        return None
    test = _first(root, TEST_FILES) if train.name == TRAIN_FILES[0] else None
    return Layout(train, test, _pools(root))


def _first(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_file()), None)


def _coco(root: Path) -> Layout | None:
    found = sorted((root / "annotations").glob("instances_train*.json"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise DataError(f"{root / 'annotations'}: has {names}; keep one of them, or give a .json")
    if not found:
        return None
    test = _first(found[0].parent, [found[0].name.replace("_train", "_val")])
    return Layout(found[0], test, _pools(root))


def _soda(root: Path) -> Layout | None:
    for base in (root, _child(root, "SSLAD-2D")):
        lists = _child(base, "labeled", "annotations")
        train = _child(lists, "instance_train.json")
        if base is not None and train is not None:
            return Layout(train, _child(lists, "instance_val.json"), _pools(base))
    return None


def _child(folder: Path | None, *names: str) -> Path | None:
    """A file or folder below another, ignoring case; None if there is none."""
    for name in names:
        if folder is None or not folder.is_dir():
            return None
        known = {child.name.lower(): child for child in sorted(folder.iterdir(), reverse=True)}
        folder = known.get(name.lower())
    return folder


def _pools(root: Path) -> list[Path]:
    return [folder for folder in sub_folders(root) if UNLABELLED.fullmatch(folder.name)]
