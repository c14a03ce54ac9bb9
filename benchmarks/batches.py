"""How much faster are our training batches than a DataLoader over Pillow images?

Equal parallelism: as many threads as workers, and one thread against a loader
without workers. `loader` yields normalised float32. `mrdc` normalises uint8 batches
on the CPU into a reused buffer, `mrdc_fresh` into new memory (page faults), and
`mrdc_uint8` does not normalise, as when a GPU does it.
"""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from common import SEED, Times, compare, emit, in_processes, machine, options, race, sources
from mrdc.memory.replay import ReplayMemory

IMAGES, REPEATS, PROCESSES, QUALITY, BATCH, SIZE = 1024, 3, 5, 50, 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHIFT = 255 * torch.tensor(MEAN).view(3, 1, 1)
SCALE = 255 * torch.tensor(STD).view(3, 1, 1)
BUFFER = torch.zeros(BATCH, 3, SIZE, SIZE)
VIEW = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)
CONSUMERS: dict[str, Callable[[Tensor], object]] = {
    "mrdc": lambda x: BUFFER[: len(x)].copy_(x).sub_(SHIFT).div_(SCALE),
    "mrdc_fresh": lambda x: x.float().sub_(SHIFT).div_(SCALE),
    "mrdc_uint8": lambda x: None,
}


class Files(Dataset[tuple[Tensor, int]]):
    """The same encoded images, opened with Pillow as usual."""

    def __init__(self, streams: list[bytes], targets: list[int]):
        self.streams, self.targets = streams, targets

    def __len__(self) -> int:
        return len(self.streams)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO(self.streams[index])).convert("RGB")
        return VIEW(image), self.targets[index]


def loader(memory: ReplayMemory, workers: int) -> DataLoader[tuple[Tensor, int]]:
    """The usual loader; its workers stay alive between epochs."""
    files = Files([memory.encoded(index) for index in range(len(memory))], memory.targets.tolist())
    return DataLoader(
        files, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def usual(batches: DataLoader[tuple[Tensor, int]]) -> None:
    """An epoch of a loader."""
    for _ in batches:
        pass


def ours(memory: ReplayMemory, threads: int, consume: Callable[[Tensor], object]) -> None:
    """An epoch of the memory."""
    for images, _ in memory.batches(BATCH, SIZE, seed=SEED, epoch=0, threads=threads):
        consume(images)


def measure(photos: Path | None, threads: int, workers: int) -> Times:
    """Seconds per epoch of each alternative."""
    torch.set_num_threads(1)  # as in a worker: only the parallelism under comparison
    memory = ReplayMemory("1GB", quality=QUALITY)
    memory.add({0: sources(photos, IMAGES)})
    runs = {name: partial(ours, memory, threads, use) for name, use in CONSUMERS.items()}
    runs["loader"] = partial(usual, loader(memory, workers))
    runs["loader"]()  # workers start outside the timing
    return race(REPEATS, **runs)


def main() -> None:
    args = options(__doc__).parse_args()
    for threads, workers in ((2, 2), (1, 0)):
        times = in_processes(PROCESSES, partial(measure, args.photos, threads, workers))
        figures = compare(times, "loader", "mrdc")
        for name in ("fresh", "uint8"):
            figures[f"ratio_{name}"] = figures["loader_ms"] / figures[f"mrdc_{name}_ms"]
        shape = {"batch": BATCH, "images": IMAGES, "size": SIZE, "quality": QUALITY}
        parallel = {"threads": threads, "workers": workers}
        emit("batches", label=args.label, **shape, **parallel, **figures, **machine())


if __name__ == "__main__":
    main()
