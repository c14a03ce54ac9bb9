"""Labelled images: built-in sets by name, and people's own files."""

from mrdc.data.coco import open_scenes
from mrdc.data.images import ImageSet, read_images
from mrdc.data.photo import Photo
from mrdc.data.scenes import Scenes, SceneSplits
from mrdc.data.sources import check_source, open_images
from mrdc.data.splits import DATASETS, Splits, open_splits
from mrdc.data.stream import Stream, make_stream, open_stream

__all__ = [
    "DATASETS",
    "ImageSet",
    "Photo",
    "SceneSplits",
    "Scenes",
    "Splits",
    "Stream",
    "check_source",
    "make_stream",
    "open_images",
    "open_scenes",
    "open_splits",
    "open_stream",
    "read_images",
]
