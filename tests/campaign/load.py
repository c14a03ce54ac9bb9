"""Time against size: ranking, filling, saving and opening grow linearly with the images."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from mrdc.data.photo import Photo
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.selection import herding, lazy_ranking
from tests.campaign.harness import Area, Case, FaultError
from tests.conftest import jpeg

MOST = 1.1  # exponent


def exponent(work: Callable[[int], None], sizes: tuple[int, int]) -> float:
    """Slope of log(seconds) over log(size)."""
    seconds = []
    for size in sizes:
        start = time.process_time()
        work(size)
        seconds.append(max(time.process_time() - start, 1e-3))
    return math.log(seconds[1] / seconds[0]) / math.log(sizes[1] / sizes[0])


def prepare(folder: Path) -> Case:
    files = [jpeg(n, 60, 8, 8) for n in range(64)]

    def file(number: int) -> bytes:
        """A small image, different for every number."""
        return files[number % 64] + number.to_bytes(4, "little")

    def photos(count: int, label: int = 0) -> list[Photo]:
        return [Photo(f"{label}/{n}", partial(file, n)) for n in range(count)]

    def rank(count: int) -> None:
        """Pick 200 images of one class."""
        rows = np.random.default_rng(0).random((count, 8), np.float32)  # fit the caches
        lazy_ranking(herding, rows, 0)[:200]

    def fill(count: int) -> None:
        """Fill, save and open a memory of one class."""
        memory = ReplayMemory("1GB", "original")
        memory.add({0: photos(count)})
        memory.save(folder / "m.mrdc")
        assert len(MemoryFile(folder / "m.mrdc")) == count

    def classes(count: int) -> None:
        """Store one image each of many classes."""
        memory = ReplayMemory("1GB", "original")
        memory.add({label: photos(1, label) for label in range(count)})
        memory.save(folder / "m.mrdc")
        assert len(MemoryFile(folder / "m.mrdc").class_names) == count

    works = {rank: (5_000, 50_000), fill: (2_000, 20_000), classes: (1_000, 10_000)}

    def case(random: Random) -> None:
        work = list(works)[random.randrange(len(works))]
        found = exponent(work, works[work])
        if found > MOST:
            raise FaultError(f"{work.__name__}: exponent {found:.2f}")

    return case


AREA = Area("load", prepare, share=0.01)
