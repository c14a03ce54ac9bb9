"""Labelled images: built-in sets by name, and people's own files."""

from mrdc.data.images import ImageSet, Splits
from mrdc.data.splits import DATASETS, check_source, open_images, open_splits
from mrdc.data.stream import make_stream

__all__ = [
    "DATASETS",
    "ImageSet",
    "Splits",
    "check_source",
    "make_stream",
    "open_images",
    "open_splits",
]
