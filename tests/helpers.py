"""Shared by tests of methods and networks: lessons without a run, small networks and runs."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from mrdc.codec import CODECS
from mrdc.data.examples import Examples
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.replay import ReplayMemory
from mrdc.methods import Lesson, Method, TrainSettings
from mrdc.methods.options import make_method
from mrdc.nn.branches import Branches
from mrdc.nn.checkpoint import Checkpoint
from mrdc.nn.heads import LSC, Head, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import ResNet, ScaledConv, Variant
from mrdc.training.feed import open_feed
from mrdc.training.fit import fit
from mrdc.training.learner import ClassLearner
from mrdc.training.phases import Phases
from mrdc.training.results import PhaseResult
from mrdc.training.resume import Keeper, Partial, Saved
from mrdc.training.settings import LearnSettings, MemorySettings
from tests.conftest import jpeg, pixels

CPU = torch.device("cpu")
M = TypeVar("M", bound=nn.Module)


# Lessons


def nothing(*_: Any, **__: Any) -> Any:
    """Stands in for a service that the test expects not to be used."""
    raise AssertionError


def lesson(**given: Any) -> Lesson:
    """The second phase: one class after two earlier ones, with only the given services."""
    services: dict[str, Any] = dict.fromkeys(("fit", "features", "preview", "build"), nothing)
    services["seed"] = len
    services |= {name: given.pop(name) for name in services if name in given}
    fields: dict[str, Any] = {
        "phase": 1,
        "old": 2,
        "new": 1,
        "model": nothing,
        "teacher": None,
        "train": Examples(),
        "fresh": Examples(),
        "memory": Examples(),
        "images": ImageSet((), (), ()),
        "training": TrainSettings(epochs=3, batch_size=4),
        "trainer": SimpleNamespace(**services),
        "size": 8,
        "quota": 20,
    }
    return Lesson(**fields | given)


def training(
    model: Net, loss: Callable[..., Tensor], seen: list[tuple[Examples, TrainSettings]]
) -> Callable[..., None]:
    """The service `fit` with the loss of a method; records what it is called with."""

    def run(part: Examples, training: TrainSettings, given: Any, **options: Any) -> None:
        assert given is None  # the whole method's loss
        seen.append((part, training))
        feed = open_feed(part, 8, CPU, "ram", threads=1)
        fit(model, loss, feed, training, seed=7, **options)

    return run


# Images


def photo(name: str, seed: int, height: int = 8, width: int = 8) -> Photo:
    return Photo(name, partial(pixels, seed, height, width))


def examples(labels: list[int]) -> Examples:
    """Small images with these labels, named by position."""
    return Examples(tuple(photo(str(n), n) for n in range(len(labels))), tuple(labels))


def small_stream(*sizes: int, images: int = 6, height: int = 8, width: int = 8) -> Stream:
    """Phases of this many classes of small JPEG files, with two test images per class."""
    train, test = (
        [[jpeg(100 * c + n, 95, height, width) for n in numbers] for c in range(sum(sizes))]
        for numbers in (range(images), range(90, 92))
    )
    return Stream(image_set(train), image_set(test), sizes)


def image_set(files: list[list[bytes]]) -> ImageSet:
    """Classes a, b, ... of files named by class and position."""
    photos = tuple(
        [Photo(f"{c}/{n}", partial(bytes, one)) for n, one in enumerate(of)]
        for c, of in enumerate(files)
    )
    names = tuple(chr(ord("a") + c) for c in range(len(files)))
    return ImageSet(names, photos, tuple([len(one) for one in of] for of in files))


COLOURS = ((220, 40, 40), (40, 220, 40), (40, 40, 220), (220, 220, 40), (220, 40, 220))


def coloured_stream(*sizes: int, images: int) -> Stream:
    """Classes of noisy images, each around its own colour; six test images per class."""

    def draw(label: int, number: int) -> bytes:
        rng = np.random.default_rng((label, number))
        flat = np.array(COLOURS[label]) + rng.normal(0, 20, 3)
        image = np.clip(flat + rng.normal(0, 25, (28, 28, 3)), 0, 255).astype(np.uint8)
        return CODECS["jpeg"].encode(image, 95)

    train, test = (
        [[draw(label, n) for n in numbers] for label in range(sum(sizes))]
        for numbers in (range(images), range(100, 106))
    )
    return Stream(image_set(train), image_set(test), sizes)


# Networks


class Says:
    """A network with a constant output."""

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


def tiny(variant: Variant = "lucir", head: type[Head] = SplitCosine, classes: int = 0) -> Net:
    """A network of 16 features, in evaluation mode."""
    backbone = ResNet(variant, 2, "3x3")
    net = Net(backbone, head(backbone.features)).eval()
    if classes:
        net.head.grow(classes)
    return net


def after_a_phase(variant: Variant, head: type[Head]) -> tuple[Net, Net]:
    """A network of three classes and its teacher of two."""
    net = tiny(variant, head, 2)
    teacher = net.frozen()
    net.head.grow(1)
    return net, teacher


def lived_in(module: M) -> M:
    """A module in evaluation mode, with all its values changed from their initial ones."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for spread in (part.weight, part.running_var):
                nn.init.uniform_(cast(Tensor, spread), 0.5, 1.5)
            for shift in (part.bias, part.running_mean):
                nn.init.normal_(cast(Tensor, shift), 0, 0.3)
        elif isinstance(part, nn.Conv2d):
            part.weight.data *= torch.empty_like(part.weight).uniform_(0.5, 1.5)
        elif isinstance(part, ScaledConv):
            nn.init.uniform_(part.scale, 0.5, 1.5)
        elif isinstance(part, Branches):
            nn.init.uniform_(part.alpha, 0.2, 0.8)
    return module.eval()


def state_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def changed(net: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of the tensors that differ."""
    now = net.state_dict()
    assert now.keys() == before.keys()
    return {name for name, value in now.items() if not torch.equal(value, before[name])}


# Runs


class Run(Phases):
    """A run whose phases a test starts one by one."""

    learner: ClassLearner

    def learn(self, *phases: int) -> Self:
        for phase in phases:
            self._learn(phase)
        return self

    @property
    def memory(self) -> ReplayMemory:
        assert self.learner.exemplars is not None
        return self.learner.exemplars.memory


def small_run(
    method: str | Method,
    *options: str,
    stream: Stream | None = None,
    keeper: Keeper | None = None,
    network: nn.Module | None = None,
    memory: dict[str, Any] | None = None,
    **given: Any,
) -> Run:
    """A run on six classes in three phases; `memory` and the rest change its settings."""
    made = make_method(method, options) if isinstance(method, str) else method
    held: dict[str, Any] = {"budget": "12/class", "quality": "original", "qualities": (50,)}
    usual: dict[str, Any] = {
        "network": "resnet18-narrow",
        "size": 8,
        "device": "cpu",
        "threads": 2,
        "memory": MemorySettings(**held | (memory or {})),
        "train": TrainSettings(epochs=1, batch_size=16),
    }
    stream = stream or small_stream(2, 2, 2, images=30)
    return Run(ClassLearner(made, stream, LearnSettings(**usual | given), network), keeper)


class KilledError(Exception):
    """Ends a run early."""


@dataclass
class Remembers(Keeper):
    """Keeps copies in RAM, laid out as files would be; may stop the run once."""

    keeps = True
    stop: tuple[int, int | None] | None = None  # a phase, and an epoch in it or None for its end
    saved: list[Saved] = field(default_factory=list)
    partial: Partial | None = None

    def load(self) -> Saved | None:
        return as_files(self.saved[-1]) if self.saved else None

    def save(self, saved: Saved) -> None:
        self.saved.append(as_files(saved))
        self._maybe_stop(saved.phase, None)

    def load_partial(self, phase: int) -> Partial | None:
        return self.partial if self.partial and self.partial.phase == phase else None

    def save_partial(self, partial: Callable[[], Partial], now: bool = False) -> None:
        made = partial()
        self.partial = Partial(made.phase, made.epoch, as_file(made.checkpoint))
        self._maybe_stop(made.phase, made.epoch)

    def _maybe_stop(self, phase: int, epoch: int | None) -> None:
        if self.stop == (phase, epoch):
            self.stop = None
            raise KilledError


def as_files(saved: Saved) -> Saved:
    memory = copy.copy(saved.memory)  # adding replaces its lists and modifies none
    return Saved(saved.phase, as_file(saved.checkpoint), memory)


def as_file(checkpoint: Checkpoint) -> Checkpoint:
    groups = checkpoint.tensors.items()
    return Checkpoint(
        checkpoint.architecture,
        {g: {n: t.detach().contiguous().clone() for n, t in ts.items()} for g, ts in groups},
        json.loads(json.dumps(checkpoint.about)),
    )


def stored(memory: ReplayMemory | None) -> list[bytes]:
    """The encoded images of a memory."""
    return [] if memory is None else [memory.encoded(index) for index in range(len(memory))]


def numbers(results: Sequence[PhaseResult]) -> list[dict[str, Any]]:
    """Results without times."""
    timed = ("seconds", "parts", "first_phase_seconds")
    rows = [result.to_json() for result in results]
    return [{name: value for name, value in row.items() if name not in timed} for row in rows]
