"""The replay memory: a byte budget, the images under it, and the file they are saved in.

`ReplayMemory` needs torch, so it is imported on first use; everything else works without.
"""

from typing import TYPE_CHECKING, Any

from mrdc.memory.audit import audit
from mrdc.memory.budget import Budget, parse_budget, quantity
from mrdc.memory.export import export
from mrdc.memory.file import MemoryFile

if TYPE_CHECKING:
    from mrdc.memory.replay import ReplayMemory

__all__ = [
    "Budget",
    "MemoryFile",
    "ReplayMemory",
    "audit",
    "export",
    "parse_budget",
    "quantity",
]


def __getattr__(name: str) -> Any:
    if name == "ReplayMemory":
        from mrdc.memory.replay import ReplayMemory

        return ReplayMemory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
