"""Open a source of labelled images: find its form and its splits.

FOLDER                sub-folders are classes; or splits (train/, test/) of classes; or classes
                      with splits in them; or a single sub-folder with one of these
FOLDER of shards      tars, Parquet or Arrow files, in splits if their names begin with one
hf:FOLDER             written by `save_to_disk`
.csv, .tar, .parquet, .arrow, and patterns of the last three
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from mrdc._utils.errors import DataError
from mrdc._utils.store_path import StorePath, as_path
from mrdc._utils.text import count
from mrdc.data.images import (
    FORMS,
    NOT_IMAGE,
    SPLITS,
    TESTS,
    TRAIN,
    Columns,
    ImageSet,
    file_entry,
    gather,
    is_image,
)
from mrdc.data.lists import read_csv
from mrdc.data.saved import is_saved, saved_folder, saved_splits
from mrdc.data.shards import ENDINGS, find_files, read_shards, shard_folder
from mrdc.data.tar import is_tar


def read_images(path: Path, missing: bool = False, columns: Columns | None = None) -> ImageSet:
    """Open labelled images in any form; only the training images if there are splits.

    `missing` and `columns` are as for `read_csv`; Parquet and Arrow files have columns too.
    """
    path = saved_folder(str(path)) or path
    if files := find_files(path):
        return read_shards(files, columns)
    if path.is_dir():
        return _read_folder(inner_folder(path), columns)
    if not path.exists():
        raise DataError(f"{path}: no such folder or file; give {FORMS}")
    if not path.is_file():
        raise DataError(f"{path}: neither a folder nor a file; give {FORMS}")
    if path.suffix.lower() == ".csv":
        return read_csv(path, missing, columns)
    if path.suffix.lower() in ENDINGS or is_tar(path):
        return read_shards([path], columns)
    raise DataError(f"{path}: not a form mrdc reads; give {FORMS}")


def _read_folder(root: Path, columns: Columns | None) -> ImageSet:
    if shards := sharded(root):
        return read_shards(shards[TRAIN], columns)
    if splits := split_folders(root):
        return read_images(splits[TRAIN], columns=columns)
    return class_folders(root, split=TRAIN if inner_splits(root) else "")


def sharded(root: Path) -> dict[str, list[Path]]:
    """Shards of a folder by split, whether `save_to_disk` wrote them or not; empty for others."""
    return saved_splits(root) if is_saved(root) else shard_folder(root)


def inner_folder(root: Path) -> Path:
    """The folder with splits or shards, if up to three folders with nothing else lead to it."""
    inside = root
    for _ in range(4):
        folders = sub_folders(inside)
        if sharded(inside) or TRAIN in {folder.name.lower() for folder in folders}:
            return inside
        others = [child.name for child in _children(inside) if not child.is_dir()]
        if len(folders) != 1 or any(map(_holds_images, others)):
            break
        inside = folders[0]
    return root


def _holds_images(name: str) -> bool:
    return is_image(name) or name.lower().endswith((*ENDINGS, ".csv"))


def inner_splits(root: Path) -> str | None:
    """The test split inside every class folder, next to train/; None if there is none."""
    folders = sub_folders(root)
    for test in TESTS:
        if folders and all({TRAIN, test} <= {one.name for one in sub_folders(f)} for f in folders):
            return test
    return None


def class_folders(root: Path, only: Collection[str] | None = None, split: str = "") -> ImageSet:
    """Open the images of every class folder, or of the classes in `only`.

    With a `split`, only those in the folder of that name in each class folder.
    """
    children = _children(root)
    folders = [one for one in children if one.is_dir() and (only is None or one.name in only)]
    loose = [child.name for child in children if not child.is_dir()]
    if not folders:
        images = sum(map(is_image, loose))
        found = f"{count(images, 'image')} but no class folders" if images else "no class folders"
        raise DataError(f"{root}: has {found}; give {FORMS}")
    outside = "image outside a class folder"
    ignored = [f"{name}: {outside if is_image(name) else NOT_IMAGE}" for name in loose]
    entries = [
        file_entry(folder.name, file, name, size)
        for folder in folders
        for file, name, size in _images(root, folder / split, ignored)
    ]
    if not entries:
        raise DataError(f"{root}: no image in any class folder; give {FORMS}")
    return gather(entries, [folder.name for folder in folders], ignored)


def _images(root: Path, folder: Path, ignored: list[str]) -> Iterator[tuple[str, str, int | None]]:
    """Path, id and, if known, bytes of each image below a folder; `ignored` gets other files."""
    for parent, names, files in _steps(folder):
        prefix = "/".join(as_path(parent).parts[len(root.parts) :])
        names[:] = sorted(name for name in names if not name.startswith("."))
        links = [name for name in names if os.path.islink(os.path.join(parent, name))]
        ignored += [f"{prefix}/{name}: link to a folder" for name in links]  # may lead back here
        for name in sorted(file for file in files if not file.startswith(".")):
            if is_image(name):
                yield os.path.join(parent, name), f"{prefix}/{name}", files[name]
            else:
                ignored.append(f"{prefix}/{name}: {NOT_IMAGE}")


def _steps(folder: Path) -> Iterator[tuple[str, list[str], dict[str, int | None]]]:
    """Every folder from this one down, names of folders in it, and bytes of files, if known."""
    if isinstance(folder, StorePath):
        yield from folder.steps()
    else:
        for parent, names, files in os.walk(folder, onerror=_refuse):
            yield parent, names, dict.fromkeys(files)


def split_folders(root: Path) -> dict[str, Path]:
    """Train and test folders by their name in lower case; empty if the folders are classes.

    A class may be called train: it is a split only on its own or next to another split.
    """
    folders = {folder.name.lower(): folder for folder in sub_folders(root)}
    splits = SPLITS & set(folders)
    if not splits or (splits == {TRAIN} and len(folders) > 1):
        return {}
    if TRAIN not in splits or len(splits) < len(folders):
        odd = ", ".join(sorted(set(folders) - SPLITS)) or f"no {TRAIN}/"
        mixed = f"{', '.join(sorted(splits))} look like splits, but with {odd} beside them"
        raise DataError(f"{root}: {mixed}; give the folder that holds the classes")
    return folders


def sub_folders(root: Path) -> list[Path]:
    """Visible folders in a folder, sorted."""
    return [child for child in _children(root) if child.is_dir()]


def _children(root: Path) -> list[Path]:
    try:
        return sorted(child for child in root.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})") from None


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")
