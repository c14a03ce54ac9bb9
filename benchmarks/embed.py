"""Does lite0 embed faster on a CPU with a thread for each batch than with all threads in one?

Measured on a quiet machine and beside as many other busy processes as there are cores, with the
spinning of idle OpenMP threads as in the command line (short) and as in other Python programs.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

from common import compare, emit, machine, made_up, race
from mrdc.data.photo import Photo
from mrdc.nn.embed import embed
from mrdc.nn.embedder import load_embedder

SPIN = {"short": "2000", "usual": None}  # GOMP_SPINCOUNT
BUSY = "while True: pass"


def measure(images: int, repeats: int) -> dict[str, float]:
    """Seconds of both ways, in turn."""
    shown = [Photo(str(n), lambda p=p: p) for n, p in enumerate(made_up(images))]  # type: ignore[misc]
    side_by_side = load_embedder("lite0:224", device="cpu")
    together = replace(side_by_side, side_by_side=False)
    times = race(
        repeats,
        side_by_side=lambda: embed(shown, side_by_side),
        together=lambda: embed(shown, together),
    )
    return compare(times, "side_by_side", "together")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.images, given.repeats)))
        return
    cores = len(os.sched_getaffinity(0))
    for others in (0, cores):
        for spin, value in SPIN.items():
            env = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
            env |= {} if value is None else {"GOMP_SPINCOUNT": value}
            with ExitStack() as stack:
                for _ in range(others):
                    process = subprocess.Popen([sys.executable, "-c", BUSY])
                    stack.callback(process.kill)
                command = [sys.executable, __file__, "--child", "--images", str(given.images)]
                command += ["--repeats", str(given.repeats)]
                done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            emit("embed", busy_processes=others, spin=spin, **found, **machine())


if __name__ == "__main__":
    main()
