"""Settings of runs on scenes. Fields are flags of the same name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mrdc.training.settings import FolderSettings, MemorySettings


@dataclass(frozen=True)
class StepSettings:
    """Training of a detector: SGD with a constant rate, step by step."""

    steps: int = 10_000
    """Steps per phase."""
    lr: float = 0.01
    """Learning rate."""
    momentum: float = 0.9
    """SGD momentum."""
    weight_decay: float = 1e-4
    """Weight decay."""
    warmup: float = 0.1
    """Fraction of the first phase over which the rate rises."""
    batch_size: int = 16
    """Labelled images per step."""
    unlabelled_batch: int = 16
    """Unlabelled images per step."""
    match: float = 0.0
    """Chance that a new labelled scene is shown as the memory would store it, drawn anew whenever
    it is seen."""


STEPS = StepSettings()
SCENE_MEMORY = MemorySettings(budget="100/phase")


@dataclass(frozen=True)
class SceneSettings:
    """Scenes in phases, some with boxes and some without, and a detector to learn them."""

    data: str
    """A folder with train.json, val.json (COCO) and images/; SODA10M or COCO as published; or
    shapes (built in)."""
    method: Annotated[str, tyro.conf.Suppress] = "supervised"
    replay: Annotated[Literal["none", "memory", "joint"], tyro.conf.Suppress] = "memory"
    phases: int = 5
    """Phases; scenes are drawn at random."""
    labelled: int = 1000
    """Labelled scenes per phase."""
    unlabelled: int = 20_000
    """Unlabelled images per phase."""
    seed: int = 0
    """Seed of phases, initial weights, views and random selections."""
    detector: Literal["r50", "r18", "lite0"] = "r50"
    """Faster R-CNN on ResNet-50, on ResNet-18, or on EfficientNet-Lite0 (ImageNet weights)."""
    weights: Path | None = None
    """ImageNet weights of a ResNet; without them it starts from scratch, with group norms."""
    short: int = 1080
    """Short side that images are scaled to."""
    long: int = 1920
    """Longest side allowed; it limits the short side."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = ()
    """Settings of the method, such as threshold=0.6."""
    train: StepSettings = STEPS
    memory: MemorySettings = SCENE_MEMORY
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    threads: int | None = None
    """Threads that decode and encode; by default one per core, up to eight. Results do not depend
    on it."""


@dataclass(frozen=True)
class DetectSettings(FolderSettings, SceneSettings):
    """Continual learning of a detector."""
