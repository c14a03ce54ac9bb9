"""Backbones that learn at two rates (Liu et al., 2020 and 2021).

scaled     kernels stay; a multiplier for every slice of them, and batch norms, learn
branches   a scaled and a free network, mixed after each of the four stages
"""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from mrdc.nn.resnet import LEVELS, ResNet, ScaledConv

Body = Literal["plain", "scaled", "branches"]


def scaled(backbone: ResNet) -> ResNet:
    """A copy whose kernels stay as they are; with multipliers of 1 it says the same."""
    other = copy.deepcopy(backbone)
    for module in list(other.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Conv2d):
                setattr(module, name, ScaledConv(child))
    return other


class Branches(nn.Module):
    """A stable (scaled) and a plastic network; both see alpha * stable + (1 - alpha) * plastic.

    One alpha a level; whoever wants to learn them says so (`requires_grad_`).
    """

    def __init__(self, backbone: ResNet):
        super().__init__()
        self.features = backbone.features
        self.stable = scaled(backbone)
        self.plastic = backbone
        half = torch.full((LEVELS,), 0.5, device=backbone.conv1.weight.device)
        self.alpha = nn.Parameter(half, requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = []
        for number in range(LEVELS):
            part = self.alpha[number]
            stable, plastic = self.stable.level(number, x), self.plastic.level(number, x)
            x = part * stable + (1 - part) * plastic
            maps.append(x)
        return tuple(maps)

    def fuse(self) -> None:
        """As `ResNet.fuse`, in both branches."""
        self.stable.fuse()
        self.plastic.fuse()


Backbone = ResNet | Branches


def with_body(backbone: ResNet, body: Body) -> Backbone:
    """A network of another body that says the same; it may share parts with the one given."""
    if body == "branches":
        return Branches(backbone)
    return scaled(backbone) if body == "scaled" else backbone


def body_of(backbone: Backbone) -> Body:
    """What a backbone is."""
    if isinstance(backbone, Branches):
        return "branches"
    return "scaled" if isinstance(backbone.conv1, ScaledConv) else "plain"
