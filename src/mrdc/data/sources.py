"""Sources of images by name or path."""

import os
from pathlib import Path

from mrdc._utils.errors import DataError
from mrdc.data.coco import as_images, is_coco, train_scenes
from mrdc.data.files import FORMS
from mrdc.data.images import ImageSet, read_images
from mrdc.data.splits import KINDS, named, names

SHAPES = "shapes"  # built-in scenes


def open_images(source: str | os.PathLike[str], missing: bool = False) -> ImageSet:
    """Open the training images of a data set by name, or of a folder, CSV, tar or COCO file.

    Scenes (COCO: a .json, or a folder) become one class.

    Args:
        missing: accept missing files in a CSV or COCO file; loading one raises an ImageError.

    Raises:
        DataError: no such source, or not in one of the forms.
    """
    load, path = named(source), Path(source)
    if load is not None:
        return load().train
    return as_images(train_scenes(path, missing)) if is_coco(path) else read_images(path, missing)


def check_source(source: str | os.PathLike[str]) -> None:
    """Refuse a source that does not exist, without reading it.

    Accepts data sets by name, `shapes`, KIND:FOLDER such as cifar100:FOLDER, and paths.

    Raises:
        DataError: no such folder or file.
    """
    name = os.fspath(source)
    kind, _, folder = name.partition(":")
    if Path(name).exists() or name == SHAPES:
        return
    if kind in KINDS and folder:
        if not Path(folder).expanduser().exists():
            raise DataError(f"{folder}: no such folder or file; give {kind} the data set's folder")
    elif named(name) is None:
        raise DataError(f"{name}: no such folder or file; give {FORMS}; or {names()}, {SHAPES}")
