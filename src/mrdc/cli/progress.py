"""Progress on standard error: bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mrdc._utils.text import count, learned, printable

LINE_SECONDS = 30.0  # between plain lines
WHERE = {
    "gpu": "images stay on the GPU, decoded",
    "ram": "images stay in RAM, decoded",
    "stream": "images are decoded in every epoch",
}


def say(line: str) -> None:
    """Print a plain line on standard error."""
    print(line, file=sys.stderr, flush=True)


class Ticker:
    """Lets a plain line through every `LINE_SECONDS`."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def due(self) -> bool:
        if time.monotonic() - self.last <= LINE_SECONDS:
            return False
        self.last = time.monotonic()
        return True


@contextmanager
def stages(silent: bool) -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Progress of `plan`, `pack`, `audit` and `export`, one bar per stage."""
    console = Console(stderr=True)
    name_and_bar = (TextColumn("{task.description}", markup=False), BarColumn())
    columns = (*name_and_bar, MofNCompleteColumn(), TimeRemainingColumn())
    plain, ticker = not console.is_terminal, Ticker()
    with Progress(*columns, console=console, disable=silent or plain, transient=True) as bars:

        def stage(name: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(name, total=total or None)
            done = 0

            def advance(more: int) -> None:
                nonlocal done
                done += more
                bars.advance(task, more)
                if plain and not silent and ticker.due():
                    say(f"{name}: {done:,}" + (f" of {total:,}" if total else ""))

            return advance

        yield stage


class RunProgress:
    """Listens to a run: phase, epoch, loss, images/s, time left."""

    def __init__(self, silent: bool):
        console = Console(stderr=True)
        self.silent, self.plain = silent, not console.is_terminal
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[info]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        hidden = silent or self.plain
        self._bars = Progress(*columns, console=console, disable=hidden, transient=True)
        self._task: TaskID | None = None
        self._unit = "epoch"
        self._resident = ""
        self._ticker = Ticker()

    def __enter__(self) -> "RunProgress":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        if self.silent:
            return
        if kind == "start" and fields["in_training"]:
            self._say(f"warning: {learned(fields['in_training'])}")
        elif kind == "check":
            self._check(fields["images"], fields["of"])
        elif kind == "phase_start":
            self._start(fields)
        elif kind == "feed":
            self._feed(fields)
        elif kind == "resume":
            self._say(f"phase {fields['phase']}: resumed after {self._unit} {fields['epoch']}")
        elif kind == "epoch":
            self._epoch(fields)
        elif kind == "phase":
            self._phase(fields)

    def _phase(self, fields: dict[str, Any]) -> None:
        if "ap" in fields:
            score = f"AP {fields['ap']:.2f}, AP50 {fields['ap50']:.2f}"
        else:
            score = f"{count(fields['classes'], 'class')}, accuracy {fields['accuracy']:.2f} %"
        held = count(fields["memory"]["items"], "image")
        self._say(f"phase {fields['phase']}: {score}, {held} held, {fields['seconds']:.1f} s")
        if "warning" in fields["report"]:
            self._say(f"warning: {fields['report']['warning']}")

    def _check(self, done: int, total: int) -> None:
        if not self.plain:
            if self._task is None:
                self._task = self._bars.add_task("checking images", total=total, info="")
            self._bars.update(self._task, completed=done)
        elif self._ticker.due():
            self._say(f"checked {done:,} of {count(total, 'image')}")

    def _start(self, fields: dict[str, Any]) -> None:
        self._unit = "epoch" if "classes" in fields else "part"  # detectors count steps
        if self.plain:
            new = f"{count(fields['classes'], 'new class')}, " if "classes" in fields else ""
            images = f"{count(fields['train_images'], 'image')} to train on"
            self._say(f"phase {fields['phase']}: {new}{images}")
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(f"phase {fields['phase']}", total=None, info="")

    def _feed(self, fields: dict[str, Any]) -> None:
        """Say where images are, if this has changed."""
        line = WHERE[fields["resident"]]
        if fields.get("by_nvjpeg"):
            line += f", {fields['by_nvjpeg']:,} of them by nvJPEG"
        if rates := fields.get("images_per_second"):
            measured = (f"{name} {rate:,.0f}" for name, rate in rates.items())
            line += f" (images/s measured: {', '.join(measured)})"
        if fields["resident"] != self._resident:
            self._resident = fields["resident"]
            self._say(f"phase {fields['phase']}: {line}")

    def _epoch(self, fields: dict[str, Any]) -> None:
        at = f"{self._unit} {fields['epoch']}/{fields['epochs']}"
        info = f"loss {fields['loss']:.3f}, {fields['images_per_second']:,.0f} images/s"
        if not self.plain:
            assert self._task is not None
            stage = f" stage {fields['stage'] + 1}" if fields["stage"] else ""
            name = f"phase {fields['phase']}{stage}, {at}"
            done, total = fields["epoch"], fields["epochs"]
            self._bars.update(self._task, description=name, completed=done, total=total, info=info)
        elif self._ticker.due():
            self._say(f"  {at}: {info}")

    def _say(self, line: str) -> None:
        if self.plain:
            say(line)
        else:
            self._bars.console.print(line, highlight=False, markup=False)


class SweepProgress:
    """Prints when runs of a sweep (`experiments.sweep.Cell`) start and end."""

    def __init__(self, silent: bool):
        self.silent = silent

    def __call__(self, cell: Any, outcome: Any, number: str) -> None:
        if self.silent:
            return
        name = ", ".join(f"{axis} {value}" for axis, value in cell.place.items())
        if outcome is None:
            line = "started"
        elif hasattr(outcome, "error"):
            line = f"failed: {outcome.error}"
        else:
            score = f"{outcome.average_incremental_accuracy:.2f} % averaged"
            score = f"AP {outcome.ap[-1]:.2f}" if outcome.ap else score
            line = f"{score}, {outcome.seconds:.0f} s"
            if outcome.in_training:
                line += f"; warning: {learned(outcome.in_training)}"
        say(printable(f"[{number}] {name}: {line}"))
