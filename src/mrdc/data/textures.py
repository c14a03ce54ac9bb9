"""`textures`: a synthetic set for demos and tests, generated in a second.

A class is a fine pattern (stripes, dots, rings, ...) of random scale, direction and strength on a
smooth background of random colours. Only the fine detail distinguishes classes, in any crop and
mirrored, and strong compression removes that first: so both quality and quantity matter.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import Jpeg
from mrdc.data.images import ImageSet, gather
from mrdc.data.photo import Photo

CLASSES, IMAGES, TEST_IMAGES, SIDE = 10, 60, 20, 64
Plane = NDArray[np.float64]
QUALITY = 95  # JPEG quality of the originals


def textures(
    classes: int = CLASSES, images: int = IMAGES, seed: int = 0, first: int = 0
) -> ImageSet:
    """The set as JPEG files in memory, numbered from `first`; a seed gives the same bytes."""
    names = [f"texture{label:02d}" for label in range(classes)]
    entries = []
    for label, number in product(range(classes), range(first, first + images)):
        data = Jpeg().encode(texture(label, np.random.default_rng((seed, label, number))), QUALITY)
        photo = Photo(f"{names[label]}/{number:04d}.jpg", partial(bytes, data))
        entries.append((names[label], photo, len(data)))
    return gather(entries, names)


def textures_splits(
    classes: int = CLASSES, images: int = IMAGES, test_images: int = TEST_IMAGES, seed: int = 0
) -> tuple[ImageSet, ImageSet]:
    """The synthetic set, and test images numbered after the training images."""
    return textures(classes, images, seed), textures(classes, test_images, seed, first=images)


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
    return np.clip(background + detail[:, :, None], 0, 255).astype(np.uint8)


ROOT = math.sqrt(3) / 2
PATTERNS: tuple[Callable[[Plane, Plane], Plane], ...] = (
    lambda u, v: np.sin(u),  # stripes
    lambda u, v: 1.4 * np.sin(u) * np.sin(v),  # checks
    lambda u, v: 3 * np.exp(2 * (np.cos(u) + np.cos(v) - 2)) - 0.4,  # dots
    lambda u, v: 0.4 - 3 * np.exp(2 * (np.cos(u) + np.cos(v) - 2)),  # holes
    lambda u, v: 1.3 * np.maximum(np.cos(u), np.cos(v)) - 0.5,  # lattice
    lambda u, v: (
        0.7 * (np.cos(u) + np.cos(u / 2 + v * ROOT) + np.cos(u / 2 - v * ROOT))
    ),  # honeycomb
    lambda u, v: np.sin(u + 2 * np.arcsin(np.sin(v / 2))),  # zigzag
    lambda u, v: np.sin(u + math.pi * (np.sin(v / 2) > 0)),  # bricks
    lambda u, v: np.sin(np.hypot(u, v)),  # rings
    lambda u, v: 0.8 * (np.sin(u) + np.sin(v / 2)),  # plaid
)
