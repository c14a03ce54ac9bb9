"""Share one GPU among many runs: several at a time, none that cannot end in time.

    python benchmarks/card.py runs.toml --slots 4 --seconds 1700

`runs.toml` lists them in order of importance:

    [[run]]
    name = "cub/lucir-5-s3"      # its folder under --out, and its log beside it
    command = "lucir --data CUB --phases 5 --seed 3"
    seconds = 400                # about how long it takes beside the others
    needs = "CUB/test"           # started only once this path exists (optional)

The list is read again all the time, so that runs can be added while others are under way. Runs of
one seed share their first phase. Start `nvidia-cuda-mps-control -d` first: kernels of several
processes then run side by side.
"""

import argparse
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

Job = dict[str, Any]


def listed(file: Path) -> list[Job]:
    """The runs in a file; none while it is being written, or if one is incomplete."""
    try:
        jobs = list(tomllib.loads(file.read_text()).get("run", []))
        for job in jobs:
            for key in ("name", "command", "seconds"):
                if key not in job:
                    raise ValueError(f"a run has no {key}: {job}")
        return jobs
    except (OSError, ValueError) as error:
        print(f"{file}: {error}", flush=True)
        return []


def startable(jobs: list[Job], begun: set[str], left: float) -> Job | None:
    """The first run that is not begun, has its data, and can end in the seconds left."""
    for job in jobs:
        ready = "needs" not in job or Path(job["needs"]).exists()
        if job["name"] not in begun and ready and job["seconds"] <= left:
            return job
    return None


def start(job: Job, out: Path) -> subprocess.Popen[bytes]:
    """Start a run with its output in a log."""
    folder = out / job["name"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mrdc", "run", *shlex.split(job["command"])]
    with folder.with_name(f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--out", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="TOML file with the list of runs")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--slots", type=int, default=4, help="runs at a time")
    parser.add_argument("--seconds", type=float, required=True, help="time for all of them")
    given = parser.parse_args()
    begin = time.monotonic()
    begun: set[str] = set()
    running: dict[str, subprocess.Popen[bytes]] = {}

    def say(what: str) -> None:
        print(f"{time.monotonic() - begin:6.0f} s  {what}", flush=True)

    while (left := begin + given.seconds - time.monotonic()) > 0:
        for name in [name for name, process in running.items() if process.poll() is not None]:
            say(f"ended {name} with {running.pop(name).returncode}")
        job = None
        if len(running) < given.slots:
            job = startable(listed(given.runs), begun, left)
        if job is not None:
            begun.add(job["name"])
            running[job["name"]] = start(job, given.out)
            say(f"started {job['name']}")
            continue
        waiting = [j for j in listed(given.runs) if j["name"] not in begun and j["seconds"] <= left]
        if not running and not waiting:
            break
        time.sleep(0.5)
    for name, process in running.items():
        process.terminate()
        say(f"stopped {name}: the same command resumes it")


if __name__ == "__main__":
    main()
