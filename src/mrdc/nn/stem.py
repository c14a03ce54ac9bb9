"""Batch norm, 3 x 3 max-pool of stride 2 and ReLU as one operator, for compiled training on a GPU.

Only one pixel of each window gets a gradient. The plain operators do not exploit that: they spread
the gradient over the full map, then reduce it for the batch norm. Here the forward pass keeps,
for each window, which pixel won and the convolution's output there; the sums of the batch norm's
backward pass then need a quarter of the map, and one pass over it writes the gradient.

A window's winner is the first of its highest values after rounding to the dtype of the map, as in
`F.max_pool2d` after `F.batch_norm`.
"""

from typing import Any

import torch
from torch import Tensor, nn

FORWARD, SUMS, SPREAD = (16, 4), (32, 4), (16, 4)  # pixels and warps per program, the best tried
ROWS = 256  # pixels that a program sums


def fuses(x: Tensor, norm: nn.Module) -> bool:
    """Whether to use the operator: only in compiled code, where Triton is at hand."""
    able = type(norm) is nn.BatchNorm2d and norm.training and x.shape[1].bit_count() == 1
    return torch.compiler.is_compiling() and x.is_cuda and able


def norm_pool(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """ReLU of the max-pooled, normalised map (n, c, h, w); the norm tracks its statistics.

    The number of channels must be a power of two.
    """
    here, spread, momentum = norm.running_mean, norm.running_var, norm.momentum
    assert here is not None and spread is not None and momentum is not None
    assert norm.training and norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        var, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
        count = x.numel() // x.shape[1]
        here.mul_(1 - momentum).add_(mean, alpha=momentum)
        spread.mul_(1 - momentum).add_(var, alpha=momentum * count / (count - 1))
        rstd = torch.rsqrt(var + norm.eps)
    out: Tensor = pool(x, norm.weight, norm.bias, mean, rstd)[0]
    return out


@torch.library.custom_op("mrdc::norm_pool", mutates_args=())
def pool(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Pooled map (n, c, h / 2, w / 2), the inputs that won, and their positions (uint8).

    Winners are numbered 0 to 8 by rows; 9 means that the ReLU is 0 and passes no gradient. The
    gradient of x includes its part through mean and rstd, which must be the statistics of x.
    """
    from mrdc.nn import stem_kernels as kernels  # Triton does not exist everywhere

    x = x.contiguous(memory_format=torch.channels_last)
    out, peak, tap = _pooled(x, weight, bias, mean, rstd)
    tile, warps = FORWARD
    kernels.forward[_grid(out, tile)](
        x, weight, bias, mean, rstd, out, peak, tap, *_sides(x), tile, num_warps=warps
    )
    return out, peak, tap


@pool.register_fake
def _pooled(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the outputs."""
    n, c, h, w = x.shape
    size = (n, c, (h + 1) // 2, (w + 1) // 2)
    out, peak, tap = (
        torch.empty(size, dtype=dtype, device=x.device, memory_format=torch.channels_last)
        for dtype in (x.dtype, x.dtype, torch.uint8)
    )
    return out, peak, tap


@torch.library.custom_op("mrdc::norm_pool_backward", mutates_args=())
def pool_backward(
    grad: Tensor, x: Tensor, peak: Tensor, tap: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of bias and weight (2, c)."""
    from mrdc.nn import stem_kernels as kernels

    grad, x = (v.contiguous(memory_format=torch.channels_last) for v in (grad, x))
    c, count = grad.shape[1], grad.numel() // grad.shape[1]
    programs, (tile, warps) = -(-count // ROWS), SUMS
    parts = mean.new_empty((programs, 2, c))
    kernels.sums[(programs,)](
        grad, peak, tap, mean, rstd, parts, count, c, ROWS, tile, num_warps=warps
    )
    sums = parts.sum(0)  # of dy and of dy * xhat
    means, dx, (tile, warps) = sums / (x.numel() // c), torch.empty_like(x), SPREAD
    kernels.spread[_grid(grad, tile)](
        grad, x, tap, weight, mean, rstd, means, dx, *_sides(x), tile, num_warps=warps
    )
    return dx, sums


@pool_backward.register_fake
def _(
    grad: Tensor, x: Tensor, peak: Tensor, tap: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    return dx, mean.new_empty((2, len(mean)))


def _grid(pooled: Tensor, tile: int) -> tuple[int, int]:
    n, _, h, w = pooled.shape
    return -(-h * w // tile), n


def _sides(x: Tensor) -> tuple[int, int, int]:
    _, c, h, w = x.shape
    return h, w, c


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, mean, rstd = inputs
    _, peak, tap = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, peak, tap, weight, mean, rstd)


def _backward(ctx: Any, grad: Tensor, *others: None) -> tuple[Tensor | None, ...]:
    dx, (bias, weight) = pool_backward(grad, *ctx.saved_tensors)
    return dx, weight, bias, None, None


pool.register_autograd(_backward, setup_context=_save)
