"""The fused stem, compared with plain batch norm, max-pool and ReLU.

Triton decides when it is imported whether kernels run on a GPU or are interpreted on the CPU, so
the tests of the kernels run in a process of their own.
"""

import copy
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc.nn.stem import norm_pool, pool, pool_backward
from tests.helpers import tiny
from tests.test_documents import ROOT

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
pytestmark = pytest.mark.usefixtures("seeded")
Stem = Callable[[Tensor, nn.BatchNorm2d], Tensor]


def plain(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    return F.relu(F.max_pool2d(norm(x), 3, 2, 1))


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """A norm whose scales are positive, negative and zero."""
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    with torch.no_grad():
        norm.weight[0] = 0
    return norm


def results(stem: Stem, x: Tensor, norm: nn.BatchNorm2d) -> list[Tensor]:
    """Output, gradients of map, weight and bias, and running statistics."""
    norm, x = copy.deepcopy(norm), x.detach().clone().requires_grad_()
    out = stem(x, norm)
    towards = torch.linspace(-1, 1, out.numel(), device=x.device).view_as(out)
    grads = torch.autograd.grad((out * towards).sum(), [x, norm.weight, norm.bias])
    return [out.detach(), *grads, *norm.buffers()]


def agree(stem: Stem, x: Tensor, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    norm = batch_norm(x.shape[1]).to(x.device)
    for ours, theirs in zip(results(stem, x, norm), results(plain, x, norm), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


@interpreted
@pytest.mark.parametrize("size", [(2, 4, 8, 8), (3, 8, 7, 10), (1, 2, 9, 5), (2, 64, 25, 24)])
def test_fused_and_plain_stem_agree(size: tuple[int, ...]) -> None:
    """For odd sides, too, and for more pixels than one program handles."""
    agree(norm_pool, torch.randn(size) * 3 + 1)


@interpreted
def test_the_first_of_equal_values_wins() -> None:
    """As in torch: small whole numbers, so that most windows have ties."""
    agree(norm_pool, torch.randint(-1, 2, (2, 4, 9, 9)).float())


@interpreted
def test_bf16_maps_agree_but_for_rounding() -> None:
    """The interpreter truncates to bf16, where a GPU rounds."""
    agree(norm_pool, torch.randn(2, 4, 9, 8).bfloat16(), rtol=0.02, atol=0.1)


@interpreted
def test_a_map_that_is_not_a_number_shows() -> None:
    """Diverging training must not look healthy."""
    x = torch.randn(1, 2, 4, 4)
    x[0, 0, 0, 0] = torch.nan
    out = norm_pool(x, batch_norm(2))
    assert out[:, 0].isnan().all() and not out[:, 1].isnan().any()


@interpreted
def test_operators_keep_their_promises_to_torch() -> None:
    """Schema, shapes and strides of the results, and tracing."""
    x = torch.randn(2, 4, 7, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    one = torch.ones(4)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(pool, (x, one, one, one, one), test_utils=checks)
    out, peak, tap = pool(x.detach(), one, one, one, one)
    given = (torch.ones_like(out), x.detach(), peak, tap, one, one, one)
    torch.library.opcheck(pool_backward, given, test_utils=checks[:2])


@interpreted
def test_compiled_network_uses_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced but not compiled: loss, gradients and statistics are those of the plain network."""
    calls: list[bool] = []

    def everywhere(x: Tensor, norm: nn.Module) -> bool:
        calls.append(norm.training and torch.compiler.is_compiling())
        return calls[-1]

    monkeypatch.setattr("mrdc.nn.resnet.fuses", everywhere)
    net = tiny().to(memory_format=torch.channels_last).train()
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    found = []
    for maps in (net._maps, torch.compile(net._maps, backend="aot_eager")):
        start = copy.deepcopy(net.state_dict())
        loss = sum(each.square().mean() for each in maps(images))
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in net.backbone.parameters() if p.grad is not None]
        found.append([loss.detach(), *grads, *copy.deepcopy(list(net.backbone.buffers()))])
        net.zero_grad(set_to_none=True)
        net.load_state_dict(start)
    assert calls == [False, True]
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="for a process without interpreter")
def test_kernels_in_the_interpreter() -> None:
    """The tests above, in their own process."""
    env = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-m", "not gpu", __file__]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_compiled_kernels_agree() -> None:
    """In fp32, on a GPU."""
    agree(norm_pool, torch.randn(4, 64, 31, 30, device="cuda"), rtol=1e-3, atol=1e-3)
