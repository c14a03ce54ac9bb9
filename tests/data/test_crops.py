"""Crops, one by one and in batches, against torchvision's."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import RandomResizedCrop, v2

from mrdc.data.batch_crops import Crops, crop_batch, draw_crops, weights
from mrdc.data.crops import centre_crop, crop_box, resize, tensor, train_crop
from tests.conftest import pixels

pytestmark = pytest.mark.usefixtures("seeded")

DRAWS = 20_000
LIMIT = math.sqrt(math.log(2 / 1e-6) / 2) * math.sqrt(2 / DRAWS)
SIDES = st.integers(1, 60)


def draw(height: int, width: int, count: int, seed: int = 0) -> Crops:
    high, wide = (np.full(count, side, np.int64) for side in (height, width))
    return draw_crops(high, wide, np.random.default_rng(seed))


def drawn(height: int, width: int, count: int) -> list[list[NDArray[np.float64]]]:
    """Top, left, height and width of many boxes, drawn in a batch and one by one."""
    rng = np.random.default_rng(0)
    single = np.array([crop_box(height, width, rng) for _ in range(count)], float)
    return [[np.asarray(side, float) for side in draw(height, width, count)[:4]], list(single.T)]


def torchvisions(height: int, width: int, count: int) -> list[NDArray[np.float64]]:
    """Top, left, height and width of many draws by torchvision."""
    blank = torch.empty(3, height, width)
    scale, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
    boxes = [RandomResizedCrop.get_params(blank, scale, ratio) for _ in range(count)]
    return list(np.array(boxes, float).T)


def measures(boxes: list[NDArray[np.float64]], height: int, width: int) -> dict[str, Tensor]:
    """Numbers that distinguish distributions of boxes."""
    top, left, h, w = boxes
    values = {
        "area": h * w / (height * width),
        "aspect": w / h,
        "top": top,
        "left": left,
        "height": h,
        "width": w,
        "below": height - h - top,
        "middle": (top + h / 2) * (left + w / 2),
    }
    return {name: torch.from_numpy(value.astype(np.float64)) for name, value in values.items()}


def gap(a: Tensor, b: Tensor) -> float:
    """Kolmogorov-Smirnov distance: the largest gap between two cumulative distributions."""
    places = torch.cat([a, b]).sort().values
    parts = [torch.searchsorted(v.sort().values, places, right=True) / len(v) for v in (a, b)]
    return (parts[0] - parts[1]).abs().max().item()


@pytest.mark.parametrize(
    ("height", "width"), [(224, 224), (300, 400), (400, 300), (100, 300), (300, 90), (9, 13)]
)
def test_boxes_are_distributed_as_torchvisions(height: int, width: int) -> None:
    """Gaps stay below what chance allows once in a million (two-sample KS test)."""
    theirs = measures(torchvisions(height, width, DRAWS), height, width)
    batch, single = (measures(boxes, height, width) for boxes in drawn(height, width, DRAWS))
    for name, value in [*batch.items(), *single.items()]:
        assert gap(value, theirs[name]) < LIMIT, name
        error = math.sqrt(2 * theirs[name].var().item() / DRAWS)
        assert abs(value.mean() - theirs[name].mean()) < 5 * error + 1e-9, name


def test_the_comparison_sees_a_wrong_distribution() -> None:
    """Areas from 11 % instead of 8 % are detected."""
    assert gap(torch.linspace(0.08, 1, DRAWS), torch.linspace(0.11, 1, DRAWS)) > LIMIT


@pytest.mark.parametrize(("height", "width"), [(20, 400), (400, 20), (1, 50), (50, 1), (10, 300)])
def test_boxes_of_long_images_are_torchvisions_centre(height: int, width: int) -> None:
    """If no try can fit, all boxes are equal."""
    theirs = set(zip(*torchvisions(height, width, 50), strict=True))
    for boxes in drawn(height, width, 50):
        assert set(zip(*boxes, strict=True)) == theirs
    assert len(theirs) == 1


@settings(max_examples=200, deadline=None)
@given(sides=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20), seed=st.integers(0, 99))
def test_boxes_lie_inside_their_own_image(sides: list[tuple[int, int]], seed: int) -> None:
    """Whole pixels, at least one, within the sides of each image."""
    height, width = (np.array(side, np.int64) for side in zip(*sides, strict=True))
    top, left, h, w, _ = draw_crops(height, width, np.random.default_rng(seed))
    for values in (top, left, h, w):
        assert (values == np.rint(values)).all()
    assert ((h >= 1) & (w >= 1) & (top >= 0) & (left >= 0)).all()
    assert ((top + h <= height) & (left + w <= width)).all()


def test_half_of_the_boxes_are_mirrored() -> None:
    """Within five deviations, and independently of the box; the seed determines all."""
    first, again, other = (np.stack(draw(64, 64, 9, seed)) for seed in (0, 0, 1))
    assert (first == again).all() and not (first == other).all()
    crops = draw(64, 64, DRAWS)
    five = 5 / math.sqrt(4 * DRAWS)
    assert abs(crops.flip.mean() - 0.5) < five
    assert abs(np.corrcoef(crops.flip, crops.left)[0, 1]) < 2 * five


def test_centre_crop_is_resize_then_crop() -> None:
    """Like torchvision's Resize(256) and CenterCrop(224), up to rounding, for any shape."""
    image = tensor(pixels(0, 300, 400))
    resized = v2.functional.resize(image, [256], antialias=True)
    expected = v2.functional.center_crop(resized, [224, 224])
    assert (centre_crop(image, 224).int() - expected.int()).abs().max() <= 1
    for height, width in ((1, 1), (3, 500), (700, 2), (16, 16)):
        assert centre_crop(tensor(pixels(0, height, width)), 32).shape == (3, 32, 32)


def test_half_of_the_training_views_are_mirrored() -> None:
    """A ramp distinguishes left from right."""
    ramp = torch.arange(64, dtype=torch.uint8).repeat(3, 64, 1)
    rng = np.random.default_rng(0)
    views = [train_crop(ramp, 16, rng) for _ in range(400)]
    mirrored = sum(bool(view[0, 0, 0] > view[0, 0, -1]) for view in views)
    assert 160 < mirrored < 240
    assert all(view.shape == (3, 16, 16) for view in views)


def crop(image: Tensor, box: tuple[int, int, int, int], flip: bool, size: int) -> Tensor:
    """The view that training from RAM makes."""
    top, left, height, width = box
    view = resize(image[:, top : top + height, left : left + width], size, size)
    return view.flip(2) if flip else view


@settings(max_examples=80, deadline=None)
@given(
    sides=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4),
    size=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_batches_of_crops_are_the_crops_one_by_one(
    sides: list[tuple[int, int]], size: int, seed: int
) -> None:
    """Within a grey level, enlarged or reduced; pixels around an image never show."""
    height, width = (np.array(side, np.int64) for side in zip(*sides, strict=True))
    drawn = draw_crops(height, width, np.random.default_rng(seed))
    canvas = torch.randint(0, 2, (len(sides), 3, 60, 60), dtype=torch.uint8) * 255
    images = [tensor(pixels(seed + n, h, w)) for n, (h, w) in enumerate(sides)]
    for place, image in zip(canvas, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    crops = torch.from_numpy(np.stack(drawn).astype(np.float32))
    views = crop_batch(canvas, crops, size)
    assert views.shape == (len(sides), 3, size, size)
    for number, (image, view) in enumerate(zip(images, views, strict=True)):
        top, left, h, w = (int(values[number]) for values in drawn[:4])
        expected = crop(image, (top, left, h, w), bool(drawn.flip[number]), size)
        assert (view - expected).abs().max() < 1.05  # the single crop is rounded twice


def test_a_crop_of_its_own_size_is_the_crop() -> None:
    """Without resizing no pixel changes; mirrored on demand."""
    image = tensor(pixels(0, 20, 30))[None].repeat(2, 1, 1, 1)
    crops = torch.tensor([[3.0, 3.0], [5.0, 5.0], [8.0, 8.0], [8.0, 8.0], [0.0, 1.0]])
    plain, mirrored = crop_batch(image, crops, 8)
    torch.testing.assert_close(plain, image[0, :, 3:11, 5:13].float())
    torch.testing.assert_close(mirrored, image[0, :, 3:11, 5:13].flip(2).float())


@settings(max_examples=100, deadline=None)
@given(start=st.integers(0, 30), length=st.integers(1, 30), size=st.integers(1, 60))
def test_weights_share_one_among_the_pixels_of_the_crop(start: int, length: int, size: int) -> None:
    """Each row is non-negative, sums to 1, and is 0 outside."""
    matrix = weights(torch.tensor([float(start)]), torch.tensor([float(length)]), 60, size)[0]
    assert matrix.shape == (size, 60)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(1), torch.ones(size))
    assert (matrix[:, :start] == 0).all()
    assert (matrix[:, start + length :] == 0).all()


def test_weights_by_hand() -> None:
    """Four pixels to two: triangles of width two around 1 and 3, cut off at the ends."""
    expected = torch.tensor([[3.0, 3.0, 1.0, 0.0], [0.0, 1.0, 3.0, 3.0]]) / 7
    got = weights(torch.tensor([0.0]), torch.tensor([4.0]), 4, 2)[0]
    torch.testing.assert_close(got, expected)
