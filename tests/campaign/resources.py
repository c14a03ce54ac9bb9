"""Commands with limits on memory, threads, open files or file size."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from random import Random

from mrdc.memory.audit import audit
from tests.campaign.harness import Area, Case, FaultError
from tests.campaign.memories import memories
from tests.campaign.sources import FAST
from tests.conftest import make_photos

LIMITS = {
    resource.RLIMIT_NOFILE: (8, 12, 20, 40),
    resource.RLIMIT_FSIZE: (0, 100, 5_000, 20_000),
    resource.RLIMIT_AS: (600_000_000, 1_200_000_000, 3_000_000_000),
}


def prepare(folder: Path) -> Case:
    photos = make_photos(folder / "photos", classes=3, images=20)
    memory = memories(folder)[0]
    environment = {**os.environ, "MRDC_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}

    def case(random: Random) -> None:
        kind = random.choice(list(LIMITS))
        most = random.choice(LIMITS[kind])
        output = folder / "out"
        arguments = random.choice(
            (
                ["pack", photos, "--budget", "1MB", *FAST, "-o", output],
                ["info", memory],
                ["audit", memory],
                ["export", memory, "-o", output],
            )
        )
        done = subprocess.run(
            [sys.executable, "-m", "mrdc", *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=50,
            preexec_fn=lambda: resource.setrlimit(kind, (most, most)),
        )
        started = "mrdc" in done.stderr or done.returncode == 0  # else Python itself failed
        if started and (done.returncode not in (0, 2) or "Traceback" in done.stderr):
            raise FaultError(f"{arguments[0]} with {most:,}: {done.stderr[-300:]}")
        if arguments[0] == "pack" and output.exists() and audit(output).problems:
            raise FaultError("left a damaged file")
        subprocess.run(["rm", "-rf", str(output)], check=True)

    return case


AREA = Area("resources", prepare, share=0.02)
