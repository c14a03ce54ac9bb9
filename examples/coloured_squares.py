"""Small, easy images for the other examples: squares of six colours, one folder per colour."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {
    "blue": (40, 60, 220),
    "cyan": (40, 210, 210),
    "green": (50, 200, 60),
    "red": (220, 50, 40),
    "violet": (190, 60, 200),
    "yellow": (220, 210, 50),
}
SIDE = 64


def make_squares(root: Path, images: int = 24) -> Path:
    """Write JPEG files to root/COLOUR/NUMBER.jpg; the same pixels every time."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(images):
            pixels = rng.normal(128, 40, (SIDE, SIDE, 3))
            top, left = rng.integers(0, SIDE // 2, 2)
            pixels[top : top + SIDE // 2, left : left + SIDE // 2] += np.array(colour) - 128
            picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            picture.save(root / name / f"{number:02d}.jpg", quality=95)
    return root
