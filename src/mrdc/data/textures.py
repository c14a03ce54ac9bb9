"""Textures: a synthetic set made in a second, for demos and tests.

A class is a fine grating (direction and wavelength) on a smooth background of
random colours. Only the fine detail tells classes apart, and that is what
strong compression removes first, so quality matters.
"""

import math
from functools import partial

import numpy as np
from PIL import Image

from mrdc.codec.jpeg import Jpeg
from mrdc.data.images import ImageSet
from mrdc.image import Photo, Pixels

CLASSES = 10
IMAGES = 60
TEST_IMAGES = 20
SIDE = 64
QUALITY = 95  # of the files that count as originals


def textures(classes: int = CLASSES, images: int = IMAGES, seed: int = 0) -> ImageSet:
    """The synthetic set as JPEG files in memory; the same seed gives the same bytes."""
    return _make(classes, range(images), seed)


def textures_splits(
    classes: int = CLASSES, images: int = IMAGES, test_images: int = TEST_IMAGES, seed: int = 0
) -> tuple[ImageSet, ImageSet]:
    """The synthetic set, and test images whose numbers follow on from those for training."""
    numbers = range(images, images + test_images)
    return textures(classes, images, seed), _make(classes, numbers, seed)


def _make(classes: int, numbers: range, seed: int) -> ImageSet:
    photos: tuple[list[Photo], ...] = tuple([] for _ in range(classes))
    sizes: tuple[list[int], ...] = tuple([] for _ in range(classes))
    for label in range(classes):
        for number in numbers:
            rng = np.random.default_rng((seed, label, number))
            data = Jpeg().encode(texture(label / classes, rng), QUALITY)
            photos[label].append(
                Photo(f"texture{label:02d}/{number:04d}.jpg", partial(bytes, data))
            )
            sizes[label].append(len(data))
    return ImageSet(tuple(f"texture{label:02d}" for label in range(classes)), photos, sizes)


def texture(kind: float, rng: np.random.Generator) -> Pixels:
    """One image of a class; `kind` in [0, 1) says which."""
    coarse = Image.fromarray(rng.integers(40, 216, (4, 4, 3), dtype=np.uint8))
    background = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
    angle = math.pi * kind + rng.normal(0, 0.04)
    wavelength = 2.6 + 2.4 * ((kind * 7) % 1) + rng.normal(0, 0.05)
    y, x = np.mgrid[:SIDE, :SIDE]
    along = x * math.cos(angle) + y * math.sin(angle)
    grating = np.sin(2 * math.pi * along / wavelength + rng.uniform(0, 2 * math.pi))
    detail = rng.uniform(12, 28) * grating + rng.normal(0, 6, (SIDE, SIDE))
    pixels: Pixels = np.clip(background + detail[:, :, None], 0, 255).astype(np.uint8)
    return pixels
