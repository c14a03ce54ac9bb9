"""Crops, against torchvision's."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from mrdc.data.crops import centre_crop, crop_box, tensor, train_crop
from tests.conftest import pixels


def test_centre_crop_is_resize_then_crop() -> None:
    """Like torchvision's Resize(256) and CenterCrop(224), up to rounding."""
    image = tensor(pixels(0, 300, 400))
    resized = v2.functional.resize(image, [256], antialias=True)
    expected = v2.functional.center_crop(resized, [224, 224])
    assert (centre_crop(image, 224).int() - expected.int()).abs().max() <= 1


def test_centre_crop_takes_any_shape() -> None:
    """Including thin and tiny images."""
    for height, width in ((1, 1), (3, 500), (700, 2), (16, 16)):
        assert centre_crop(tensor(pixels(0, height, width)), 32).shape == (3, 32, 32)


@pytest.mark.parametrize(("height", "width"), [(256, 256), (100, 300), (20, 400)])
def test_crops_are_distributed_as_torchvisions(height: int, width: int) -> None:
    """Mean and spread of top, left, height and width over many draws."""
    rng = np.random.default_rng(0)
    ours = torch.tensor([crop_box(height, width, rng) for _ in range(4000)]).double()
    torch.manual_seed(0)
    transform, blank = v2.RandomResizedCrop(224), torch.empty(3, height, width)
    params = [transform.make_params([blank]) for _ in range(4000)]
    theirs = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in params]).double()
    error = 4 * theirs.std(0) / 4000**0.5 + 0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 1.5 * error).all()
    assert ((ours.std(0) - theirs.std(0)).abs() < 1.5 * error).all()


def test_half_of_the_training_views_are_mirrored() -> None:
    """A ramp distinguishes left from right."""
    ramp = torch.arange(64, dtype=torch.uint8).repeat(3, 64, 1)
    rng = np.random.default_rng(0)
    views = [train_crop(ramp, 16, rng) for _ in range(400)]
    mirrored = sum(bool(view[0, 0, 0] > view[0, 0, -1]) for view in views)
    assert 160 < mirrored < 240
    assert all(view.shape == (3, 16, 16) for view in views)
