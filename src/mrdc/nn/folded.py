"""The maps of a teacher in compiled code: cuDNN adds biases and shortcuts and applies the ReLU.

Only for our ResNet with folded batch norms, in bf16.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc.nn.net import Net
from mrdc.nn.resnet import Block, ResNet, blocks, in_blocks

LAST = torch.channels_last


def is_folded(net: Net) -> bool:
    """Whether `folded_maps` can compute the maps of a network."""
    backbone = net.backbone
    ours = isinstance(backbone, ResNet) and isinstance(backbone.bn1, nn.Identity)
    aligned = backbone.features % 64 == 0  # 8 channels or a multiple everywhere, as cuDNN needs
    return ours and aligned and torch.version.hip is None  # ROCm has no such operators


def folded_maps(net: Net, images: Tensor) -> tuple[Tensor, ...]:
    """The maps of all stages, for images (n, 3, h, w) from 0 to 255."""
    backbone, maps = net.backbone, []
    assert isinstance(backbone, ResNet)
    x = F.max_pool2d(_stem(backbone.conv1, (images.float() - net.mean) / net.std), 3, 2, 1)
    for stage in backbone.stages:
        assert isinstance(stage, nn.Sequential)
        for block in stage:
            x = _block(block, x)
        maps.append(x)
    return tuple(maps)


def _stem(conv: nn.Conv2d, x: Tensor) -> Tensor:
    if not in_blocks(conv, x):
        return F.relu(conv(x.bfloat16()))
    x, weight = blocks(x, conv.weight)
    y: Tensor = conv_relu(_ready(x), _ready(weight), _bias(conv).bfloat16(), 1, 0)
    return y


def _block(block: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(block, Block)
    one, two, other, bias = block.conv1, block.conv2, x, _bias(block.conv2)
    if isinstance(block.shortcut, nn.Sequential):
        conv = block.shortcut[0]
        assert isinstance(conv, nn.Conv2d)
        bias = bias + _bias(conv)
        other = F.conv2d(x, _ready(conv.weight), None, conv.stride)
    y: Tensor = conv_relu(x, _ready(one.weight), _bias(one).bfloat16(), one.stride[0], 1)
    weight, bias = _ready(two.weight), bias.bfloat16()
    if not block.relu:
        return F.conv2d(y, weight, bias, padding=1) + other
    y = conv_add_relu(y, weight, bias, other)
    return y


def _ready(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).contiguous(memory_format=LAST)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias


@torch.library.custom_op("mrdc::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    if not x.is_cuda:
        return F.relu(F.conv2d(x, weight, bias, stride, padding))
    by, around = (stride, stride), (padding, padding)
    return torch.cudnn_convolution_relu(x, weight, bias, by, around, (1, 1), 1)


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    h, w = ((side + 2 * padding - weight.shape[2]) // stride + 1 for side in x.shape[2:])
    size = (len(x), len(weight), h, w)
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=LAST)


@torch.library.custom_op("mrdc::conv_add_relu", mutates_args=())
def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    if not x.is_cuda:
        return F.relu(F.conv2d(x, weight, bias, padding=1) + other)
    one = (1, 1)
    return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, one, one, one, 1)


@conv_add_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=LAST)
