"""State that a run needs to resume, and who keeps it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from mrdc.distributed.group import world
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Checkpoint


@dataclass
class Saved:
    """A run at the end of a phase."""

    phase: int
    checkpoint: Checkpoint
    memory: ReplayMemory | None


def everywhere(saved: Saved | None) -> Saved | None:
    """Send to every process what rank 0 has loaded."""
    memory = None if saved is None else saved.memory
    found = world().lead(lambda: None if saved is None else replace(saved, memory=None))
    if world().lead(lambda: memory is not None):
        memory = world().share(
            lambda: cast(ReplayMemory, memory), ReplayMemory.save, ReplayMemory.load
        )
    return None if found is None else replace(found, memory=memory)


@dataclass
class Partial:
    """A phase at the end of an epoch; its checkpoint has a group "momentum"."""

    phase: int
    epoch: int
    checkpoint: Checkpoint


Share = Callable[[Checkpoint], None]


class Keeper:
    """Keeps nothing; `RunFolder` keeps everything."""

    keeps = False

    def load(self) -> Saved | None:
        """The last finished phase."""
        return None

    def save(self, saved: Saved) -> None:
        """Keep the end of a phase."""

    def load_partial(self, phase: int) -> Partial | None:
        """The last checkpoint inside a phase."""
        return None

    def save_partial(self, partial: Callable[[], Partial], now: bool = False) -> None:
        """Keep the middle of a phase, if the last checkpoint is old enough (or `now`)."""

    @contextmanager
    def shared(self, key: Callable[[], str]) -> Iterator[tuple[Checkpoint | None, Share]]:
        """A first phase trained by another run, or a way to share ours."""
        yield None, lambda checkpoint: None

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        """Record an event."""

    def write_line(self, value: dict[str, Any]) -> None:
        """Record the result of a run."""

    def close(self) -> None:
        """Keep nothing more."""
