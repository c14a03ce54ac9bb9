"""What tests of methods share: lessons without a run, small networks, images and runs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from mrdc.data.examples import Examples
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.methods.base import Lesson
from mrdc.nn.heads import LSC, Head, Split
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import ResNet, Variant
from mrdc.training.classes import Run
from mrdc.training.feed import open_feed
from mrdc.training.fit import fit
from mrdc.training.resume import Keeper
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests.conftest import jpeg, pixels


def nothing(*_: Any, **__: Any) -> Any:
    """For what a test does not expect to be called."""
    raise AssertionError


def lesson(**given: Any) -> Lesson:
    """The second phase, of a class more than the two before, with only what is given."""
    fields: dict[str, Any] = {
        "phase": 1, "old": 2, "new": 1, "model": nothing, "teacher": None, "train": Examples(),
        "fresh": Examples(), "memory": Examples(), "images": ImageSet((), (), ()),
        "training": TrainSettings(epochs=3, batch_size=4), "loss": nothing, "fit": nothing,
        "features": nothing, "store": lambda: None, "preview": nothing, "build": nothing,
        "size": 8, "quota": 20, "seed": len,
    }  # fmt: skip
    return Lesson(**fields | given)


def small_stream(*sizes: int, images: int = 6) -> Stream:
    """Phases of so many classes of small photos; two more of each to test."""
    classes = range(sum(sizes))
    train, test = (
        ImageSet(
            tuple(chr(ord("a") + c) for c in classes),
            tuple(
                [Photo(f"{c}/{n}", partial(jpeg, 100 * c + n, 95, 8, 8)) for n in numbers]
                for c in classes
            ),
            tuple([len(jpeg(100 * c + n, 95, 8, 8)) for n in numbers] for c in classes),
        )
        for numbers in (range(images), range(90, 92))
    )
    return Stream(train, test, sizes)


class Says:
    """A network that always says the same."""

    def __init__(
        self, scores: Tensor, features: Tensor | None = None, maps: tuple[Tensor, ...] = ()
    ):
        self.scores = scores
        self.given = torch.eye(2)[:1] if features is None else features
        self.maps = maps
        self.head = LSC(2)
        self.scale = 1.0

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    def features(self, x: Tensor) -> Tensor:
        return self.given

    def compiles(self, x: Tensor) -> bool:
        return False

    def __call__(self, x: Tensor) -> Output:
        return Output(self.maps, self.given, self.scores, self.scale * self.scores)


def says(scores: Tensor, features: Tensor | None = None, maps: tuple[Tensor, ...] = ()) -> Net:
    return cast(Net, Says(scores, features, maps))


def tiny(variant: Variant, head: type[Head]) -> Net:
    backbone = ResNet(variant, 2, "3x3")
    return Net(backbone, head(backbone.features)).eval()


def photo(name: str, seed: int) -> Photo:
    return Photo(name, partial(pixels, seed, 8, 8))


def examples(labels: list[int]) -> Examples:
    """Small images with these labels; a name is a place."""
    return Examples(tuple(photo(str(n), n) for n in range(len(labels))), tuple(labels))


def training(model: Net, seen: list[TrainSettings]) -> Callable[..., None]:
    """Trains as a run does; notes with what settings."""

    def run(part: Examples, training: TrainSettings, loss: Any, **options: Any) -> None:
        seen.append(training)
        counts = Counter(part.labels)
        assert len(set(counts.values())) == 1, counts
        feed = open_feed(part, 8, torch.device("cpu"), "ram", threads=1)
        fit(model, loss, feed, training, seed=0, **options)

    return run


def after_a_phase(variant: Variant, head: type[Split]) -> tuple[Net, Net]:
    """A network of three classes and its teacher of two."""
    net = tiny(variant, head)
    net.head.grow(2)
    teacher = net.frozen()
    net.head.grow(1)
    return net, teacher


def small_run(method: str, *options: str, **given: Any) -> Run:
    memory = MemorySettings(budget="12/class", quality="original", candidates=(50,))
    chosen = RunSettings(
        "photos", method=method, options=options, network="resnet18-narrow", size=8, device="cpu",
        threads=2, memory=memory, train=TrainSettings(epochs=1, batch_size=16),
    )  # fmt: skip
    return Run(replace(chosen, **given), small_stream(2, 2, 2, images=30), Keeper())


ROWS = st.integers(1, 5).flatmap(
    lambda n: st.integers(2, 6).flatmap(
        lambda c: arrays(np.float32, (n, c), elements=st.floats(-8, 8, width=32))
    )
)
