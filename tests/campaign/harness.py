"""Run cases: each must end in time, with a result or a one-line error."""

import contextlib
import io
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType

from mrdc.cli.main import main

LIMIT = 60  # seconds for one case
Case = Callable[[Random], None]  # raises whatever is wrong


class FaultError(AssertionError):
    """A case that did not end as promised."""


@dataclass(frozen=True)
class Area:
    """A kind of case: `prepare` sets up what its cases share in a folder, and returns the case."""

    name: str
    prepare: Callable[[Path], Case]
    share: float = 1.0  # of the requested cases: lower where cases are slow


@dataclass
class Tally:
    """Outcomes of the cases of an area."""

    area: str
    cases: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_case: int = 0
    peak_mb: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.area:<10} {self.cases:>6} cases {len(self.failures):>4} failures "
            f"{self.seconds:>8.1f} s, slowest {self.slowest:>6.2f} s (case {self.slowest_case}), "
            f"peak {self.peak_mb:>6.0f} MB"
        )


def run_area(area: Area, cases: int, seed: int) -> Tally:
    """Run the cases `seed`, `seed + 1`, ... of an area, which are the same on every machine."""
    tally = Tally(area.name)
    with TemporaryDirectory() as folder:
        case = area.prepare(Path(folder))
        for number in range(seed, seed + max(1, round(cases * area.share))):
            start = time.monotonic()
            try:
                with in_time():
                    case(Random(f"{area.name} {number}"))
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error!s:.200} ({where.filename}:{where.lineno})"
                tally.failures.append(f"{area.name} {number}: {text}")
            seconds = time.monotonic() - start
            tally.cases, tally.seconds = tally.cases + 1, tally.seconds + seconds
            if seconds > tally.slowest:
                tally.slowest, tally.slowest_case = seconds, number
    tally.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return tally


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raise a FaultError after LIMIT seconds."""

    def late(number: int, frame: FrameType | None) -> None:
        raise FaultError(f"took more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def command(*arguments: object) -> int:
    """Run `mrdc` in this process; returns 0 (done) or 2 (refused), and raises on a fault."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    if code not in (0, 2) or (code == 2 and not err.getvalue() + out.getvalue()):
        raise FaultError(f"{arguments[0]} ended with {code}: {err.getvalue()[-200:]}")
    raw = [c for c in out.getvalue() + err.getvalue() if c < " " and c not in "\n\r\t"]
    if raw and not sys.stdout.isatty():
        raise FaultError(f"{arguments[0]} printed control characters {raw[:3]!r}")
    return code
