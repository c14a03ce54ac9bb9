"""Settings of runs on scenes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mrdc.training.settings import MemorySettings

SCENE_MEMORY = MemorySettings(budget="100/phase", select="random_choice")


@dataclass(frozen=True)
class StepSettings:
    """Training of a detector: SGD with a constant rate, step by step."""

    steps: int = 10_000
    """Steps of a phase."""
    lr: float = 0.01
    """Learning rate."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """Of everything that is trained."""
    warmup: float = 0.1
    """Part of the first phase over which the rate rises."""
    batch_size: int = 16
    """Labelled images in a step."""
    unlabelled_batch: int = 16
    """Unlabelled images in a step."""


@dataclass(frozen=True)
class DetectSettings:
    """Continual learning of a detector: scenes in phases, some with boxes, some without."""

    data: str
    """A folder with train.json, val.json (COCO) and images/, or SODA10M or COCO as published, or
    shapes (built in)."""
    method: Annotated[str, tyro.conf.Suppress] = "supervised"
    replay: Annotated[Literal["none", "memory", "joint"], tyro.conf.Suppress] = "memory"
    phases: int = 5
    """Phases; scenes are drawn at random."""
    labelled: int = 1000
    """Labelled scenes of a phase."""
    unlabelled: int = 20_000
    """Unlabelled images of a phase."""
    seed: int = 0
    """For phases, first weights, views and random selections."""
    detector: Literal["r50", "r18", "lite0"] = "r50"
    """Faster R-CNN on ResNet-50, on ResNet-18, or on EfficientNet-Lite0 (ImageNet weights)."""
    weights: Path | None = None
    """ImageNet weights of a ResNet; without them it starts from scratch, with group norms."""
    short: int = 1080
    """Images are scaled to this short side"""
    long: int = 1920
    """unless the long one would be over this."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = ()
    """Settings of the method, such as threshold=0.6."""
    train: StepSettings = StepSettings()
    memory: MemorySettings = SCENE_MEMORY
    out: Path | None = None
    """Folder of the run; by default runs/ and a name made of the above."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    threads: int | None = None
    """Decoding and encoding threads, by default one for each core, up to eight; results do not
    depend on it."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints inside a phase."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder (needs mrdc[tensorboard])."""
