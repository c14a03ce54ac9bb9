"""Training views of many images at once, on any device.

Distributed as torchvision's RandomResizedCrop and horizontal flip, computed as two matrix
products: a crop, its antialiased resize and the flip are all linear in the pixels, so each image
has one matrix for its rows and one for its columns.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.extras import Tensor, torch
from mrdc.data.crops import AREAS, LOG_ASPECTS, TRIES, short_side

Floats = NDArray[np.float32]


class Crops(NamedTuple):
    """Crop boxes of n images in pixels, and which images are mirrored."""

    top: Floats
    left: Floats
    height: Floats
    width: Floats
    flip: NDArray[np.bool_]

    def scaled(self, vertical: NDArray[Any], horizontal: NDArray[Any]) -> "Crops":
        """The same crops of images whose sides are this many times as long."""
        top, left, height, width, flip = self
        return Crops(top * vertical, left * horizontal, height * vertical, width * horizontal, flip)


def draw_crops(
    height: NDArray[np.int64], width: NDArray[np.int64], rng: np.random.Generator
) -> Crops:
    """Draw random crops of images of these sizes: `crops.crop_box` for all at once."""
    n = len(height)
    area = (height * width)[:, None] * rng.uniform(*AREAS, (n, TRIES))
    aspect = np.exp(rng.uniform(*LOG_ASPECTS, (n, TRIES)))
    h, w = np.rint(np.sqrt(area / aspect)), np.rint(np.sqrt(area * aspect))
    fits = (h > 0) & (w > 0) & (h <= height[:, None]) & (w <= width[:, None])
    first = fits.argmax(1)[:, None]
    h, w = (np.take_along_axis(side, first, 1)[:, 0] for side in (h, w))
    tall, wide = width / height < 3 / 4, width / height > 4 / 3  # their centre, if no try fits
    whole_h = np.where(tall, np.minimum(height, np.rint(width * 4 / 3)), height)
    whole_w = np.where(wide, np.minimum(width, np.rint(height * 4 / 3)), width)
    found = fits.any(1)
    h, w = np.where(found, h, whole_h), np.where(found, w, whole_w)
    top = np.where(found, np.floor(rng.random(n) * (height - h + 1)), (height - h) // 2)
    left = np.where(found, np.floor(rng.random(n) * (width - w + 1)), (width - w) // 2)
    top, left, h, w = (side.astype(np.float32) for side in (top, left, h, w))
    return Crops(top, left, h, w, rng.random(n) < 0.5)


def centre_crops(height: NDArray[np.int64], width: NDArray[np.int64], size: int) -> Crops:
    """The evaluation view, `crops.centre_crop`, as crops of images of these sizes."""
    scale = short_side(size) / np.minimum(height, width)
    sides = []
    for edge in (height, width):
        scaled = np.maximum(size, np.rint(edge * scale))
        start = (scaled - size) // 2 * edge / scaled
        sides += [start.astype(np.float32), (size * edge / scaled).astype(np.float32)]
    top, h, left, w = sides
    return Crops(top, left, h, w, np.zeros(len(height), bool))


def crop_batch(images: Tensor, crops: Tensor, size: int) -> Tensor:
    """Crop uint8 images (n, 3, h, w) and resize them to (n, 3, size, size), from 0 to 255.

    `crops` (5, n) are top, left, height, width, and 1 if mirrored. Fastest if the channels of a
    row of pixels are contiguous in memory.
    """
    exact = torch.float16 if images.is_cuda else torch.float32  # 11 bits: a fraction of a level
    top, left, height, width, flip = crops.float()
    n, channels, pixel_rows, pixel_columns = images.shape
    rows = weights(top, height, pixel_rows, size).to(exact)
    columns = weights(left, width, pixel_columns, size)
    columns = torch.where(flip.bool()[:, None, None], columns.flip(1), columns).to(exact)
    lines = images.permute(0, 2, 1, 3).reshape(n, pixel_rows * channels, pixel_columns)
    narrow = (lines.to(exact) @ columns.mT).view(n, pixel_rows, channels * size)
    return (rows @ narrow).view(n, size, channels, size).permute(0, 2, 1, 3)


@cache
def compiled_crop() -> Callable[[Tensor, Tensor, int], Tensor]:
    """`crop_batch`, compiled once for all feeds."""
    return torch.compile(crop_batch, dynamic=False)


def weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """Matrices (n, size, pixels) that resize [start, start + length) with antialiasing.

    A triangle filter around each target's centre, as wide as a target but at least a pixel, cut
    off at the crop and scaled to sum to 1.
    """
    step = (length / size)[:, None, None]
    place = torch.arange(size, device=start.device, dtype=torch.float32)[None, :, None]
    pixel = torch.arange(pixels, device=start.device, dtype=torch.float32)[None, None, :]
    first = start[:, None, None]
    centre = first + (place + 0.5) * step
    reach = step.clamp(min=1.0)
    weight = (1 - (pixel + 0.5 - centre).abs() / reach).clamp(min=0)
    weight = weight * ((pixel + 1 > first) & (pixel < first + length[:, None, None]))
    return weight / weight.sum(2, keepdim=True)
