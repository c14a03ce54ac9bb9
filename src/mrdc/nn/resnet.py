"""ResNet-18 (He et al., 2016), in the variants that the methods use.

    plain   as in torchvision: every block ends in a ReLU
    lucir   the last block has no ReLU, so features may be negative
    pod     the last block of every stage has no ReLU, nor is there one between stages

The forward pass returns the maps of all stages; there are no hooks.
"""

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mrdc.nn.stem import fuses, norm_pool

Variant = Literal["plain", "lucir", "pod"]
Stem = Literal["7x7", "3x3"]
LEVELS = 4


class WideConv(nn.Conv2d):
    """The first 7 x 7 convolution of stride 2, rewritten on a GPU.

    Kernels of three channels are slow there. Each 2 x 2 pixels become 12 channels of one pixel,
    so that the same sums are a 4 x 4 convolution of stride 1. Four channels of zeros follow, which
    cuDNN would otherwise add itself, more slowly.
    """

    def __init__(self, out: int):
        super().__init__(3, out, 7, 2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return convolved(x, self, self.weight, self.bias)


def convolved(x: Tensor, conv: nn.Conv2d, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a convolution with kernels other than its own."""
    if in_blocks(conv, x):
        return F.conv2d(*blocks(x, weight), bias)
    return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


def in_blocks(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether to apply a convolution by blocks of 2 x 2 pixels."""
    even = x.shape[2] % 2 == x.shape[3] % 2 == 0
    return isinstance(conv, WideConv) and x.is_cuda and even


def blocks(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Images and kernels of the 7 x 7 convolution as those of a 4 x 4 one without padding."""
    x, weight = F.pad(x, (4, 2, 4, 2)), F.pad(weight, (1, 0, 1, 0))
    x, weight = F.pixel_unshuffle(x, 2), F.pixel_unshuffle(weight, 2)
    x, weight = (F.pad(v, (0, 0, 0, 0, 0, 4)) for v in (x, weight))
    x, weight = (v.contiguous(memory_format=torch.channels_last) for v in (x, weight))
    return x, weight


class ScaledConv(nn.Module):
    """A convolution with fixed kernels and learned multipliers (out, in, 1, 1)."""

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.conv = conv.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]))

    def forward(self, x: Tensor) -> Tensor:
        return convolved(x, self.conv, self.conv.weight * self.scale, self.conv.bias)

    def plain(self) -> nn.Conv2d:
        """The same as one convolution."""
        made = copy.deepcopy(self.conv)
        made.weight.data *= self.scale.data
        return made


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, with a final ReLU if `relu`."""

    def __init__(self, inp: int, out: int, stride: int, relu: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(inp, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = relu
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inp != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inp, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        return F.relu(y, inplace=True) if self.relu else y


class ResNet(nn.Module):
    """ResNet-18; images (n, 3, h, w), normalised, to the maps of its four stages.

    Args:
        width: channels of the first stage; the features have 8 times as many.
        stem: "7x7" halves the image twice; "3x3" (PODNet's) once, at 3.8 times the cost.
    """

    def __init__(self, variant: Variant, width: int = 64, stem: Stem = "7x7"):
        super().__init__()
        self.features = 8 * width
        if stem == "7x7":
            self.conv1: nn.Conv2d = WideConv(width)
        else:
            self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages, inp = [], width
        for number in range(LEVELS):
            out = width << number
            relu = variant == "plain" or (variant == "lucir" and number < 3)
            first = Block(inp, out, 1 if number == 0 else 2, relu=True)
            stages.append(nn.Sequential(first, Block(out, out, 1, relu)))
            inp = out
        self.stages = nn.ModuleList(stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block) and variant == "pod":
                nn.init.zeros_(module.bn2.weight)

    def level(self, number: int, x: Tensor) -> Tensor:
        """One of the four stages; the stem belongs to the first."""
        if number == 0:
            x = self.conv1(x)
            if fuses(x, self.bn1):
                x = norm_pool(x, self.bn1)
            else:  # ReLU is the same after pooling, on a quarter of the map
                x = F.relu(F.max_pool2d(self.bn1(x), 3, 2, 1), inplace=True)
        y: Tensor = self.stages[number](x)
        return y

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = []
        for number in range(LEVELS):
            x = self.level(number, x)
            maps.append(x)
        return tuple(maps)

    def fuse(self) -> None:
        """Fold batch norms into convolutions; the network must stay in evaluation mode."""
        for module in self.modules():
            if isinstance(module, (Block, ResNet)):
                _fold(module, "conv1", "bn1")
            if isinstance(module, Block):
                _fold(module, "conv2", "bn2")
                if isinstance(module.shortcut, nn.Sequential):
                    _fold(module.shortcut, "0", "1")


def _fold(module: nn.Module, conv: str, norm: str) -> None:
    first, second = module.get_submodule(conv), module.get_submodule(norm)
    if isinstance(first, ScaledConv):
        first = first.plain()
    assert isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d)
    setattr(module, conv, fuse_conv_bn_eval(first, second))
    setattr(module, norm, nn.Identity())
