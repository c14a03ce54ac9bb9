"""Backbones that learn at two rates (Liu et al., 2020 and 2021), and any module as a backbone.

scaled     kernels are fixed; a multiplier per kernel slice, and batch norms, learn
branches   a scaled and a free network, mixed after each of the four stages
"""

import copy
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from mrdc._utils.errors import UsageError
from mrdc.nn.modes import evaluating
from mrdc.nn.resnet import LEVELS, ResNet, ScaledConv, WideConv

Body = Literal["plain", "scaled", "branches"]
M = TypeVar("M", bound=nn.Module)


class AnyBackbone(nn.Module):
    """Any module that takes normalised images (n, 3, size, size), with features of this width."""

    def __init__(self, module: nn.Module, features: int):
        super().__init__()
        self.module = module
        self.features = features

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = as_maps(self.module(x))
        if maps[-1].shape[1] != self.features:
            raise UsageError(
                f"network returns {maps[-1].shape[1]} features in training and {self.features} in "
                "evaluation: build it without auxiliary outputs"
            )
        return maps

    def fuse(self) -> None:
        """Leave the module as it is."""


def as_maps(output: object) -> tuple[Tensor, ...]:
    """The output of a module as maps (n, d, h, w), the last one deepest."""
    found = output if isinstance(output, list | tuple) else (output,)
    maps = [one[:, :, None, None] if getattr(one, "ndim", 0) == 2 else one for one in found]
    if not maps or any(not isinstance(one, Tensor) or one.ndim != 4 for one in maps):
        shapes = ", ".join(str(getattr(one, "shape", type(one).__name__)) for one in found)
        raise UsageError(
            "network must return features (n, d), a map (n, d, h, w) or several maps, "
            f"got {shapes or 'nothing'}"
        )
    return tuple(maps)


def any_backbone(module: nn.Module, size: int) -> AnyBackbone:
    """A module as a backbone; the width of its features is measured on a blank image."""
    first = next(module.parameters(), torch.empty(0))
    if first.dtype != torch.float32:
        raise UsageError(f"network has weights of type {first.dtype}: make it float32")
    with torch.no_grad(), evaluating(module):
        maps = as_maps(module(torch.zeros(1, 3, size, size, device=first.device)))
    return AnyBackbone(module, maps[-1].shape[1])


def scaled(backbone: M) -> M:
    """A copy with fixed kernels; with multipliers of 1 it computes the same."""
    other = copy.deepcopy(backbone)
    for path, module in list(other.named_modules()):
        for name, child in module.named_children():
            if type(child) in (nn.Conv2d, WideConv) and child.padding_mode == "zeros":
                setattr(module, name, ScaledConv(child))
            elif isinstance(child, nn.Conv2d):
                where = f"{path}.{name}".lstrip(".")
                raise UsageError(
                    f"fixed kernels need plain nn.Conv2d modules with zero padding: {where} is a "
                    f"{type(child).__name__} with padding mode {child.padding_mode!r}"
                )
    return other


class Branches(nn.Module):
    """A stable (scaled) and a plastic network, mixed as alpha * stable + (1 - alpha) * plastic."""

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
        self.stable.fuse()
        self.plastic.fuse()


Backbone = ResNet | Branches | AnyBackbone


def with_body(backbone: ResNet | AnyBackbone, body: Body) -> Backbone:
    """A network of another body that computes the same; it may share parts with the given one."""
    if body == "branches":
        if not isinstance(backbone, ResNet):
            raise UsageError(
                "AANets mixes two networks after each stage of mrdc's own ResNet: use "
                "network='resnet18' with it"
            )
        return Branches(backbone)
    return scaled(backbone) if body == "scaled" else backbone


def body_of(backbone: Backbone) -> Body:
    if isinstance(backbone, Branches):
        return "branches"
    fixed = any(isinstance(module, ScaledConv) for module in backbone.modules())
    return "scaled" if fixed else "plain"
