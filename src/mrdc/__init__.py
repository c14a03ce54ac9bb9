"""Memory replay with data compression: old training images under a byte budget.

import mrdc
plan = mrdc.plan("photos", "20/class")               # which quality, how many images
packed = mrdc.pack("photos", "200MB", "old.mrdc")    # one memory file
memory = mrdc.ReplayMemory.load("old.mrdc")          # a torch Dataset
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["ReplayMemory", "pack", "plan"]

if TYPE_CHECKING:
    from mrdc.memory.replay import ReplayMemory
    from mrdc.planning.pack import Packed
    from mrdc.planning.plan import Plan


def plan(photos: str | os.PathLike[str], budget: str | int, **settings: Any) -> Plan:
    """Choose a quality for a folder and a budget; `settings` as in `PlanSettings`.

    `embed` may also be a callable from uint8 images (n, 3, 224, 224) to features (n, d).
    """
    from mrdc.planning.plan import plan as run
    from mrdc.planning.settings import PlanSettings

    embedder, settings = _split(settings)
    return run(PlanSettings(Path(photos), str(budget), **settings), embedder=embedder)


def pack(
    photos: str | os.PathLike[str],
    budget: str | int,
    output: str | os.PathLike[str],
    **settings: Any,
) -> Packed:
    """Write a memory file for a folder and a budget; `settings` as in `PackSettings`."""
    from mrdc.planning.pack import pack as run
    from mrdc.planning.settings import PackSettings

    embedder, settings = _split(settings)
    chosen = PackSettings(Path(photos), str(budget), output=Path(output), **settings)
    return run(chosen, embedder=embedder)


def _split(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The embedder, if it is a callable, and the settings as the dataclass wants them."""
    from mrdc.nn.embed import load_embedder

    embed: str | Callable[..., Any] = settings.get("embed", "lite0")
    embedder = None
    if not isinstance(embed, str):
        embedder = load_embedder(embed)
        settings = {**settings, "embed": getattr(embed, "__name__", type(embed).__name__)}
    single = {
        name: (value,)
        for name in ("codec", "quality")
        if isinstance(value := settings.get(name), (str, int))
    }
    return embedder, {**settings, **single}


def __getattr__(name: str) -> Any:
    """`ReplayMemory` imports torch, so it is fetched when first asked for."""
    if name == "ReplayMemory":
        from mrdc.memory.replay import ReplayMemory

        return ReplayMemory
    raise AttributeError(f"module 'mrdc' has no attribute {name!r}")
