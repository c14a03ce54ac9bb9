"""Shared by the benchmarks: the machine, result lines, fair timing, images."""

import argparse
import io
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SEED = 0

Pixels = NDArray[np.uint8]
Row = dict[str, Any]  # a line of a result file
Times = dict[str, list[float]]  # seconds of each round, by alternative


def machine() -> dict[str, Any]:
    """Origin of a figure: commit, seed, hardware, versions."""
    packages = ("torch", "Pillow", "simplejpeg", "numpy")
    return {
        "commit": os.environ.get("MRDC_COMMIT") or _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "src")),  # src differs from commit
        "seed": SEED,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        **{name.lower(): _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    """Version of a package, if it is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*command: str) -> str:
    run = subprocess.run(["git", *command], cwd=HERE.parent, capture_output=True, text=True)
    return run.stdout.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def emit(name: str, **fields: Any) -> None:
    """Print a point as a JSON line, and append it to results/<name>.jsonl."""
    short = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in fields.items()}
    line = json.dumps(short, sort_keys=True)
    print(line, flush=True)
    path = RESULTS / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(line + "\n")


def read(name: str) -> list[Row]:
    """The lines of results/<name>.jsonl."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(*rows: list[object]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["|" + "|".join(f" {cell} " for cell in row) + "|" for row in rows]
    lines.insert(1, "|" + "-|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def race(repeats: int, **runs: Callable[[], object]) -> Times:
    """Seconds of each alternative, run in turn (A, B, A, B, ...) so that load affects all alike."""
    times: Times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def in_processes(count: int, measure: Callable[[], Times]) -> Times:
    """Pool the times of `measure` from several processes.

    The memory layout of a single process can slow an alternative by a third.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        races = [pool.submit(measure).result() for _ in range(count)]
    return {name: [t for times in races for t in times[name]] for name in races[0]}


def compare(times: Times, one: str, other: str) -> dict[str, float]:
    """Best times, the ratio of `one` to `other`, and the median ratio over rounds."""
    rounds = [a / b for a, b in zip(times[one], times[other], strict=True)]
    best = {f"{name}_ms": 1e3 * min(times[name]) for name in times}
    return {**best, "ratio": min(times[one]) / min(times[other]), "ratio_median": median(rounds)}


def options(question: str | None) -> argparse.ArgumentParser:
    """Flags shared by the benchmarks: the image folder, and its name in the results."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--photos", type=Path, help="folder of images; default: synthetic images")
    parser.add_argument("--label", default="synthetic", help="name of the images in the results")
    return parser


def made_up(count: int, size: int = 256, seed: int = SEED) -> Iterator[Pixels]:
    """Distinct photo-like images: windows on smoothed noise, under a coloured gradient."""
    rng = np.random.default_rng((seed, 1))
    world = np.zeros((1024, 1024, 3), np.float32)
    for cell, strength in ((256, 60), (64, 40), (16, 25), (4, 14), (1, 4)):
        noise = rng.normal(0, strength, (1024 // cell, 1024 // cell, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(noise[:, :, channel]).resize(
                (1024, 1024), Image.Resampling.BICUBIC
            )
            world[:, :, channel] += np.asarray(layer)
    ramp = np.linspace(-1, 1, size, dtype=np.float32)[:, None]
    for _ in range(count):
        top, left = rng.integers(1024 - size, size=2)
        gradient = ramp[:, None] * rng.normal(0, 30, 3) + ramp[None] * rng.normal(0, 30, 3)
        window = world[top : top + size, left : left + size] + gradient + 128
        yield window.clip(0, 255).astype(np.uint8)


def as_jpeg(pixels: Pixels, quality: int = 90) -> bytes:
    """A photo as a camera would save it."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def sources(photos: Path | None, count: int) -> list[bytes]:
    """Image files: `count` spread evenly over a folder, or synthetic (256 px, quality 90)."""
    if photos is None:
        return [as_jpeg(pixels) for pixels in made_up(count)]
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    places = np.linspace(0, len(files) - 1, min(count, len(files))).astype(int)
    return [files[place].read_bytes() for place in places]
