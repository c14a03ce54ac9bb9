"""Batch norms over the batch of all processes."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from mrdc.distributed.group import world

M = TypeVar("M", bound=nn.Module)
PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncNorm(nn.SyncBatchNorm, nn.BatchNorm2d):
    """Torch's synchronised batch norm, which needs a GPU; on a CPU, the same by plain sums."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or not self.training:
            return super().forward(x)
        sides, shape = [0, *range(2, x.ndim)], [1, -1, *(1 for _ in x.shape[2:])]
        wide = x.double()  # so that variances can be differences of sums
        own = [wide.sum(sides), wide.square().sum(sides), wide.new_tensor([x[:, 0].numel()])]
        total, squares, count = torch.split(world().sum(torch.cat(own)), [*map(len, own)])
        mean = total / count
        spread = squares / count - mean.square()
        self._track(mean.detach(), (spread * count / (count - 1)).detach())
        scale = (spread + self.eps).rsqrt() * self.weight
        moved = self.bias - mean * scale
        out: Tensor = wide * scale.view(shape) + moved.view(shape)
        return out.to(x.dtype)

    def _track(self, mean: Tensor, spread: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(spread.to(self.running_var), self.momentum)


def synchronised(model: M) -> M:
    """Make the plain batch norms of a network use the whole batch of all processes.

    Classes derived from torch's batch norms, which may do more, keep to their own part of it.
    """
    if world().size == 1:
        return model
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) in PLAIN and child.affine and child.momentum is not None:
                setattr(module, name, _synchronised(child))
    return model


def _synchronised(norm: nn.Module) -> SyncNorm:
    """The same norm, with the same tensors."""
    assert isinstance(norm, PLAIN)
    made = SyncNorm(norm.num_features, norm.eps, norm.momentum, norm.affine)
    made._parameters, made._buffers = norm._parameters, norm._buffers
    return made.train(norm.training)
