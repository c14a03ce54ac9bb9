"""Time of a run until it starts, and in total: with an empty cache (cold), then again (warm).

Every line is one run in its own process. `cold` and `warm` differ only in the contents of the cache
folder; the first phase is not shared. `sweep` is that many cold runs at once, with different seeds.

    python benchmarks/startup.py lucir-mrdc --data photos --phases 5 --sweep 4
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import emit, machine

INTERVAL = 0.02  # seconds between checks for new results


class Watched:
    """A run and the times of its events, in seconds since its process was started."""

    def __init__(self, recipe: str, out: Path, cache: Path, flags: Sequence[str]):
        command = [sys.executable, "-m", "mrdc", "run", recipe, "--out", str(out), "--no-cache"]
        environment = os.environ | {"MRDC_CACHE": str(cache)}
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
        self.results, self.start = out / "results.jsonl", time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--json", *flags], env=environment, stdout=subprocess.DEVNULL
        )
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.end = 0.0

    def look(self) -> bool:
        """Record new events; False once the process has ended."""
        running = self.process.poll() is None
        if self.results.exists():
            lines = self.results.read_text().splitlines()
            now = time.perf_counter() - self.start
            self.events += [(now, json.loads(line)) for line in lines[len(self.events) :]]
        if not running and not self.end:
            self.end = time.perf_counter() - self.start
        return running

    def first(self, kind: str, count: int = 1) -> float:
        """Time of the first (or `count`-th) event of a kind."""
        return [when for when, event in self.events if event.get("event") == kind][count - 1]

    def fields(self) -> dict[str, Any]:
        """Seconds until each step, for the whole run, and by part."""
        if self.process.returncode:
            sys.exit(f"the run failed with exit code {self.process.returncode}")
        epochs = [event for _, event in self.events if event.get("event") == "epoch"]
        result = self.events[-1][1]
        parts: dict[str, float] = {}
        for one in (event for _, event in self.events if event.get("event") == "phase"):
            for name, seconds in one["parts"].items():
                parts[name] = parts.get(name, 0.0) + seconds
        return {
            "to_start": self.first("start"),  # imports, and every image read once
            "to_feed": self.first("feed"),  # images of the first phase decoded
            "to_first_epoch": self.first("epoch"),
            "second_epoch": self.first("epoch", 2) - self.first("epoch"),
            "images_per_second": epochs[-1]["images_per_second"],
            "whole": self.end,
            "parts": {name: round(seconds, 2) for name, seconds in parts.items()},
            "accuracy": result["average_incremental_accuracy"],
            "resident": next(e["resident"] for _, e in self.events if e.get("event") == "feed"),
        }


def watch(runs: Sequence[Watched]) -> None:
    """Wait for runs to end."""
    while [run for run in runs if run.look()]:
        time.sleep(INTERVAL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", help="such as lucir-mrdc")
    parser.add_argument("--label", default="photos", help="name of the images in the results")
    parser.add_argument("--cache", type=Path, help="cache folder to use and keep")
    parser.add_argument("--sweep", type=int, default=0, help="also this many cold runs at once")
    args, flags = parser.parse_known_args()  # the other flags are for the run
    about = {"recipe": args.recipe, "label": args.label, "flags": " ".join(flags)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for kind in ("cold", "warm"):
            run = Watched(args.recipe, root / kind, args.cache or root / "cache", flags)
            watch([run])
            emit("startup", what=kind, **about, **run.fields(), **machine())
        if args.sweep:
            runs = [
                Watched(args.recipe, root / str(n), root / "sweep", [*flags, "--seed", str(n)])
                for n in range(args.sweep)
            ]
            watch(runs)
            for run in runs:
                emit("startup", what=f"sweep of {args.sweep}", **about, **run.fields(), **machine())


if __name__ == "__main__":
    main()
