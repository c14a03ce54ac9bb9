"""How a run shows that it moves: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mrdc._utils.text import count, learned

LINE_SECONDS = 10.0  # between plain lines inside a phase


class Progress:
    """Listens to a run: phase, epoch, loss, images a second, time left."""

    def __init__(self, silent: bool):
        console = Console(stderr=True)
        self.silent = silent
        self.plain = not console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[info]}"),
                   TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
        hidden = silent or self.plain
        self._bars = Bars(*columns, console=console, disable=hidden, transient=True)
        self._task: TaskID | None = None
        self._unit = "epoch"
        self._last = time.monotonic()

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        """Hear of an event."""
        if self.silent:
            return
        if kind == "start" and fields["in_training"]:
            self._say(f"warning: {learned(fields['in_training'])}")
        elif kind == "check":
            self._check(fields["images"], fields["of"])
        elif kind == "phase_start":
            self._start(fields)
        elif kind == "resume":
            self._say(f"phase {fields['phase']}: goes on after {self._unit} {fields['epoch']}")
        elif kind == "epoch" and fields["stage"] is not None:
            self._epoch(fields)
        elif kind == "phase":
            if "ap" in fields:
                score = f"AP {fields['ap']:.2f}, AP50 {fields['ap50']:.2f}"
            else:
                score = f"{count(fields['classes'], 'class')}, accuracy {fields['accuracy']:.2f} %"
            held = count(fields["memory"]["items"], "image")
            self._say(f"phase {fields['phase']}: {score}, {held} held, {fields['seconds']:.1f} s")
            if "warning" in fields.get("report", {}):
                self._say(f"warning: {fields['report']['warning']}")

    def _check(self, done: int, total: int) -> None:
        if not self.plain:
            if self._task is None:
                self._task = self._bars.add_task("checking images", total=total, info="")
            self._bars.update(self._task, completed=done)
        elif time.monotonic() - self._last > LINE_SECONDS:
            self._last = time.monotonic()
            self._say(f"checked {done:,} of {count(total, 'image')}")

    def _start(self, fields: dict[str, Any]) -> None:
        self._last = time.monotonic()
        self._unit = "epoch" if "classes" in fields else "part"  # a detector counts steps
        if self.plain:
            new = f"{count(fields['classes'], 'new class')}, " if "classes" in fields else ""
            images = f"{count(fields['train_images'], 'image')} to train on"
            self._say(f"phase {fields['phase']}: {new}{images}")
            return
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(f"phase {fields['phase']}", total=None, info="")

    def _epoch(self, fields: dict[str, Any]) -> None:
        at = f"{self._unit} {fields['epoch']}/{fields['epochs']}"
        info = f"loss {fields['loss']:.3f}, {fields['images_per_second']:,.0f} images/s"
        if not self.plain:
            assert self._task is not None
            stage = f" stage {fields['stage'] + 1}" if fields["stage"] else ""
            name = f"phase {fields['phase']}{stage}, {at}"
            done, total = fields["epoch"], fields["epochs"]
            self._bars.update(self._task, description=name, completed=done, total=total, info=info)
        elif time.monotonic() - self._last > LINE_SECONDS:
            self._last = time.monotonic()
            self._say(f"  {at}: {info}")

    def _say(self, line: str) -> None:
        if self.plain:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bars.console.print(line, highlight=False, markup=False)


class Place(Protocol):
    """A run of a sweep, as far as progress goes."""

    @property
    def place(self) -> dict[str, str]: ...


class SweepProgress:
    """Says which runs of a sweep have begun and ended."""

    def __init__(self, silent: bool):
        self.silent = silent

    def __call__(self, cell: Place, result: dict[str, Any] | None) -> None:
        if self.silent:
            return
        name = ", ".join(f"{axis} {value}" for axis, value in cell.place.items())
        if result is None:
            line = f"{name}: begun"
        else:
            score = f"{result['average_incremental_accuracy']:.2f} % averaged"
            score = f"AP {result['ap'][-1]:.2f}" if "ap" in result else score
            line = f"{name}: {score}, {result['seconds']:.0f} s"
            if result.get("in_training"):
                line += f"; warning: {learned(result['in_training'])}"
        print(line, file=sys.stderr, flush=True)
