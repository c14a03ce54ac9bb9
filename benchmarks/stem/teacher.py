"""A bf16 teacher whose convolutions cuDNN fuses with bias, ReLU and shortcut."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc.nn.net import Net
from mrdc.nn.resnet import Block, ResNet


def with_cudnn(old: Net, batch: int) -> Net:
    """A copy of a folded network; only its compiled code, for one batch size, fuses with cuDNN."""
    old = copy.deepcopy(old)
    for block in [module for module in old.modules() if isinstance(module, Block)]:
        if isinstance(block.shortcut, nn.Sequential):
            conv = block.shortcut[0]
            assert isinstance(conv, nn.Conv2d) and conv.bias is not None
            assert block.conv2.bias is not None
            block.conv2.bias.data += conv.bias.data
            conv.bias = None
    old.backbone.to(torch.bfloat16)
    old.compiled = frozenset((batch,)), torch.compile(lambda x: maps(old, x), dynamic=False)
    return old


def maps(net: Net, images: Tensor) -> tuple[Tensor, ...]:
    """Maps of the stages; the first convolution is done as in `mrdc.nn.resnet.blockwise`."""
    backbone, last = net.backbone, torch.channels_last
    assert isinstance(backbone, ResNet) and backbone.conv1.bias is not None
    x = F.pad((images.float() - net.mean) / net.std, (4, 2, 4, 2))
    x = F.pixel_unshuffle(x, 2).to(torch.bfloat16).contiguous(memory_format=last)
    weight = F.pixel_unshuffle(F.pad(backbone.conv1.weight, (1, 0, 1, 0)), 2)
    x = conv_relu(x, weight.contiguous(memory_format=last), backbone.conv1.bias, 1, 0)
    x, found = F.max_pool2d(x, 3, 2, 1), []
    for stage in backbone.stages:
        assert isinstance(stage, nn.Sequential)
        for block in stage:
            x = through(block, x)
        found.append(x)
    return tuple(found)


def through(block: nn.Module, x: Tensor) -> Tensor:
    """The output of a block."""
    assert isinstance(block, Block)
    one, two, shortcut = block.conv1, block.conv2, block.shortcut(x)
    assert one.bias is not None and two.bias is not None
    y: Tensor = conv_relu(x, one.weight, one.bias, one.stride[0], 1)
    y = conv_add_relu(y, two.weight, two.bias, shortcut) if block.relu else two(y) + shortcut
    return y


@torch.library.custom_op("mrdc_trial::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    if not x.is_cuda:
        return F.relu(F.conv2d(x, weight, bias, stride, padding))
    by, around = (stride, stride), (padding, padding)
    return torch.cudnn_convolution_relu(x, weight, bias, by, around, (1, 1), 1)


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    h, w = ((side + 2 * padding - weight.shape[2]) // stride + 1 for side in x.shape[2:])
    size, last = (len(x), len(weight), h, w), torch.channels_last
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=last)


@torch.library.custom_op("mrdc_trial::conv_add_relu", mutates_args=())
def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    if not x.is_cuda:
        return F.relu(F.conv2d(x, weight, bias, padding=1) + other)
    one = (1, 1)
    return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, one, one, one, 1)


@conv_add_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)
