"""Shared by the scripts for other libraries: options, image lists, and a clock around loaders."""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models, transforms

from common import SEED, emit, machine

SIZE, MEAN, STD = 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WARM_UP = 8  # batches of the first epoch of a phase, which is not reported
PHASES = 2  # without a teacher, then with one
VIEW = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)


class DoneError(Exception):
    """Raised inside a library's loop when the last epoch has been measured."""


@dataclass(frozen=True)
class Setup:
    """Settings that all libraries get.

    Attributes:
        data: folder with train/ and test/, each with a folder per class.
        classes: classes per phase.
        epochs: epochs measured in each phase, after a warm-up.
        repeat: how often each image is listed, so that starting worker processes in every
            epoch matters less.
        kept: originals per class replayed in the second phase.
    """

    data: Path
    classes: int
    epochs: int
    batch: int
    workers: int
    repeat: int
    kept: int
    device: str

    def files(self, split: str = "train") -> list[tuple[str, int]]:
        """Paths and labels, sorted by class; one test image per class, as tests are not timed."""
        folders = sorted(path for path in (self.data / split).iterdir() if path.is_dir())
        if len(folders) < PHASES * self.classes:
            sys.exit(
                f"{self.data / split} has {len(folders)} classes, but {PHASES} phases of "
                f"{self.classes} need {PHASES * self.classes}: lower --classes"
            )
        found = []
        for label, folder in enumerate(folders[: PHASES * self.classes]):
            paths = sorted(str(path) for path in folder.iterdir())
            paths = paths * self.repeat if split == "train" else paths[:1]
            found += [(path, label) for path in paths]
        return found

    @property
    def held(self) -> int:
        """Images of the first phase that the second replays."""
        return self.kept * self.repeat * self.classes


def options(question: str | None) -> argparse.ArgumentParser:
    """Flags of every script here."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--data", type=Path, required=True, help="a folder with train/ and test/")
    parser.add_argument("--classes", type=int, default=100, help="classes per phase")
    parser.add_argument("--epochs", type=int, default=2, help="epochs measured per phase")
    parser.add_argument("--batch", type=int, default=128, help="images per step")
    parser.add_argument("--workers", type=int, default=16, help="loader processes")
    parser.add_argument("--repeat", type=int, default=2, help="how often each image is listed")
    parser.add_argument("--kept", type=int, default=20, help="originals per class to replay")
    parser.add_argument("--version", help="library version, if it cannot be found")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    return parser


def setup_of(given: argparse.Namespace) -> Setup:
    """The flags of `options`; paths are made absolute because Mammoth changes directory."""
    return Setup(
        given.data.resolve(),
        given.classes,
        given.epochs,
        given.batch,
        given.workers,
        given.repeat,
        given.kept,
        given.device,
    )


def clone(folder: Path, marker: str) -> Path:
    """Make a clone of a library importable; returns its absolute path."""
    folder = folder.resolve()
    if not (folder / marker).exists():
        sys.exit(f"{folder} is not a clone of this library: it has no {marker}")
    sys.path.insert(0, str(folder))
    return folder


def version_of(folder: Path, given: str | None) -> str | None:
    """The version given by the user, else the commit of the clone."""
    if given or not (folder / ".git").exists():
        return given
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def require_resnet18(net: nn.Module) -> None:
    """Stop unless the convolutions of a network are those of ResNet-18 with a 7x7 stem."""
    expected, found = (_convolutions(each) for each in (models.resnet18(), net))
    if expected != found:
        sys.exit(f"the network is not ResNet-18 with a 7x7 stem: its convolutions are {found}")


def _convolutions(net: nn.Module) -> list[tuple[int, ...]]:
    """Shape and stride of each convolution, sorted."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    return sorted((*layer.weight.shape, *layer.stride) for layer in layers)


class Clock:
    """Measures the epochs of a library from outside, around its loader.

    An epoch lasts from the request for its first batch to the end of its last step, so it includes
    the start of worker processes. The first epoch of each phase is cut short and not reported.
    """

    def __init__(self, setup: Setup, **facts: Any):
        self.setup, self.facts, self.passed = setup, facts, 0

    def epoch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of an epoch; the second field of each has a row per image."""
        phase, number = divmod(self.passed, self.setup.epochs + 1)
        images, waited, start = 0, 0.0, time.perf_counter()
        for batch in loader if number else islice(loader, WARM_UP):
            waited = waited or time.perf_counter() - start
            images += len(batch[1])
            yield batch
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.passed += 1
        if number:
            facts = {"workers": self.setup.workers, "first_batch": waited, **self.facts}
            report(self.setup, phase, number, images, seconds, **facts)
        if self.passed == PHASES * (self.setup.epochs + 1):
            raise DoneError


class Timed:
    """Wraps a loader so that a clock measures its epochs."""

    def __init__(self, loader: Any, clock: Clock):
        self.loader, self.clock = loader, clock

    def __iter__(self) -> Iterator[Any]:
        return self.clock.epoch(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def report(setup: Setup, phase: int, epoch: int, images: int, seconds: float, **facts: Any) -> None:
    """Emit the speed of one epoch."""
    emit(
        "peers",
        phase=phase,
        teacher=phase > 0,
        epoch=epoch,
        images=images,
        seconds=seconds,
        images_per_second=images / seconds,
        batch=setup.batch,
        classes=setup.classes,
        network="resnet18, 7x7 stem",
        tf32=torch.backends.cudnn.allow_tf32,
        device=setup.device,
        **facts,
        **machine(),
    )


def seeded() -> None:
    """Seed torch, for a library that does not."""
    torch.manual_seed(SEED)
