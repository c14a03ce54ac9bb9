"""Processes killed at random moments leave complete files or none."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from mrdc.memory.audit import audit
from tests.campaign.harness import Area, Case, FaultError
from tests.campaign.sources import FAST
from tests.conftest import make_photos

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def prepare(folder: Path) -> Case:
    photos = make_photos(folder / "photos", classes=3, images=40)
    command = [sys.executable, "-m", "mrdc", "pack", str(photos), "--budget", "1MB", *FAST]
    environment = {**os.environ, "MRDC_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    usual = [0.0]  # seconds of a whole command

    def case(random: Random) -> None:
        out = folder / "out"
        out.mkdir(exist_ok=True)
        path = out / "m.mrdc"
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, "--force", "-o", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            process.wait(random.uniform(0.3, 1.0) * usual[0] if usual[0] else 50)
        except subprocess.TimeoutExpired:
            process.send_signal(random.choice(SIGNALS))
        _, err = process.communicate(timeout=50)
        usual[0] = usual[0] or time.monotonic() - start
        if "Traceback" in err:
            raise FaultError(err[-300:])
        if path.exists() and audit(path).problems:
            raise FaultError(f"left a damaged file: {audit(path).problems[0]}")
        left = [p.name for p in out.iterdir() if p != path]
        if left and process.returncode != -signal.SIGKILL:
            raise FaultError(f"ended with {process.returncode} and left {left}")
        for name in left:
            (out / name).unlink()

    return case


AREA = Area("kills", prepare, share=0.02)
