"""Training views for detectors: mirrored ones, and strong ones with photometric changes.

Images are floats (3, h, w) from 0 to 1 on any device; all draws come from torch's generator.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms import v2

ERASINGS = (
    (0.7, (0.05, 0.2), (0.3, 3.3)),
    (0.5, (0.02, 0.2), (0.1, 6.0)),
    (0.3, (0.02, 0.2), (0.05, 8.0)),
)
COLOURS: Callable[[Tensor], Tensor] = v2.Compose(
    [v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8), v2.RandomGrayscale(0.2)]
)
REACH = 4  # radius of the blur; images must be larger
BLUR: Callable[[Tensor], Tensor] = v2.RandomApply(
    [v2.GaussianBlur(2 * REACH + 1, (0.1, 2.0))], p=0.5
)


def mirrored(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror an image and its boxes (n, 4)."""
    left, top, right, bottom = boxes.unbind(1)
    width = image.shape[2]
    return image.flip(2), torch.stack([width - right, top, width - left, bottom], 1)


def weak(image: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Mirror half of the time."""
    return mirrored(image, boxes) if torch.rand(()) < 0.5 else (image, boxes)


def strong(image: Tensor) -> Tensor:
    """Change colours, blur, and erase parts; nothing moves, so boxes stay valid."""
    image = COLOURS(image)
    if min(image.shape[1:]) > REACH:
        image = BLUR(image)
    for chance, area, ratio in ERASINGS:
        if torch.rand(()) < chance:
            image = erased(image, area, ratio)
    return image


def erased(image: Tensor, area: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """A copy with a rectangle of noise; its share of the area and its aspect are within bounds."""
    height, width = image.shape[1:]
    pixels = height * width * float(torch.empty(()).uniform_(*area))
    aspect = math.exp(float(torch.empty(()).uniform_(math.log(ratio[0]), math.log(ratio[1]))))
    h = min(height, max(1, round(math.sqrt(pixels * aspect))))
    w = min(width, max(1, round(math.sqrt(pixels / aspect))))
    top, left = (int(torch.randint(room + 1, ())) for room in (height - h, width - w))
    image = image.clone()
    image[:, top : top + h, left : left + w] = torch.rand(3, h, w).to(image)
    return image
