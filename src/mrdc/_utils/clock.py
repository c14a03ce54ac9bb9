"""Seconds spent in named parts, each second counted once."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Clock:
    """Adds up time by part; an inner part pauses the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._parts: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time inside to `name`."""
        self._charge()
        self._parts.append(name)
        try:
            yield
        finally:
            self._charge()
            self._parts.pop()

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add time spent earlier, for example by a process that was killed."""
        for name, more in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + more

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._parts:
            self.add({self._parts[-1]: now - self._since})
        self._since = now
