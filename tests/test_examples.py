"""The examples run as their docstrings say, each in its own process."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import script_output

EXAMPLES = Path(__file__).parents[1] / "examples"


def output(*arguments: object, **environment: str) -> str:
    """The standard output of a Python process."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_number(line: str) -> float:
    return float(re.findall(r"[\d.]+", line)[-1])


def test_training_loop(tmp_path: Path) -> None:
    """Compressed images in the same bytes: more of them, and less forgetting, most if matched."""
    _, *lines = script_output(EXAMPLES / "training_loop.py", tmp_path).splitlines()
    nothing, originals, compressed, low, matched = lines
    held = [int(line[16:26]) for line in (nothing, originals, compressed, low)]
    assert held[0] == 0 < 3 * held[1] < held[2] < held[3]
    assert last_number(compressed) > last_number(originals)
    assert last_number(matched) > last_number(low)


def test_replay(tmp_path: Path) -> None:
    """Replay forgets less, within its bytes."""
    nothing, replayed = script_output(EXAMPLES / "replay.py", tmp_path).splitlines()
    score = re.compile(r"accuracy +([\d.]+) %")
    before, after = (float(score.findall(line)[0]) for line in (nothing, replayed))
    assert after > before + 20
    assert " images of 10 classes, " in replayed


def test_own_method(tmp_path: Path) -> None:
    """A method with replay beats finetuning."""
    finetune, mine = script_output(EXAMPLES / "own_method.py", tmp_path).splitlines()
    assert finetune.startswith("finetune   0 images held") and mine.startswith("mine ")
    assert last_number(mine) > last_number(finetune)


def test_own_method_as_a_plugin(tmp_path: Path) -> None:
    """`--plugin` gives a method its recipe."""
    squares, path = tmp_path / "squares", {"PYTHONPATH": str(EXAMPLES), "OMP_NUM_THREADS": "1"}
    output("-c", f"from coloured_squares import *; make_squares(Path({str(squares)!r}), 8)", **path)
    command = ["run", "mine", "--plugin", "own_method", "--data", squares, "--set", "weight=0.1"]
    small = "--phases 2 --network resnet18-narrow --size 32 --train.epochs 1 --train.lr 0.01"
    printed = output("-m", "mrdc", *command, *small.split(), "--out", tmp_path / "run", **path)
    assert printed.startswith("mine on squares")
    assert "Averaged incremental accuracy" in printed


def test_own_codec(tmp_path: Path) -> None:
    """R_q notices that colour is gone, and a file of the codec can be opened."""
    lines = script_output(EXAMPLES / "own_codec.py", tmp_path).splitlines()
    *candidates, sentence, stored, colour = lines
    grey = [line for line in candidates if line.startswith("grey-jpeg")]
    assert len(grey) == 3 and all(line.endswith("too far from 1") for line in grey)
    assert sentence.startswith("Store 534 images as jpeg 25 instead of 79 originals")
    assert "images as grey-jpeg in a file of" in stored
    assert colour == "colour left: 0 of 255"


def test_own_network(tmp_path: Path) -> None:
    """A torchvision network beats chance, which is 100, 50 and 16.7 %."""
    network, scores = script_output(EXAMPLES / "own_network.py", tmp_path).splitlines()
    assert network.startswith("MobileNetV3: 927,008 parameters")
    assert last_number(scores) > 30
