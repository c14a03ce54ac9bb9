"""A small run shared by tests of experiments."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mrdc.experiments.folder import RESULTS
from tests.conftest import make_photos
from tests.processes import SMALL, Running
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
    """The run, in a process of its own."""
    root = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MRDC_CACHE", str(root / "cache"))
        process = Running("run", *tiny, "--out", root / "run", "--json")
    assert (process.wait(), process.text("err")) == (0, "")
    return Unbroken(root / "run", process.text("out"))


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
