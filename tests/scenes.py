"""Small scenes, a tiny detector for them, and settings of short runs."""

from dataclasses import replace
from functools import partial
from typing import Any, Self

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
from mrdc.detection.learner import SceneLearner
from mrdc.detection.methods import Shot
from mrdc.detection.settings import DetectSettings, StepSettings
from mrdc.detection.stream import SceneStream, make_scenes
from mrdc.memory.replay import ReplayMemory
from mrdc.training.phases import Phases
from mrdc.training.resume import Keeper
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
    few = {f"rpn_post_nms_top_n_{mode}": 30 for mode in ("train", "test")}
    few |= {f"{part}_batch_size_per_image": 16 for part in ("rpn", "box")}
    model = FasterRCNN(
        Backbone(),
        min_size=SIDE,
        max_size=SIDE,
        rpn_anchor_generator=AnchorGenerator(((12, 24),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        box_head=TwoMLPHead(16 * 9, 32),
        box_predictor=FastRCNNPredictor(32, classes + 1),
        **few,
    )
    model.roi_heads = FocalHeads(model.roi_heads, gamma)
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


def shots(count: int = 3) -> list[Shot]:
    """Scenes as tensors."""
    made = [picture(number) for number in range(count)]
    images = [torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 for pixels, _ in made]
    return [Shot(i, torch.from_numpy(box)) for i, (_, box) in zip(images, made, strict=True)]


SMALL = DetectSettings(
    "made up",
    phases=2,
    labelled=6,
    unlabelled=4,
    short=SIDE,
    long=SIDE,
    threads=2,
    device="cpu",
    train=StepSettings(steps=6, lr=0.01, batch_size=3, unlabelled_batch=2),
    memory=MemorySettings("2/phase", qualities=(90, 50), criterion="volume-ratio", epsilon=1e9),
)


def small(method: str, **changes: Any) -> DetectSettings:
    return replace(SMALL, method=method, **changes)


def stream(settings: DetectSettings = SMALL) -> SceneStream:
    return make_scenes(splits(), settings.phases, settings.labelled, settings.unlabelled, 0)


class SceneRun(Phases):
    """A run whose phases a test starts one by one."""

    learner: SceneLearner

    def __init__(
        self,
        settings: DetectSettings = SMALL,
        keeper: Keeper | None = None,
        scenes: SceneStream | None = None,
    ):
        super().__init__(SceneLearner(settings, scenes or stream(settings)), keeper)

    def learn(self, *phases: int) -> Self:
        for phase in phases:
            self._learn(phase)
        return self

    @property
    def memory(self) -> ReplayMemory:
        assert self.learner.exemplars is not None
        return self.learner.exemplars.memory
