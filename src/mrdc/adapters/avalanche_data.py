"""Samples of Avalanche's data sets as photos, and stored photos as data."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from avalanche.benchmarks.utils.flat_data import FlatData
from PIL import Image
from torch.utils.data import Dataset

from mrdc._utils.errors import UsageError
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo, file_photo


class Stored(Dataset[tuple[Image.Image, int]]):
    """Stored images of a class, decoded when they are read."""

    def __init__(self, photos: Sequence[Photo], target: int):
        self.photos, self.target = photos, target
        self.targets = [target] * len(photos)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.photos[index].pixels()), self.target


class Through:
    """The transforms of some groups under one name, for the image alone."""

    min_params = max_params = 1  # Avalanche looks at these

    def __init__(self, transforms: tuple[Any, ...], name: str):
        self.transforms, self.name = transforms, name

    def __call__(self, image: Any) -> Any:
        return apply_transforms(self.transforms, self.name, image)


def apply_transforms(transforms: tuple[Any, ...], name: str, image: Any) -> Any:
    """An image after the transforms of one name, innermost first."""
    for groups in transforms:
        image = groups([image, 0], group_name=name)[0]
    return image


def locate(data: Any, index: int) -> tuple[Any, int, tuple[Any, ...]]:
    """The torch data set and index that a sample comes from, and the transforms on its way."""
    part, place = data._get_idx(index)
    child = data._datasets[part]
    own = (data._frozen_transform_groups, data._transform_groups)
    if not isinstance(child, FlatData):
        return child, place, own
    raw, place, inner = locate(child, place)
    return raw, place, inner + own


def as_photo(raw: Any, index: int, name: str) -> Photo:
    """A sample as a photo: the file of an ImageFolder, else pixels."""
    samples = getattr(raw, "samples", None)
    if isinstance(samples, list) and getattr(raw, "transform", None) is None:
        return file_photo(str(samples[index][0]), name)
    return Photo(name, partial(_pixels, raw, index))


def _pixels(raw: Any, index: int) -> Pixels:
    image = raw[index][0]
    if not isinstance(image, Image.Image):
        raise UsageError(
            f"sample {index} of {type(raw).__name__} is a {type(image).__name__}, not a PIL image: "
            "leave the data set without a transform, and give the benchmark its transforms"
        )
    return np.asarray(image.convert("RGB"))
