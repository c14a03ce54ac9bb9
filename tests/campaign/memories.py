"""Memory files: damaged ones are found, and forged ones do no harm."""

import shutil
from pathlib import Path
from random import Random

import numpy as np

from mrdc._utils.errors import MrdcError
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from tests.campaign.forge import Parts, forge
from tests.campaign.harness import Area, Case, FaultError, command
from tests.campaign.images import damaged
from tests.conftest import jpeg


def memories(folder: Path) -> list[Path]:
    """One memory with boxes, values and notes, one with other settings, one with two qualities."""
    boxed = ReplayMemory("20kB", "jpeg", 30)
    boxed.boxes = {"0/1": np.array([[0, 1, 8, 9, 1]], np.float32)}
    boxed.box_classes = ("cat", "dog")
    boxed.notes = {"skipped": ["a.jpg: damaged"], "select": "herding", "search": {"a": [1, 2]}}
    images = {label: [jpeg(10 * label + n, 95, 12, 12) for n in range(4)] for label in range(2)}
    values = {"task": [1, 2, 3, 4], "logits": np.ones((4, 3), np.float32)}
    boxed.add(images, values={0: values})
    plain = ReplayMemory("4/class", "webp", 30, accounting="file", original_bytes=900.0)
    plain.add({7: [jpeg(n) for n in range(5)]})
    several = ReplayMemory("20kB", "jpeg@0.5", 30)
    several.add({0: [jpeg(n, 95, 24, 24) for n in range(3)]})
    several.quality = 60
    several.extend(0, [jpeg(n, 95, 24, 24) for n in range(3, 6)])
    made = {folder / f"{n}.mrdc": memory for n, memory in enumerate((boxed, plain, several))}
    for path, memory in made.items():
        memory.save(path)
    return list(made)


def use(path: Path, folder: Path) -> None:
    """Everything that opens a memory file."""
    command("info", path)
    command("info", path, "--json")
    command("audit", path)
    for name in ("out", "out.tar"):
        command("export", path, "-o", folder / name)
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out.tar").unlink(missing_ok=True)
    try:
        memory = ReplayMemory.load(path)
        for index in range(len(memory)):
            memory.encoded(index)
            memory[index]
        memory.save(folder / "again.mrdc")
    except MrdcError:
        pass


def prepare(folder: Path) -> Case:
    sound = memories(folder)
    parts = [Parts.of(path) for path in sound]

    def case(random: Random) -> None:
        path, forged = folder / "case.mrdc", random.random() < 0.7
        if forged:
            path.write_bytes(forge(random.choice(parts), random))
        else:
            before = random.choice(sound).read_bytes()
            path.write_bytes(damaged(before, random))
            if path.read_bytes() != before and not audit(path).problems:
                raise FaultError("the audit finds nothing wrong with a damaged file")
        use(path, folder)

    return case


AREA = Area("memories", prepare, share=0.5)
