"""What does Ray cost on one machine? `pack` with threads, and with 1 and 2 Ray workers.

Synthetic 64-px images in 100 classes, one quality. `encode` selects at random, so images are only
decoded and encoded; `embed` selects by herding, so lite0 also embeds every image. Every run is a
separate command; its CPU time and RAM (peak proportional set size) include all processes it starts.
Ray must be installed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from common import as_jpeg, emit, machine, made_up

CLASSES, QUALITY, SIDE, EVERY = 100, 50, 64, 0.5
ENGINES = {
    "threads": ("--threads", "2"),
    "ray 1": ("--engine", "ray", "--threads", "1"),
    "ray 2": ("--engine", "ray", "--threads", "2"),
}
WORK = {"encode": ("--select", "random_choice"), "embed": ("--select", "herding")}
TICK = os.sysconf("SC_CLK_TCK")


def write_photos(folder: Path, count: int) -> Path:
    """Write synthetic photos to class folders."""
    for number, pixels in enumerate(made_up(count, SIDE)):
        path = folder / f"class_{number % CLASSES:03d}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_jpeg(pixels))
    return folder


def processes(root: int) -> dict[int, float]:
    """CPU seconds used so far by a process and its descendants, by process id."""
    parents, seconds = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICK
    family = {root}
    while more := {one for one, parent in parents.items() if parent in family} - family:
        family |= more
    return {one: seconds[one] for one in family if one in seconds}


def share_of_ram(one: int) -> int:
    """Bytes of RAM of a process; shared pages are divided among the processes that share them."""
    with suppress(OSError):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def measure(command: list[str]) -> dict[str, float]:
    """Run a command; return its time, and the CPU time and RAM of all its processes."""
    start, cpu, peak = time.perf_counter(), dict[int, float](), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        while process.poll() is None:
            cpu |= (now := processes(process.pid))
            peak = max(peak, sum(map(share_of_ram, now)))
            time.sleep(EVERY)
        assert process.returncode == 0, command
        seconds = time.perf_counter() - start
        output.seek(0)
        own = json.load(output)["seconds"]
    times = {"seconds": own, "start_s": seconds - own, "cpu_s": sum(cpu.values())}
    return times | {"driver_cpu_s": cpu[process.pid], "ram": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs="+", choices=WORK, default=[*WORK])
    parser.add_argument("--images", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        photos, contents = write_photos(Path(name, "photos"), options.images), set[bytes]()
        for work in options.work:
            for engine, flags in ENGINES.items():
                output = Path(name, f"{work}-{engine}")
                command = [sys.executable, "-m", "mrdc", "pack", str(photos), "--budget", "100GB"]
                command += ["-o", str(output), "--quality", str(QUALITY), "--no-cache", "--json"]
                found = measure([*command, *WORK[work], *flags])
                rate = options.images / found["seconds"]
                shape = {"work": work, "engine": engine, "images": options.images, "side": SIDE}
                emit("clusters", **shape, **found, rate=rate, **machine())
                contents.add(output.read_bytes())
            assert len(contents) == 1, "the results differ"
            contents.clear()


if __name__ == "__main__":
    main()
