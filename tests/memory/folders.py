"""A saved memory of several parts, and what a memory and its folder hold."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg

PART = 30_000


def filled(classes: int = 3, images: int = 220, **options: Any) -> ReplayMemory:
    """A memory of three parts or so, with boxes and values beside some images."""
    memory = ReplayMemory("120kB", "jpeg", 30, part_size=PART, **options)
    memory.class_names = {label: f"class {label} \u00e9" for label in range(classes)}
    for label in range(classes):
        made = [jpeg(1000 * label + n, 95, 12, 12) for n in range(images)]
        values = {label: {"n": list(range(images))}} if label == 1 else None
        memory.add({label: made}, values=values)
    return memory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved memory, not to be changed."""
    path = tmp_path_factory.mktemp("parts") / "m"
    filled().save(path)
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of a memory, to be changed."""
    shutil.copytree(made, tmp_path / "m")
    return tmp_path / "m"


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.mrdc"))


def contents(memory: ReplayMemory) -> list[Any]:
    """Everything that a memory holds."""
    names = [name for label in memory.labels for name in memory.sources(label)]
    images = [(memory.encoded(n), memory.values(n)) for n in range(len(memory))]
    return [memory.targets.tolist(), memory.ranks.tolist(), names, images, memory.classes]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
