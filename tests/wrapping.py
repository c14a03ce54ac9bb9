"""What tests of AANets and DDE share: images of one grey each, and small networks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mrdc.codec.image import Pixels
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.nn.branches import Branches
from mrdc.nn.heads import Head, Split, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import ResNet
from mrdc.training.feed import Resident, open_feed
from mrdc.training.fit import Stop, fit
from mrdc.training.settings import TrainSettings

CPU = torch.device("cpu")
PLACES: list[Resident] = ["gpu", "ram", "stream"]
LN3 = math.log(3)


def grey(level: int) -> Pixels:
    return np.full((8, 8, 3), level, np.uint8)


def greys(labels: list[int], first: int = 0) -> Examples:
    """Images of one grey each, which is also the name; every crop looks the same."""
    levels = range(first, first + len(labels))
    return Examples(tuple(Photo(str(n), partial(grey, n)) for n in levels), tuple(labels))


def who(images: Tensor) -> list[int]:
    """The greys of images."""
    return [round(float(image.float().mean())) for image in images]


def tiny(head: type[Head] = SplitCosine, classes: int = 2) -> Net:
    backbone = ResNet("lucir", 2, "3x3")
    net = Net(backbone, head(backbone.features))
    net.head.grow(classes)
    return net.eval()


def two_branches() -> Net:
    """Three classes; the branches have parted."""
    net = tiny().with_body("branches")
    net.head.grow(1)
    assert isinstance(net.backbone, Branches)
    cast(Split, net.head).scale.data.fill_(4.0)
    for p in net.backbone.plastic.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return net


def mixing(net: Net) -> Tensor:
    assert isinstance(net.backbone, Branches)
    return net.backbone.alpha


def training(net: Net, seed: int = 7) -> Callable[..., Stop]:
    """`loop.fit` as a run calls it."""

    def run(part: Examples, training: TrainSettings, loss: Any, **options: Any) -> Stop:
        feed = open_feed(part, 8, CPU, "ram", threads=1)
        return fit(net, loss, feed, training, seed=seed, **options)

    return run


@dataclass
class Answers:
    """A network that knows images by their grey."""

    given: Tensor  # features by grey
    logits: Tensor

    @property
    def classes(self) -> int:
        return self.logits.shape[1]

    def features(self, x: Tensor) -> Tensor:
        return self.given[who(x)]

    def __call__(self, x: Tensor) -> Output:
        place = who(x)
        return Output((), self.given[place], self.logits[place] / 4, self.logits[place])

    steady = __call__


def answers(features: Tensor, logits: Tensor) -> Net:
    return cast(Net, Answers(features, logits))


def output(net: Net, features: Tensor) -> Output:
    """What a network says of images with these features."""
    scores = net.head.scores(features)
    return Output((), features, scores, net.head.logits(scores))


def state_of(net: Net) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def changed(net: Net, before: dict[str, Tensor]) -> set[str]:
    return {
        name for name, value in net.state_dict().items() if not torch.equal(value, before[name])
    }
