"""Detectors, their losses and their training views."""

import copy
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import resnet18, resnet34
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import FrozenBatchNorm2d

from mrdc._utils.errors import UsageError
from mrdc.detection.augment import erased, mirrored, strong, weak
from mrdc.detection.detectors import (
    Detector,
    LiteBody,
    build_detector,
    focal,
    fold_norms,
    pooled_features,
)
from mrdc.detection.methods import Shot, flipped, losses
from mrdc.nn.lite0 import lite0
from tests.scenes import shots, tiny

pytestmark = pytest.mark.usefixtures("seeded")


# Losses


def test_focal_loss() -> None:
    """Cross-entropy for gamma 0; by hand, the mean of 1/2^1.5 log 2 and 1/4^1.5 log 4/3."""
    logits, labels = torch.randn(7, 4), torch.randint(0, 4, (7,))
    torch.testing.assert_close(focal(logits, labels, 0.0), F.cross_entropy(logits, labels))
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    expected = (0.5**1.5 * math.log(2) + 0.25**1.5 * math.log(4 / 3)) / 2
    assert focal(logits, torch.tensor([1, 0]), 1.5).item() == pytest.approx(expected)
    sure = torch.tensor([[60.0, 0.0]], requires_grad=True)  # p is 1 to the last bit
    focal(sure, torch.tensor([0]), 1.5).backward()  # type: ignore[no-untyped-call]
    assert sure.grad is not None and sure.grad.isfinite().all()


def seeded_losses(model: FasterRCNN, given_: list[Shot]) -> dict[str, float]:
    torch.manual_seed(3)
    return {name: value.item() for name, value in losses(model.train(), given_).items()}


def test_without_focus_losses_are_torchvisions() -> None:
    """All four losses, with the same draws."""
    ours = tiny()
    theirs = copy.deepcopy(ours)
    theirs.roi_heads.forward = partial(RoIHeads.forward, theirs.roi_heads)
    assert seeded_losses(ours, shots()) == pytest.approx(seeded_losses(theirs, shots()))


def test_focus_lowers_the_loss_of_classes_alone() -> None:
    plain = tiny()
    sharp = copy.deepcopy(plain)
    sharp.roi_heads.gamma = 1.5
    a, b = seeded_losses(plain, shots()), seeded_losses(sharp, shots())
    assert b.pop("loss_classifier") < a.pop("loss_classifier")
    assert a == pytest.approx(b)


def test_a_scene_without_boxes_is_background() -> None:
    """Its losses are finite, and no box is regressed."""
    empty = [Shot(shot.image, torch.zeros(0, 5)) for shot in shots()]
    found = seeded_losses(tiny(), empty)
    assert all(map(math.isfinite, found.values()))
    assert found["loss_box_reg"] == 0


def test_regression_parts_get_no_gradient_from_guesses() -> None:
    """The layer that moves boxes learns from labelled images only."""
    model = tiny(gamma=1.5).train()
    found = losses(model, shots())
    (found["loss_classifier"] + found["loss_objectness"]).backward()  # type: ignore[no-untyped-call]
    moves = model.roi_heads.box_predictor.bbox_pred.weight
    assert moves.grad is None or not moves.grad.any()


# Views


def test_mirroring_twice_changes_nothing() -> None:
    """Mirrored once, a box covers the same pixels."""
    shot = shots(1)[0]
    image, boxes = mirrored(shot.image, shot.boxes[:, :4])
    left, top, right, bottom = (int(v) for v in boxes[0])
    old = [int(v) for v in shot.boxes[0, :4]]
    assert torch.equal(
        image[:, top:bottom, left:right].flip(2), shot.image[:, old[1] : old[3], old[0] : old[2]]
    )
    again, same = mirrored(image, boxes)
    assert torch.equal(again, shot.image) and torch.equal(same, shot.boxes[:, :4])


def test_weak_views_are_mirrored_half_of_the_time() -> None:
    """Labels stay with their boxes."""
    shot = shots(1)[0]
    views = [weak(shot.image, shot.boxes[:, :4])[0] for _ in range(200)]
    assert 70 < sum(not torch.equal(view, shot.image) for view in views) < 130
    assert all(torch.equal(flipped(shot).boxes[:, 4], shot.boxes[:, 4]) for _ in range(5))


def test_strong_views_stay_images() -> None:
    """Same size, within 0 and 1, and changed; the blur would not fit into the smallest images."""
    image = shots(1)[0].image
    views = [strong(image) for _ in range(20)]
    assert all(view.shape == image.shape for view in views)
    assert all(view.min() >= 0 and view.max() <= 1 for view in views)
    assert any(not torch.equal(view, image) for view in views)
    for side in (1, 4, 5) * 8:
        assert strong(torch.rand(3, side, 30)).shape == (3, side, 30)


@given(height=st.integers(1, 30), width=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_erasing_makes_one_hole(height: int, width: int, seed: int) -> None:
    """The image itself is not changed."""
    torch.manual_seed(seed)
    image = torch.full((3, height, width), 2.0)
    result = erased(image, (0.05, 0.2), (0.3, 3.3))
    rows, columns = torch.nonzero((result != 2).any(0), as_tuple=True)
    assert (image == 2).all() and len(rows) > 0
    box = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
    assert len(rows) == box


# Networks


def test_backbones_without_weights_have_no_batch_norm_that_learns() -> None:
    """Group norms, all of which are trained."""
    model = build_detector("r18", 2, short=64, long=64)
    kinds = {type(module) for module in model.modules()}
    assert nn.GroupNorm in kinds and nn.BatchNorm2d not in kinds and FrozenBatchNorm2d not in kinds
    assert all(p.requires_grad for p in model.parameters())


def test_weights_of_a_backbone_freeze_its_norms_and_first_stage(tmp_path: Path) -> None:
    """Another network's weights are refused."""
    torch.save(resnet18().state_dict(), tmp_path / "r18.pth")
    model = build_detector("r18", 2, short=64, long=64, weights=tmp_path / "r18.pth")
    body = model.backbone.body
    norms = nn.BatchNorm2d | FrozenBatchNorm2d | nn.GroupNorm
    assert not any(isinstance(module, norms) for module in body.modules())
    trained = [name for name, p in body.named_parameters() if p.requires_grad]
    assert {name.split(".")[0] for name in trained} == {"layer2", "layer3", "layer4"}
    assert all(name.endswith("weight.original") for name in trained)
    state = torch.load(tmp_path / "r18.pth", weights_only=True)
    kernels = body.layer4[1].conv2.parametrizations.weight.original
    assert torch.equal(kernels, state["layer4.1.conv2.weight"])
    torch.save(resnet34().state_dict(), tmp_path / "r34.pth")
    with pytest.raises(UsageError, match="not weights of resnet50"):
        build_detector("r50", 2, short=64, long=64, weights=tmp_path / "r34.pth")
    with pytest.raises(UsageError, match="lite0 has its own weights"):
        build_detector("lite0", 2, short=64, long=64, weights=tmp_path / "r18.pth")


@pytest.mark.parametrize("name", ["r18", "lite0"])
def test_regions_are_pooled_alike_whatever_was_seen_first(name: Detector) -> None:
    """Torchvision infers the strides from the first images, wrongly if much is padded."""
    model = build_detector(name, 2, short=40, long=64).eval()
    pool = model.roi_heads.box_roi_pool
    before = list(pool.scales)
    maps = model.backbone(torch.rand(1, 3, 64, 64))
    assert [64 * scale for scale in before] == [len(maps[k][0, 0]) for k in ("0", "1", "2", "3")]
    with torch.no_grad():
        model([torch.rand(3, 40, 64)])
    assert pool.scales == before and (pool.map_levels.k_min, pool.map_levels.k_max) == (2, 5)


def test_folded_norms_change_neither_maps_nor_gradients() -> None:
    """Frozen norms with arbitrary statistics."""
    torch.manual_seed(0)
    plain = resnet18(norm_layer=FrozenBatchNorm2d).double()
    for norm in (m for m in plain.modules() if isinstance(m, FrozenBatchNorm2d)):
        for values in (norm.weight, norm.running_var):
            values.uniform_(0.5, 1.5)
        for values in (norm.bias, norm.running_mean):
            values.normal_()
    folded = copy.deepcopy(plain)
    fold_norms(folded)
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(folded(images), plain(images))
    for net in (plain, folded):
        net(images).square().sum().backward()
    gradients = [[p.grad for p in net.parameters()] for net in (plain, folded)]
    assert len(gradients[0]) == len(gradients[1])
    for theirs, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_lite0_sees_what_the_embedding_sees() -> None:
    """Its last map is that of the network whose weights it has; norms are frozen."""
    model, network = build_detector("lite0", 2, short=64, long=64), lite0().double()
    image = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    x = F.relu6(network._bn0(network._conv_stem(image)))
    with torch.no_grad():
        expected = network._blocks(x)
        torch.testing.assert_close(LiteBody(network)(image)["3"], expected)
        found = model.backbone.body(image.float())["3"].double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)  # of values up to 5
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    maps = model.backbone(torch.rand(1, 3, 64, 96))
    sides = [tuple(m.shape[2:]) for m in maps.values()]
    assert sides == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]


def test_features_do_not_see_padding() -> None:
    """Images are padded to multiples of 32; the mean is over the image's own cells."""
    model = tiny().eval()
    model.transform.min_size, model.transform.max_size = (40,), 40
    image = torch.rand(3, 40, 40)
    with torch.no_grad():
        inside = model.backbone.body(model.transform([image])[0].tensors)["0"]
        expected = inside[0, :, :5, :5].mean((1, 2))
        torch.testing.assert_close(pooled_features(model, image), expected)
    assert inside.shape[2] == 8
