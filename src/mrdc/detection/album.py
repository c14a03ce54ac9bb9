"""Images for a detector, decoded once and kept if there is room."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mrdc._utils.threads import ordered, workers
from mrdc.data.crops import tensor
from mrdc.data.photo import Photo
from mrdc.distributed.group import world
from mrdc.training.feed import SHARE, free_memory

ALBUMS = 3  # per phase: labelled, unlabelled and test images


class Album:
    """Photos by index, as floats (3, h, w) from 0 to 1 on a device."""

    def __init__(self, photos: Sequence[Photo], device: torch.device, threads: int | None = None):
        self.photos, self.device, self.threads = photos, device, threads
        self._kept: dict[int, Tensor] = {}  # uint8, on the device
        self._room = SHARE / ALBUMS * free_memory(device)

    def __len__(self) -> int:
        return len(self.photos)

    def groups(self, places: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
        """Images of each group of indices, decoded ahead by threads."""
        flat = [place for group in places for place in group]
        with workers(self.threads) as pool:
            made = ordered(pool, self._load, flat, 4 * max(map(len, places), default=1))
            for group in places:
                yield [self._keep(*next(made)) for _ in group]

    def batches(self, size: int) -> Iterator[list[Tensor]]:
        """All images in order; with several processes, this one's part of them."""
        own = world().part(range(len(self)))
        return self.groups([own[i : i + size] for i in range(0, len(own), size)])

    def _load(self, place: int) -> Tensor:
        if place in self._kept:
            return self._kept[place]
        return tensor(self.photos[place].pixels())

    def _keep(self, place: int, image: Tensor) -> Tensor:
        there = image.to(self.device)
        if place not in self._kept and self._room > there.nbytes:
            self._kept[place] = there
            self._room -= there.nbytes
        return there.float() / 255
