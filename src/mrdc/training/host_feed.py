"""Training views that are made on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.threads import ordered, workers
from mrdc.data.crops import centre_crop, resize, train_crop
from mrdc.data.examples import Companions, Examples
from mrdc.data.loader import Images, grouped
from mrdc.distributed.group import world
from mrdc.training.batches import chosen, in_batches, own_parts


@dataclass
class HostFeed:
    """Crops made by threads, from images that are decoded once or every time."""

    images: Images
    labels: Sequence[int]
    size: int
    device: torch.device
    threads: int | None = None
    companions: Companions | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        order = np.arange(len(self))
        rng = np.random.default_rng((seed, epoch))
        rng.shuffle(order)
        batches = own_parts(in_batches(order, batch_size))

        def view(job: tuple[int, bool]) -> Tensor:
            index, cropped = job
            image = self.images[index][0]
            if not cropped:
                return centre_crop(image, self.size)
            return train_crop(image, self.size, np.random.default_rng((seed, epoch, index)))

        if self.companions is not None and self.companions.match is not None:
            own = world().part(np.arange(len(self)))
            places = np.array_split(own, len(in_batches(own, batch_size)))
            everything = [[(i, True) for i in part.tolist()] for part in places]
            made = grouped(view, everything, self.threads)
            self.companions.match(views.to(self.device) for views in made)
        companions, told = chosen(self.companions, batches, rng)
        cropped = self.companions is None or self.companions.cropped
        jobs = [
            [*((i, True) for i in batch.tolist()), *((i, cropped) for i in more.tolist())]
            for batch, more in zip(batches, companions, strict=True)
        ]
        labels, made = torch.tensor(self.labels), grouped(view, jobs, self.threads)
        for batch, numbers, views in zip(batches, told, made, strict=True):
            sizes = [len(batch), len(views) - len(batch)]
            x, more = torch.split(views.to(self.device), sizes)
            y, which = (v.to(self.device) for v in (labels[batch], torch.from_numpy(numbers)))
            yield (x, y) if self.companions is None else (x, y, more, which)


@dataclass
class Decoded:
    """Images in RAM as uint8."""

    images: list[Tensor]
    labels: Sequence[int]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.labels[index]


@dataclass
class Streamed:
    """Images decoded every time."""

    examples: Examples
    size: int

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.examples[index]
        return shrunk(image, 2 * self.size), label


def shrunk(image: Tensor, limit: int) -> Tensor:
    """An image whose long side is at most `limit`."""
    scale = limit / max(image.shape[1:])
    if scale >= 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[1:])
    return resize(image, height, width)


def decoded(examples: Examples, threads: int | None, size: int) -> Iterator[Tensor]:
    """Every image in order."""
    images = Streamed(examples, size)
    with workers(threads) as pool:
        for _, image in ordered(pool, lambda index: images[index][0], range(len(examples))):
            yield image
