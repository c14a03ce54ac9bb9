"""Crops of uint8 images, for training and for embedding."""

import math
from collections.abc import Sequence

import numpy as np

from mrdc._utils.extras import Tensor, torch
from mrdc.codec.image import Pixels

AREAS = (0.08, 1.0)  # share of the image that a random crop takes
LOG_ASPECTS = (math.log(3 / 4), math.log(4 / 3))
TRIES = 10


def tensor(pixels: Pixels) -> Tensor:
    """Pixels (h, w, 3) as a uint8 tensor (3, h, w), sharing memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


def stack(images: Sequence[Pixels]) -> Tensor:
    """Images of one size as a batch (n, 3, h, w), channels last in memory.

    Uses numpy: torch would wake its own threads, which compete with the decoding threads.
    """
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Resize a uint8 image (3, h, w), bilinear with antialiasing."""
    if image.shape[1:] == (height, width):
        return image
    return torch.nn.functional.interpolate(
        image[None], (height, width), mode="bilinear", antialias=True, align_corners=False
    )[0]


def short_side(size: int) -> int:
    """Short side of an image before its centre is cropped to `size`."""
    return round(size * 256 / 224)


def centre_crop(image: Tensor, size: int, short: int | None = None) -> Tensor:
    """Evaluation view: scale the short side to `short`, or size * 256 / 224; crop the centre."""
    return tensor(centre(image.permute(1, 2, 0).numpy(), size, short))


def centre(pixels: Pixels, size: int, short: int | None = None) -> Pixels:
    """`centre_crop` of pixels; a view of them if no scaling is needed.

    Uses numpy: threads that call torch for small operations wait for each other.
    """
    height, width = pixels.shape[:2]
    scale = (short or short_side(size)) / min(height, width)
    wanted = max(size, round(height * scale)), max(size, round(width * scale))
    if wanted != (height, width):
        pixels = resize(tensor(pixels), *wanted).permute(1, 2, 0).numpy()
    top, left = (wanted[0] - size) // 2, (wanted[1] - size) // 2
    return pixels[top : top + size, left : left + size]


def crop_box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw top, left, height and width of a random crop.

    Distributed as in torchvision's RandomResizedCrop: area uniform in 8 to 100 %, aspect
    log-uniform in 3/4 to 4/3; the centre if ten tries do not fit.
    """
    for _ in range(TRIES):
        area = height * width * rng.uniform(*AREAS)
        aspect = math.exp(rng.uniform(*LOG_ASPECTS))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h <= height and 0 < w <= width:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    h = min(height, round(width / (3 / 4))) if width / height < 3 / 4 else height
    w = min(width, round(height * (4 / 3))) if width / height > 4 / 3 else width
    return (height - h) // 2, (width - w) // 2, h, w


def train_crop(
    image: Tensor, size: int, rng: np.random.Generator, sides: tuple[int, int] | None = None
) -> Tensor:
    """Training view: a random crop, resized, mirrored half of the time.

    With `sides`, the part that an image of that height and width would be cropped to.
    """
    height, width = image.shape[1:]
    tall, wide = sides or (height, width)
    top, left, h, w = crop_box(tall, wide, rng)
    rows, columns = span(top, h, height / tall), span(left, w, width / wide)
    image = resize(image[:, rows, columns], size, size)
    return image.flip(2) if rng.random() < 0.5 else image


def span(start: int, length: int, scale: float) -> slice:
    """The slice of `length` pixels, in an image `scale` times as long; at least one pixel."""
    first = int(start * scale)
    return slice(first, max(first + 1, round((start + length) * scale)))
