"""Labelled images: built-in sets by name, and whatever people have."""

import os
from pathlib import Path

from mrdc.data.coco import Scenes, SceneSplits, as_images, is_coco, open_scenes, train_scenes
from mrdc.data.images import ImageSet, read_images
from mrdc.data.splits import DATASETS, Splits, open_splits
from mrdc.data.stream import Stream, make_stream

__all__ = [
    "DATASETS", "ImageSet", "SceneSplits", "Scenes", "Splits", "Stream", "make_stream",
    "open_images", "open_scenes", "open_splits", "read_images",
]  # fmt: skip


def open_images(source: str | os.PathLike[str], missing: bool = False) -> ImageSet:
    """A built-in set by its name, a folder, CSV or tar of labelled images, or scenes.

    Of a set with a test split the training part counts. Scenes (COCO: a .json, or a folder) are
    one class.

    Args:
        missing: whether images of scenes may be missing, as those that a CSV lists may.

    Raises:
        DataError: nothing there, or not in one of the forms.
    """
    if str(source) in DATASETS and not Path(source).exists():
        return DATASETS[str(source)]().train
    path = Path(source)
    return as_images(train_scenes(path, missing)) if is_coco(path) else read_images(path)
