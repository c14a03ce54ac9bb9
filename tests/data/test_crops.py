"""Crops, against torchvision's."""

import numpy as np
import torch
from torchvision.transforms import v2

from mrdc.data.crops import centre_crop, crop_box, tensor, train_crop
from tests.conftest import pixels


def test_centre_crop_is_resize_then_crop() -> None:
    """As torchvision's Resize(256) and CenterCrop(224) do it, up to rounding."""
    image = tensor(pixels(0, 300, 400))
    expected = v2.functional.center_crop(
        v2.functional.resize(image, [256], antialias=True), [224, 224]
    )
    assert (centre_crop(image, 224).int() - expected.int()).abs().max() <= 1


def test_centre_crop_takes_any_shape() -> None:
    """Thin and tiny images too."""
    for height, width in ((1, 1), (3, 500), (700, 2), (16, 16)):
        assert centre_crop(tensor(pixels(0, height, width)), 32).shape == (3, 32, 32)


def test_crops_are_distributed_as_torchvisions() -> None:
    """Mean and spread of every number of the box, over many draws, tall and wide images."""
    for height, width in ((256, 256), (100, 300), (20, 400)):
        rng = np.random.default_rng(0)
        ours = torch.tensor([crop_box(height, width, rng) for _ in range(4000)]).double()
        torch.manual_seed(0)
        blank = torch.empty(3, height, width)
        draw = (
            v2.RandomResizedCrop.make_params
            if hasattr(v2.RandomResizedCrop, "make_params")
            else None
        )
        assert draw is not None
        transform = v2.RandomResizedCrop(224)
        params = [transform.make_params([blank]) for _ in range(4000)]
        theirs = torch.tensor(
            [[p["top"], p["left"], p["height"], p["width"]] for p in params]
        ).double()
        error = 4 * theirs.std(0) / 4000**0.5 + 0.5
        assert ((ours.mean(0) - theirs.mean(0)).abs() < 1.5 * error).all()
        assert ((ours.std(0) - theirs.std(0)).abs() < 1.5 * error).all()


def test_half_of_the_training_views_are_mirrored() -> None:
    """A ramp tells left from right."""
    ramp = torch.arange(64, dtype=torch.uint8).repeat(3, 64, 1)
    rng = np.random.default_rng(0)
    views = [train_crop(ramp, 16, rng) for _ in range(400)]
    mirrored = sum(bool(view[0, 0, 0] > view[0, 0, -1]) for view in views)
    assert 160 < mirrored < 240
    assert all(view.shape == (3, 16, 16) for view in views)
