"""Crops of uint8 images: what training sees, and what embedding sees."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.codec.image import Pixels


def tensor(pixels: Pixels) -> Tensor:
    """Pixels (h, w, 3) as a uint8 tensor (3, h, w), sharing memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


def stack(images: Sequence[Pixels]) -> Tensor:
    """Images of one size as a batch (n, 3, h, w), channels last in memory.

    By numpy: torch would wake its team of threads, which those that decode keep busy.
    """
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Bilinear with antialiasing, on a uint8 image (3, h, w)."""
    if image.shape[1:] == (height, width):
        return image
    return F.interpolate(
        image[None], (height, width), mode="bilinear", antialias=True, align_corners=False
    )[0]


def centre_crop(image: Tensor, size: int, short: int | None = None) -> Tensor:
    """The evaluation view: short side to `short`, or size * 256 / 224, then the centre."""
    return tensor(centre(image.permute(1, 2, 0).numpy(), size, short))


def centre(pixels: Pixels, size: int, short: int | None = None) -> Pixels:
    """`centre_crop` of pixels; a view of them where their size is right.

    By numpy: many threads that call torch for small things wait for each other.
    """
    height, width = pixels.shape[:2]
    scale = (short or round(size * 256 / 224)) / min(height, width)
    wanted = max(size, round(height * scale)), max(size, round(width * scale))
    if wanted != (height, width):
        pixels = resize(tensor(pixels), *wanted).permute(1, 2, 0).numpy()
    top, left = (wanted[0] - size) // 2, (wanted[1] - size) // 2
    return pixels[top : top + size, left : left + size]


def crop_box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop.

    The distribution of torchvision's RandomResizedCrop: area uniform in 8 to
    100 %, aspect log-uniform in 3/4 to 4/3, ten tries, then the centre.
    """
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h <= height and 0 < w <= width:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    h = min(height, round(width / (3 / 4))) if width / height < 3 / 4 else height
    w = min(width, round(height * (4 / 3))) if width / height > 4 / 3 else width
    return (height - h) // 2, (width - w) // 2, h, w


def train_crop(image: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """The training view: a random crop, resized, mirrored half of the time."""
    top, left, height, width = crop_box(image.shape[1], image.shape[2], rng)
    image = resize(image[:, top : top + height, left : left + width], size, size)
    return image.flip(2) if rng.random() < 0.5 else image
