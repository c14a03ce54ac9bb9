"""What a run needs to go on, and who keeps it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Checkpoint


@dataclass
class Saved:
    """A run at the end of a phase."""

    phase: int
    checkpoint: Checkpoint  # groups "model" and "method"
    memory: ReplayMemory | None


@dataclass
class Partial:
    """A phase at the end of an epoch: groups "model" and "momentum"."""

    phase: int
    epoch: int
    checkpoint: Checkpoint

    @property
    def momentum(self) -> list[Tensor]:
        """By parameter."""
        buffers = self.checkpoint.tensors["momentum"]
        return [buffers[str(index)] for index in range(len(buffers))]


Leave = Callable[[Checkpoint], None]


class Keeper:
    """Keeps nothing; `RunFolder` keeps everything."""

    def load(self) -> Saved | None:
        """The last phase that was finished."""
        return None

    def save(self, saved: Saved) -> None:
        """Keep the end of a phase."""

    def load_partial(self, phase: int) -> Partial | None:
        """How far a phase had come."""
        return None

    def save_partial(self, partial: Callable[[], Partial]) -> None:
        """Keep the middle of a phase, if the last time was long ago."""

    @contextmanager
    def shared(self, key: Callable[[], str]) -> Iterator[tuple[Checkpoint | None, Leave]]:
        """A first phase that another run has trained; else a way to leave ours for others."""
        yield None, lambda checkpoint: None

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        """Something happened."""
