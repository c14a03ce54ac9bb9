"""A backbone and a head."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mrdc.nn.branches import Backbone, Body, Branches, body_of, with_body
from mrdc.nn.heads import Head
from mrdc.nn.modes import BATCH_NORMS

MEAN = (123.675, 116.28, 103.53)  # ImageNet's, on the scale of 0 to 255
STD = (58.395, 57.12, 57.375)
Maps = Callable[[Tensor], tuple[Tensor, ...]]


class Output(NamedTuple):
    """The outputs of a network for n images; all but the maps are in fp32."""

    maps: tuple[Tensor, ...]  # of all stages, (n, c, h, w), or of the last if no loss reads others
    features: Tensor  # pooled last map, (n, d)
    scores: Tensor  # compared between classes to predict, (n, classes)
    logits: Tensor  # scores scaled for the loss, (n, classes)


def normalised(images: Tensor) -> Tensor:
    """Normalise images (n, 3, h, w) from 0 to 255 by ImageNet's mean and deviation."""
    mean, std = (images.new_tensor(v, dtype=torch.float32).view(3, 1, 1) for v in (MEAN, STD))
    return (images.float() - mean) / std


class Net(nn.Module):
    """Backbone and head; takes images (n, 3, h, w) from 0 to 255 of any dtype."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, head: Head):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.compiled: tuple[frozenset[int], Maps] | None = None  # for these batch sizes
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @property
    def classes(self) -> int:
        return self.head.classes

    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Maps of the stages."""
        if self.compiled is not None and self.compiles(images):
            return self.compiled[1](images)
        return self._maps(images)

    def compiles(self, images: Tensor) -> bool:
        """Whether to use compiled code for these images: only under autocast."""
        sizes: frozenset[int] = frozenset() if self.compiled is None else self.compiled[0]
        return len(images) in sizes and torch.is_autocast_enabled("cuda")

    def _maps(self, images: Tensor) -> tuple[Tensor, ...]:
        x = (images.float() - self.mean) / self.std
        maps: tuple[Tensor, ...] = self.backbone(x.contiguous(memory_format=torch.channels_last))
        return maps

    def features(self, images: Tensor) -> Tensor:
        """Pooled features (n, d), before any head."""
        return self.maps(images)[-1].float().mean((2, 3))

    def forward(self, images: Tensor) -> Output:
        maps = self.maps(images)
        with torch.autocast(images.device.type, enabled=False):  # cosines need fp32
            features = maps[-1].float().mean((2, 3))
            scores = self.head.scores(features)
            return Output(maps, features, scores, self.head.logits(scores))

    def steady(self, images: Tensor) -> Output:
        """Outputs without gradients and with batch norms in evaluation mode."""
        norms = [m for m in self.modules() if isinstance(m, BATCH_NORMS) and m.training]
        for norm in norms:
            norm.training = False
        try:
            with torch.no_grad():
                return self(images)  # type: ignore[no-any-return]
        finally:
            for norm in norms:
                norm.training = True

    def with_body(self, body: Body) -> "Net":
        """A network of another body that computes the same; do not use this one afterwards."""
        assert not isinstance(self.backbone, Branches)
        return Net(with_body(self.backbone, body), self.head).to(self.mean.device).eval()

    @property
    def body(self) -> Body:
        return body_of(self.backbone)

    def frozen(self) -> "Net":
        """A frozen copy: the teacher of the next phase."""
        backbone, head = copy.deepcopy(self.backbone), copy.deepcopy(self.head)
        teacher = Net(backbone, head).to(self.mean.device).eval().requires_grad_(False)
        teacher.backbone.fuse()
        return teacher.to(memory_format=torch.channels_last)

    def become(self, other: "Net") -> None:
        """Copy the weights of a network of the same body, and take its head."""
        self.backbone.load_state_dict(other.backbone.state_dict())
        self.head = other.head
