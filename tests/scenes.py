"""Small scenes, a tiny detector for them, and settings of short runs."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import MultiScaleRoIAlign

from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes, Scenes, SceneSplits
from mrdc.detection.detectors import FocalHeads
from mrdc.detection.settings import DetectSettings, StepSettings
from mrdc.detection.stream import SceneStream, make_scenes
from mrdc.training.settings import MemorySettings

CPU = torch.device("cpu")


def rows(values: Any) -> Any:
    return np.array(values, np.float32)


SIDE = 48


class Body(nn.Module):
    """Two convolutions: one map, an eighth of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 5, 4, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"0": self.layers(x)}


class Backbone(nn.Module):
    out_channels = 16

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.body(x)
        return found


def tiny(name: str = "r50", classes: int = 2, *, gamma: float = 0.0, **_: Any) -> FasterRCNN:
    """A detector that takes milliseconds."""
    model = FasterRCNN(
        Backbone(), min_size=SIDE, max_size=SIDE,
        rpn_anchor_generator=AnchorGenerator(((12, 24),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2), box_head=TwoMLPHead(16 * 9, 32),
        box_predictor=FastRCNNPredictor(32, classes + 1), rpn_post_nms_top_n_train=30,
        rpn_post_nms_top_n_test=30, rpn_batch_size_per_image=16, box_batch_size_per_image=16,
    )  # fmt: skip
    model.roi_heads.__class__ = FocalHeads
    model.roi_heads.gamma = gamma
    return model


def picture(number: int) -> tuple[np.ndarray[Any, Any], Boxes]:
    """A bright or a dark square on grey."""
    rng = np.random.default_rng(number)
    pixels = rng.normal(128, 5, (SIDE, SIDE, 3))
    side, label = int(rng.integers(12, 25)), number % 2
    left, top = (int(v) for v in rng.integers(0, SIDE - side, 2))
    pixels[top : top + side, left : left + side] = 230 if label else 20
    box = np.array([[left, top, left + side, top + side, label]], np.float32)
    return np.clip(pixels, 0, 255).astype(np.uint8), box


def scenes(numbers: range) -> Scenes:
    made = [picture(number) for number in numbers]
    files = [CODECS["jpeg"].encode(pixels, 95) for pixels, _ in made]
    none = np.zeros((0, 5), np.float32)
    return Scenes(
        classes=("dark", "bright"),
        categories=(1, 2),
        photos=tuple(
            Photo(f"{n}.jpg", partial(bytes, f)) for n, f in zip(numbers, files, strict=True)
        ),
        sizes=tuple(map(len, files)),
        sides=((SIDE, SIDE),) * len(made),
        boxes=tuple(box for _, box in made),
        crowds=(none,) * len(made),
    )


def splits(train: int = 24, test: int = 8) -> SceneSplits:
    return SceneSplits(scenes(range(train)), scenes(range(100, 100 + test)), None)


SMALL = DetectSettings(
    "made up", method="supervised", phases=2, labelled=6, unlabelled=4, detector="r50",
    short=SIDE, long=SIDE, threads=2, device="cpu",
    train=StepSettings(steps=6, lr=0.01, batch_size=3, unlabelled_batch=2),
    memory=MemorySettings(budget="2/phase", quality="auto", select="random_choice",
                          candidates=(90, 50), epsilon=1e9),
)  # fmt: skip


def small(method: str, **changes: Any) -> DetectSettings:
    return replace(SMALL, method=method, **changes)


def stream(settings: DetectSettings = SMALL) -> SceneStream:
    return make_scenes(splits(), settings.phases, settings.labelled, settings.unlabelled, 0)
