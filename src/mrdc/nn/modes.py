"""Set the modes of a network for a while."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@contextmanager
def modes(model: nn.Module, norm: Literal["train", "eval"]) -> Iterator[None]:
    """Training mode, with batch norms in their own mode; restored afterwards."""
    before = {module: module.training for module in model.modules()}
    model.train()
    for module in before:
        if isinstance(module, BATCH_NORMS):
            module.train(norm == "train")
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; restored afterwards."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Compute no gradients for these parameters."""
    able = [p for p in parameters if p.requires_grad]
    for p in able:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in able:
            p.requires_grad_(True)
