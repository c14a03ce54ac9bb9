"""`textures`: a synthetic set for demos and tests, generated in a second.

A class is a fine pattern (stripes, dots, rings, ...) of random scale, direction and strength on a
smooth background of random colours. Only the fine detail distinguishes classes, in any crop and
mirrored, and strong compression removes that first: so both quality and quantity matter.
"""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import Jpeg
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo

CLASSES = 10
IMAGES = 60
TEST_IMAGES = 20
SIDE = 64
Plane = NDArray[np.float64]
QUALITY = 95  # JPEG quality of the originals


def textures(classes: int = CLASSES, images: int = IMAGES, seed: int = 0) -> ImageSet:
    """The synthetic set as JPEG files in memory; the same seed gives the same bytes."""
    return _make(classes, range(images), seed)


def textures_splits(
    classes: int = CLASSES, images: int = IMAGES, test_images: int = TEST_IMAGES, seed: int = 0
) -> tuple[ImageSet, ImageSet]:
    """The synthetic set, and test images numbered after the training images."""
    numbers = range(images, images + test_images)
    return textures(classes, images, seed), _make(classes, numbers, seed)


def _make(classes: int, numbers: range, seed: int) -> ImageSet:
    photos: tuple[list[Photo], ...] = tuple([] for _ in range(classes))
    sizes: tuple[list[int], ...] = tuple([] for _ in range(classes))
    for label in range(classes):
        for number in numbers:
            rng = np.random.default_rng((seed, label, number))
            data = Jpeg().encode(texture(label, rng), QUALITY)
            photos[label].append(
                Photo(f"texture{label:02d}/{number:04d}.jpg", partial(bytes, data))
            )
            sizes[label].append(len(data))
    return ImageSet(tuple(f"texture{label:02d}" for label in range(classes)), photos, sizes)


def texture(kind: int, rng: np.random.Generator) -> Pixels:
    """Draw one image of class `kind`."""
    coarse = Image.fromarray(rng.integers(40, 216, (4, 4, 3), dtype=np.uint8))
    background = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
    angle, wavelength = rng.uniform(0, math.pi), rng.uniform(6.0, 10.0)
    y, x = np.mgrid[:SIDE, :SIDE] - rng.uniform(0, SIDE, 2)[:, None, None]
    u = (x * math.cos(angle) + y * math.sin(angle)) * 2 * math.pi / wavelength
    v = (y * math.cos(angle) - x * math.sin(angle)) * 2 * math.pi / wavelength
    detail = rng.uniform(18, 36) * PATTERNS[kind % len(PATTERNS)](u, v)
    detail += rng.uniform(2, 14) * rng.normal(0, 1, (SIDE, SIDE))
    pixels: Pixels = np.clip(background + detail[:, :, None], 0, 255).astype(np.uint8)
    return pixels


def _stripes(u: Plane, v: Plane) -> Plane:
    return np.sin(u)


def _checks(u: Plane, v: Plane) -> Plane:
    return 1.4 * np.sin(u) * np.sin(v)


def _dots(u: Plane, v: Plane) -> Plane:
    dots: Plane = 3 * np.exp(2 * (np.cos(u) + np.cos(v) - 2)) - 0.4
    return dots


def _holes(u: Plane, v: Plane) -> Plane:
    return -_dots(u, v)


def _lattice(u: Plane, v: Plane) -> Plane:
    return 1.3 * np.maximum(np.cos(u), np.cos(v)) - 0.5


def _honeycomb(u: Plane, v: Plane) -> Plane:
    across = v * math.sqrt(3) / 2
    cells: Plane = np.cos(u) + np.cos(u / 2 + across) + np.cos(u / 2 - across)
    return 0.7 * cells


def _zigzag(u: Plane, v: Plane) -> Plane:
    zigzag: Plane = np.sin(u + 2 * np.arcsin(np.sin(v / 2)))
    return zigzag


def _bricks(u: Plane, v: Plane) -> Plane:
    return np.sin(u + math.pi * (np.sin(v / 2) > 0))


def _rings(u: Plane, v: Plane) -> Plane:
    rings: Plane = np.sin(np.hypot(u, v))
    return rings


def _plaid(u: Plane, v: Plane) -> Plane:
    return 0.8 * (np.sin(u) + np.sin(v / 2))


PATTERNS = (
    _stripes,
    _checks,
    _dots,
    _holes,
    _lattice,
    _honeycomb,
    _zigzag,
    _bricks,
    _rings,
    _plaid,
)
