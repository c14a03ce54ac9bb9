"""A small run shared by tests of experiments."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mrdc.experiments.folder import RESULTS
from tests.conftest import make_photos
from tests.processes import SMALL
from tests.processes import cli as cli


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes of twelve small photos, two of them held out for testing."""
    return make_photos(tmp_path_factory.mktemp("data") / "photos", classes=6, images=12)


@pytest.fixture(scope="session")
def tiny(data: Path) -> list[str]:
    """A run of three phases of two epochs, with a checkpoint after every epoch."""
    flags = ["--train.epochs", "2", "--phases", "2", "--checkpoint-seconds", "0"]
    return ["textures-lucir-mrdc", "--data", str(data), *SMALL, *flags]


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache for the fixtures of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MRDC_CACHE", str(tmp_path_factory.mktemp("cache") / "cache"))
        yield


class Unbroken(NamedTuple):
    """A finished run."""

    folder: Path
    printed: str


@pytest.fixture(scope="session")
def unbroken(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """The run, started from the command line."""
    root = tmp_path_factory.mktemp("unbroken")
    command = [sys.executable, "-m", "mrdc", "run", *tiny, "--out", str(root / "run"), "--json"]
    environment = {**os.environ, "MRDC_CACHE": str(root / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return Unbroken(root / "run", done.stdout)


@pytest.fixture
def finished(unbroken: Unbroken, tmp_path: Path) -> Path:
    """A copy of the finished run's folder."""
    return Path(shutil.copytree(unbroken.folder, tmp_path / "run"))


@pytest.fixture
def unfinished(finished: Path) -> Path:
    """A copy as if the run had been killed just before its last line."""
    lines = (finished / RESULTS).read_bytes().splitlines(keepends=True)
    (finished / RESULTS).write_bytes(b"".join(lines[:-1]))
    return finished
