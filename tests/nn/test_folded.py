"""The maps of a teacher whose convolutions end in cuDNN's operators."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from mrdc.nn.compile import compiled
from mrdc.nn.folded import conv_add_relu, conv_relu, folded_maps, is_folded
from mrdc.nn.heads import Linear
from mrdc.nn.net import Net
from mrdc.nn.resnet import ResNet, Stem, Variant
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("seeded")


def trained(variant: Variant, stem: Stem) -> Net:
    """A network whose batch norms have scales, shifts and statistics."""
    net = Net(ResNet(variant, 8, stem), Linear(64)).eval()
    for norm in [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]:
        assert norm.running_mean is not None and norm.running_var is not None
        for tensor in (norm.weight, norm.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
        for tensor in (norm.bias, norm.running_mean):
            nn.init.normal_(tensor, std=0.2)
    return net


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Within the rounding of bf16."""
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.bfloat16 and a.shape == b.shape
        assert (a - b).norm() < 0.02 * b.norm()


@pytest.mark.parametrize("variant", ["plain", "lucir", "pod"])
@pytest.mark.parametrize("stem", ["7x7", "3x3"])
def test_maps_are_those_of_the_network(variant: Variant, stem: Stem) -> None:
    """For every variant, and for odd sides."""
    net, images = trained(variant, stem), torch.randint(0, 256, (2, 3, 45, 46), dtype=torch.uint8)
    with torch.no_grad():
        expected = net.maps(images)
        with torch.autocast("cpu", torch.bfloat16):
            close(folded_maps(net.frozen(), images), expected)


def test_only_folded_networks_of_ours_are_computed_so() -> None:
    net = trained("lucir", "7x7")
    assert is_folded(net.frozen())
    assert not is_folded(net)
    assert not is_folded(tiny().frozen())  # too narrow
    assert not is_folded(net.with_body("branches").frozen())


def test_compiled_teacher_follows_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher takes the weights of the next one and keeps its code; here traced only."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    net, images = trained("lucir", "7x7"), torch.randint(0, 256, (2, 3, 32, 32))
    teacher = net.frozen()
    maps, after = compiled(teacher), trained("lucir", "7x7")
    with torch.no_grad():
        expected, others = net.maps(images), after.maps(images)
        with torch.autocast("cpu", torch.bfloat16):
            close(maps(images), expected)
            teacher.become(after.frozen())
            close(maps(images), others)


def test_operators_keep_their_promises_to_torch() -> None:
    """Schema, and shapes and strides of the results."""
    x, weight, bias = torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3), torch.randn(4)
    x, weight = (v.contiguous(memory_format=torch.channels_last) for v in (x, weight))
    checks = ("test_schema", "test_faketensor")
    for stride in (1, 2):
        torch.library.opcheck(conv_relu, (x, weight, bias, stride, 1), test_utils=checks)
    torch.library.opcheck(conv_add_relu, (x, weight, bias, x), test_utils=checks)
