"""Examples that are easy to recognise, and all views of a feed."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mrdc.codec.image import Pixels
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.training.batches import Feed
from mrdc.training.feed import Resident
from tests.conftest import jpeg

CPU = torch.device("cpu")
PLACES: list[Resident] = ["gpu", "ram", "stream"]


def photo(name: str, data: bytes | Pixels) -> Photo:
    return Photo(name, partial(_same, data))


def _same(data: bytes | Pixels) -> bytes | Pixels:
    return data


def examples(images: Sequence[bytes | Pixels]) -> Examples:
    """Images labelled, and named, by their positions."""
    photos = (photo(str(place), image) for place, image in enumerate(images))
    return Examples(tuple(photos), tuple(range(len(images))))


def plain(sides: Sequence[tuple[int, int]], step: int = 1) -> Examples:
    """Images of one grey each: `step` times the label."""
    greys = [np.full((h, w, 3), step * n % 256, np.uint8) for n, (h, w) in enumerate(sides)]
    return examples(greys)


def varied(count: int = 12) -> Examples:
    """JPEG files of several sizes, with detail."""
    return examples([jpeg(n, 95, 20 + n % 7, 40 - n % 11) for n in range(count)])


def ramp(height: int, width: int) -> Pixels:
    """Red grows to the right and green downwards, from 0 to 255."""
    down, right = np.mgrid[0:height, 0:width]
    colours = [255 * right / max(width - 1, 1), 255 * down / max(height - 1, 1), 0 * right]
    image: Pixels = np.rint(np.stack(colours, 2)).astype(np.uint8)
    return image


def everything(feed: Feed, seed: int = 0, epoch: int = 0, batch_size: int = 5) -> list[Tensor]:
    """All of an epoch: images, labels, and any companions with their numbers."""
    return [torch.cat(part) for part in zip(*feed.epoch(batch_size, seed, epoch), strict=True)]


def equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
