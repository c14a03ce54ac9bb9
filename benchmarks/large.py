"""Time and RAM to open, sample and audit memories of 10^4 to 10^7 images, as one file and in parts.

Images have one pixel, so that the index dominates. Each step is measured in a new process.
"""

import argparse
import re
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from common import SEED, emit, machine
from mrdc.codec import CODECS
from mrdc.memory.audit import audit
from mrdc.memory.classes import ClassImages
from mrdc.memory.encode import Encoder
from mrdc.memory.names import Names
from mrdc.memory.payload import Ram
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.segments import Held

CLASSES = 100
HEAD = b"P6 1 1 255\n"  # header of a one-pixel image; its colour follows
NAME = 12  # bytes of a name, with its NUL
BATCH, BATCHES = 256, 20
FITTED = ("open_cpu_s", "first_batch_cpu_s", "image_cpu_us", "targets_cpu_s", "audit_cpu_s")


def made(count: int, part_size: str | None) -> ReplayMemory:
    """A memory of `count` one-pixel images, each of a different colour."""
    memory = ReplayMemory("1TB", "original", part_size=part_size)
    numbers = np.arange(count, dtype="<u4").reshape(CLASSES, -1)
    for label, of_class in enumerate(numbers):
        memory._classes[label] = ClassImages((pixels(of_class),), len(of_class), 0)
    memory._replace(memory._classes)
    return memory


def pixels(numbers: Any) -> Held:
    """Images with these colours as arrays, without an object per image."""
    rows, size = len(numbers), len(HEAD) + 3
    data = np.empty((rows, size), np.uint8)
    data[:, :-3] = np.frombuffer(HEAD, np.uint8)
    data[:, -3:] = numbers.view(np.uint8).reshape(rows, 4)[:, :3]
    names = np.zeros((rows, NAME), np.uint8)
    digits = numbers[:, None] // 10 ** np.arange(NAME - 2, -1, -1, dtype=np.int64) % 10
    names[:, :-1] = digits + ord("0")
    zeros = np.zeros(rows, "<i2")
    columns = {"value_sizes": zeros.astype("<i4"), "kept": np.ones(rows, "u1")}
    columns |= {"tables": zeros - 1, "encodings": zeros}
    encoding = Encoder(CODECS["original"], None, True).encoding
    starts, lengths = np.arange(rows) * size, np.full(rows, size)
    return Held(Ram(data.ravel()), starts, lengths, columns, Names(names.ravel()), [], [encoding])


def status(field: str) -> float:
    """A field of /proc/self/status, in MB."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    assert found
    return int(found[1]) / 1000


def reading(path: Path) -> dict[str, float]:
    """Time to open a memory, draw the first and later batches, and list labels; MB of RAM."""
    anonymous, before, cpu = status("RssAnon"), time.perf_counter(), time.process_time()
    memory = ReplayMemory.load(path)
    opened, opened_cpu = time.perf_counter(), time.process_time()
    growth = status("RssAnon") - anonymous
    memory.sample(BATCH, seed=SEED, threads=1)
    first, first_cpu = time.perf_counter(), time.process_time()
    for number in range(BATCHES):
        memory.sample(BATCH, seed=SEED + 1 + number, threads=1)
    done, done_cpu = time.perf_counter(), time.process_time()
    labels = memory.targets
    assert len(labels) == len(memory)
    each = 1e6 / BATCH / BATCHES
    return {
        "open_s": opened - before,
        "open_cpu_s": opened_cpu - cpu,
        "open_mb": growth,
        "first_batch_s": first - opened,
        "first_batch_cpu_s": first_cpu - opened_cpu,
        "image_us": (done - first) * each,
        "image_cpu_us": (done_cpu - first_cpu) * each,
        "targets_s": time.perf_counter() - done,
        "targets_cpu_s": time.process_time() - done_cpu,
        "private_mb": status("RssAnon") - anonymous,
    }


def auditing(path: Path) -> dict[str, float]:
    """Seconds and MB of RAM to audit a memory."""
    anonymous, peak = status("RssAnon"), status("VmHWM")
    start, cpu = time.perf_counter(), time.process_time()
    found = audit(path)
    assert not found.problems, found.problems[:3]
    return {
        "audit_s": time.perf_counter() - start,
        "audit_cpu_s": time.process_time() - cpu,
        "audit_private_mb": status("RssAnon") - anonymous,
        "audit_peak_mb": status("VmHWM") - peak,  # including pages of the files
    }


def exponent(name: str, rows: dict[int, dict[str, float]]) -> float:
    """Slope of log CPU time over log counts, where it was measured."""
    found = {count: row[name] for count, row in rows.items() if name in row}
    return float(np.polyfit(np.log(list(found)), np.log(list(found.values())), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[10**n for n in range(4, 8)])
    parser.add_argument("--part-size", default="64MB")
    parser.add_argument("--folder", type=Path, help="where to write the memories")
    parser.add_argument("--audit-most", type=int, default=10**7, help="largest memory to audit")
    parser.add_argument("--form", choices=["both", "file", "parts"], default="both")
    given = parser.parse_args()
    forms = {"both": (None, given.part_size), "file": (None,), "parts": (given.part_size,)}
    for part_size in forms[given.form]:
        rows = {count: measured(count, part_size, given) for count in given.counts}
        if len(rows) > 1:
            fits = {name: exponent(name, rows) for name in FITTED}
            emit("large", event="exponents", part_size=part_size, **fits, **machine())


def measured(count: int, part_size: str | None, given: argparse.Namespace) -> dict[str, float]:
    """One point: write, open, sample and audit."""
    folder: Path | None = given.folder
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            written = pool.submit(write, count, part_size, place / "m").result()
            best = [pool.submit(reading, place / "m").result() for _ in range(3)]
            row = min(best, key=lambda found: found["open_cpu_s"])
            if count <= given.audit_most:
                row |= pool.submit(auditing, place / "m").result()
        emit(
            "large", event="point", items=count, part_size=part_size, **written, **row, **machine()
        )
        return row
    finally:
        shutil.rmtree(place)


def write(count: int, part_size: str | None, path: Path) -> dict[str, float]:
    memory, start = made(count, part_size), time.perf_counter()
    memory.save(path)
    files = list(path.iterdir()) if path.is_dir() else [path]
    return {
        "write_s": time.perf_counter() - start,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
    }


if __name__ == "__main__":
    main()
