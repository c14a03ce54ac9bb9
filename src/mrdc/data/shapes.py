"""`shapes`: synthetic scenes for detectors, generated in a second from a seed.

Discs, squares and triangles of random colour and size on cloudy backgrounds, 160 x 120, saved as
JPEG. They are not photos and only show that training works.
"""

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes, Scenes, SceneSplits

WIDTH, HEIGHT = 160, 120
CLASSES = ("disc", "square", "triangle")
TRAIN, TEST, MOST = 500, 100, 4  # scenes of each split, and shapes in a scene
SIDES = (24, 56)  # pixels of a shape
QUALITY = 92


@cache
def shapes_splits() -> SceneSplits:
    """The same scenes every time; unlabelled ones are drawn from the training scenes."""
    return SceneSplits(_scenes("train", TRAIN), _scenes("test", TEST), None)


def _scenes(split: str, count: int) -> Scenes:
    drawn = [scene(np.random.default_rng((len(split), number))) for number in range(count)]
    files = [CODECS["jpeg"].encode(pixels, QUALITY) for pixels, _ in drawn]
    return Scenes(
        classes=CLASSES,
        categories=tuple(range(1, len(CLASSES) + 1)),
        photos=tuple(
            Photo(f"{split}-{n:03d}.jpg", partial(bytes, file)) for n, file in enumerate(files)
        ),
        sizes=tuple(map(len, files)),
        sides=((WIDTH, HEIGHT),) * count,
        boxes=tuple(boxes for _, boxes in drawn),
        crowds=(np.zeros((0, 5), np.float32),) * count,
    )


def scene(rng: np.random.Generator) -> tuple[Pixels, Boxes]:
    """Draw a scene: pixels, and boxes with labels."""
    ground = rng.uniform(60, 200, 3) + 40 * clouds(rng)[:, :, None]
    image = ground + rng.normal(0, 8, (HEIGHT, WIDTH, 3))
    boxes: list[tuple[float, ...]] = []
    for _ in range(int(rng.integers(1, MOST + 1))):
        side = int(rng.integers(*SIDES))
        left, top = int(rng.integers(WIDTH - side)), int(rng.integers(HEIGHT - side))
        right, bottom = left + side, top + side
        if any(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in boxes):
            continue
        label = int(rng.integers(len(CLASSES)))
        window = image[top : top + side, left : left + side]
        y, x = (np.mgrid[:side, :side] + 0.5) / side
        inside = ((x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25, x <= 1, np.abs(x - 0.5) <= y / 2)
        window[inside[label]] = rng.uniform(0, 255, 3) + rng.normal(0, 8, 3)
        boxes.append((left, top, right, bottom, label))
    return np.clip(image, 0, 255).astype(np.uint8), np.array(boxes, np.float32).reshape(-1, 5)


def clouds(rng: np.random.Generator) -> NDArray[np.float64]:
    """Smooth waves in random directions, between about -1 and 1."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] / WIDTH
    total = np.zeros((HEIGHT, WIDTH))
    for often, angle, shift in rng.uniform((0.5, 0, 0), (3, np.pi, 1), (3, 3)):
        along = x * np.cos(angle) + y * np.sin(angle)
        total += np.sin(2 * np.pi * (often * along + shift)) / 3
    return total
