"""The light core: memories without torch and other packages for training."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrdc._utils.extras import TRAIN
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.pack import pack
from tests.conftest import jpeg

BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(TRAIN)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""
COMMAND = BLOCK + "from mrdc.cli.main import main\nsys.exit(main(sys.argv[1:]))"


def python(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code without the packages of the extra `train`."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_memories_are_packed_read_and_written(photos: Path, tmp_path: Path) -> None:
    """By the commands, with the same results as with torch."""
    flags = ("--budget", "9kB", "--quality", "50", "--select", "random_choice")
    commands = (
        ("pack", "photos", *flags, "-o", "a.mrdc"),
        ("audit", "a.mrdc"),
        ("info", "a.mrdc"),
        ("export", "a.mrdc", "-o", "out"),
        ("list",),
    )
    code = (
        f"from mrdc.cli.main import main\nassert not any(main([*c, '--json']) for c in {commands})"
    )
    done = python(BLOCK + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == len(commands)
    options: Any = {"qualities": 50, "select": "random_choice"}
    pack(photos, "9kB", tmp_path / "b.mrdc", **options)
    assert (tmp_path / "a.mrdc").read_bytes() == (tmp_path / "b.mrdc").read_bytes()


def test_memories_are_read_and_changed_in_python(tmp_path: Path) -> None:
    """Images are arrays (3, h, w); selectors rank features."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.extend(0, [jpeg(n) for n in range(6)], values={"logits": np.eye(6)})
    memory.save(tmp_path / "a.mrdc")
    code = """
import mrdc, numpy as np
memory = mrdc.ReplayMemory.load("a.mrdc")
image, label = memory[2]
images, labels, logits = memory.sample(4, values=("logits",))
assert type(image) is type(images) is type(labels) is type(logits) is np.ndarray
assert (image.shape, images.shape, logits.shape) == ((3, 24, 32), (4, 3, 24, 32), (4, 6))
order = mrdc.SELECTORS["herding"](images.reshape(4, -1), 4, 0)
memory.add({1: [images[n].transpose(1, 2, 0) for n in order]})
memory.extend(1, [images[0, 0]])
memory.reservoir([images[0].transpose(1, 2, 0)], [2])
memory.rebudget("8kB")
memory.save("b.mrdc")
np.save("image.npy", image)
"""
    done = python(BLOCK + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "image.npy"), memory[2][0].numpy())
    assert ReplayMemory.load(tmp_path / "b.mrdc").labels == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run lucir --data photos", "mrdc run needs torch, which is missing: pip install 'mrdc["),
        ("report runs", "mrdc report needs jinja2, which is missing: pip install 'mrdc[train]'"),
        ("plan photos --budget 9kB", "ranking by herding need torch, which is missing: pip inst"),
        ("pack photos --budget 9kB --quality 50", "`mrdc pack` with one --quality and --select"),
    ],
)
def test_commands_that_need_the_extra_say_so(arguments: str, message: str, photos: Path) -> None:
    """One line, with exit code 2."""
    done = python(COMMAND, *arguments.split(), cwd=photos.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_functions_that_need_the_extra_say_so(photos: Path) -> None:
    """As an MrdcError that is also an ImportError; other missing modules are not hidden."""
    code = """
import mrdc
memory = mrdc.ReplayMemory("1MB")
for call in (
    lambda: mrdc.run_phases,
    lambda: memory.batches(2, 2),
    lambda: mrdc.plan("photos", "9kB"),
    lambda: mrdc.plan("photos", "9kB", embed=len),
    lambda: __import__("mrdc.data.crops").data.crops.tensor(None),
):
    try:
        call()
    except mrdc.MissingError as error:
        assert isinstance(error, ImportError) and "pip install 'mrdc[train]'" in str(error), error
    else:
        raise AssertionError("no error")
"""
    done = python(BLOCK + code, cwd=photos.parent)
    assert done.returncode == 0, done.stderr


def test_replay_with_a_fixed_quality(tmp_path: Path) -> None:
    """No torch is needed for a random choice or given features; else an error says so."""
    code = """
import mrdc, numpy as np
images = list(np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8))
replay = mrdc.Replay("1MB", 50, select="random_choice").learn({0: images}).learn({0: images[:2]})
by_features = mrdc.Replay("1MB", 50).learn({0: images}, features={0: np.eye(5)})
assert len(replay) == len(by_features) == 5 and replay.sample(3)[0].shape == (3, 3, 8, 8)
try:
    mrdc.Replay("1MB", 50).learn({0: images})
except mrdc.MissingError as error:
    print(error)
"""
    done = python(BLOCK + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ranking by herding need torch" in done.stdout
