"""How much RAM does a memory take, relative to the bytes it is charged for?

Growth of this process's resident memory, after free memory is returned to the
system (`ratio`) and before (`ratio_untrimmed`); as a check, the total size of all
objects reachable from the memory (`ratio_counted`).
"""

import ctypes
import gc
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np

from common import emit, machine, options, sources
from mrdc.codec.image import Pixels, decode
from mrdc.data.photo import Photo
from mrdc.memory.payload import Ram
from mrdc.memory.replay import ReplayMemory

QUALITY, PHASES, CLASSES, PER_CLASS, BASE = 50, 10, 10, 480, 400
FOLDER = "{label:03d}.Black_and_white_Warbler"  # names as long as those of CUB
NAME = FOLDER + "/Black_And_White_Warbler_{rank:04d}_160371.jpg"


def moved(base: list[Pixels], number: int) -> Pixels:
    """One of the base images, shifted sideways so that no two results are equal."""
    turn, which = divmod(number, len(base))
    return np.roll(base[which], turn, axis=1)


def photos(base: list[Pixels], label: int) -> Iterable[Photo]:
    """The images of a class, made on demand."""
    for rank in range(PER_CLASS):
        name = NAME.format(label=label, rank=rank)
        yield Photo(name, partial(moved, base, label * PER_CLASS + rank))


def fill(memory: ReplayMemory, base: list[Pixels], phases: int) -> None:
    """Add classes phase by phase, as a learner would."""
    for phase in range(phases):
        labels = range(phase * CLASSES, (phase + 1) * CLASSES)
        memory.add({label: photos(base, label) for label in labels})


def resident(trim: bool) -> int:
    """Resident bytes of this process."""
    gc.collect()
    if trim:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def counted(thing: object) -> int:
    """Bytes of everything reachable from an object, except code."""
    seen: dict[int, object] = {}
    queue = [thing]
    while queue:
        item = queue.pop()
        if id(item) not in seen and not isinstance(item, type | ModuleType | FunctionType):
            seen[id(item)] = item
            queue += gc.get_referents(item)
    pages = sum(item[:].nbytes for item in seen.values() if isinstance(item, Ram))
    return sum(map(sys.getsizeof, seen.values())) + pages


def main() -> None:
    args = options(__doc__).parse_args()
    base = [decode(data) for data in sources(args.photos, BASE)]
    fill(ReplayMemory("1GB", quality=QUALITY), base, 1)  # warm up libraries and threads
    before = resident(trim=True)
    memory = ReplayMemory("1GB", quality=QUALITY)
    fill(memory, base, PHASES)
    untrimmed, after = resident(trim=False), resident(trim=True)
    emit(
        "ram",
        images=len(memory),
        label=args.label,
        payload_bytes=memory.nbytes,
        quality=QUALITY,
        ratio=(after - before) / memory.nbytes,
        ratio_counted=counted(memory) / memory.nbytes,
        ratio_untrimmed=(untrimmed - before) / memory.nbytes,
        **machine(),
    )


if __name__ == "__main__":
    main()
