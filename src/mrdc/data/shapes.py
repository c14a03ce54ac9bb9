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
TRAIN, TEST = 500, 100
MOST = 4  # shapes in a scene
SIDES = (24, 56)  # pixels of a shape
QUALITY = 92


@cache
def shapes_splits() -> SceneSplits:
    """The same scenes every time; unlabelled ones are drawn from the training scenes."""
    return SceneSplits(_scenes("train", TRAIN), _scenes("test", TEST), None)


def _scenes(split: str, count: int) -> Scenes:
    drawn = [scene(np.random.default_rng((len(split), number))) for number in range(count)]
    files = [CODECS["jpeg"].encode(pixels, QUALITY) for pixels, _ in drawn]
    photos = tuple(
        Photo(f"{split}-{number:03d}.jpg", partial(bytes, file))
        for number, file in enumerate(files)
    )
    none = np.zeros((0, 5), np.float32)
    return Scenes(
        classes=CLASSES,
        categories=tuple(range(1, len(CLASSES) + 1)),
        photos=photos,
        sizes=tuple(map(len, files)),
        sides=((WIDTH, HEIGHT),) * count,
        boxes=tuple(boxes for _, boxes in drawn),
        crowds=(none,) * count,
    )


def scene(rng: np.random.Generator) -> tuple[Pixels, Boxes]:
    """Draw a scene: pixels, and boxes with labels."""
    ground = rng.uniform(60, 200, 3) + 40 * clouds(rng)[:, :, None]
    image = ground + rng.normal(0, 8, (HEIGHT, WIDTH, 3))
    boxes: list[tuple[float, ...]] = []
    for _ in range(int(rng.integers(1, MOST + 1))):
        side = int(rng.integers(*SIDES))
        left, top = int(rng.integers(WIDTH - side)), int(rng.integers(HEIGHT - side))
        box = (left, top, left + side, top + side)
        if any(_touch(box, other) for other in boxes):
            continue
        label = int(rng.integers(len(CLASSES)))
        window = image[top : top + side, left : left + side]
        window[inside(label, side)] = rng.uniform(0, 255, 3) + rng.normal(0, 8, 3)
        boxes.append((*map(float, box), float(label)))
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    return pixels, np.array(boxes, np.float32).reshape(-1, 5)


def inside(label: int, side: int) -> NDArray[np.bool_]:
    """Mask of the shape in a square."""
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    shapes = ((x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25, x <= 1, np.abs(x - 0.5) <= y / 2)
    chosen: NDArray[np.bool_] = shapes[label]
    return chosen


def clouds(rng: np.random.Generator) -> NDArray[np.float64]:
    """Smooth waves in random directions, between about -1 and 1."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] / WIDTH
    total = np.zeros((HEIGHT, WIDTH))
    for often, angle, shift in rng.uniform((0.5, 0, 0), (3, np.pi, 1), (3, 3)):
        along = x * np.cos(angle) + y * np.sin(angle)
        total += np.sin(2 * np.pi * (often * along + shift)) / 3
    return total


def _touch(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
