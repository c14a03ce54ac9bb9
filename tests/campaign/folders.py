"""Run folders with damaged results, configs and checkpoints."""

import re
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

from mrdc._utils.errors import MrdcError
from mrdc.experiments.folder import commits, finished, read_kept
from mrdc.nn.checkpoint import load_network
from tests.campaign.harness import Area, Case, command
from tests.campaign.images import damaged
from tests.report.folders import made

VALUES = (
    b"null", b"[]", b"{}", b"-1", b"1e999", b"1e308", b'"x"', b"3.5", b"true", b"9" * 25,
    b'"\\u001b[31m"', b"[[[[]]]]",
)  # fmt: skip
FILES = ("results.jsonl", "results.jsonl", "config.json", "phase-01.safetensors", "memory-01.mrdc")


def spoil(data: bytes, random: Random) -> bytes:
    """Flip a bit, replace a value, or damage some bytes."""
    spots = list(re.finditer(rb"(?<=: )[^,{}\[\]]+", data))
    act = random.random()
    if act < 0.4 and spots:
        spot = random.choice(spots)
        return data[: spot.start()] + random.choice(VALUES) + data[spot.end() :]
    if act < 0.5:
        return data + random.choice(
            (b"null\n", b"3\n", b"[]\n", b"\xff\n", b'{"event": "phase"}\n')
        )
    if act < 0.8 and data:
        place = random.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]
    return damaged(data, random)


def prepare(folder: Path) -> Case:
    sound = made(folder / "sound")

    def case(random: Random) -> None:
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(sound, run)
        for _ in range(random.randint(1, 3)):
            file = run / random.choice(FILES)
            if file.exists():
                file.write_bytes(spoil(file.read_bytes(), random))
        finished(run)
        commits(run / "results.jsonl")
        for read in (read_kept, load_network):
            with suppress(MrdcError):
                read(run)
        command("report", run, "-o", folder / "report.html")

    return case


AREA = Area("folders", prepare, share=0.1)
