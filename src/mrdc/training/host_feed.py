"""Training views that are made on the host."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.forked import crew
from mrdc._utils.ring import Ring
from mrdc.codec.image import Pixels
from mrdc.data.crops import centre_crop, train_crop
from mrdc.data.examples import Companions, Places
from mrdc.distributed.group import world
from mrdc.training.batches import chosen, in_batches, own_parts
from mrdc.training.match import Copies, beside, shown
from mrdc.training.pictures import Decoded, Pictures

EPOCHS = 100  # that a feed lasts, roughly


class View(NamedTuple):
    """A view of an example: a random crop of its image, or the centre."""

    example: int
    image: int  # its place
    like: int  # place of the image that the crop is drawn for
    cropped: bool
    seed: int
    epoch: int


@dataclass
class HostFeed:
    """Crops made by processes, from images that are decoded once or every time.

    For a CPU: a GPU crops faster.
    """

    images: Pictures
    labels: Sequence[int]
    size: int
    device: torch.device
    threads: int | None = None
    companions: Companions | None = None
    copies: Copies | None = None  # among the images, after those that have labels
    _ring: Ring[View] | None = field(default=None, repr=False)

    @property
    def about(self) -> dict[str, Any]:
        """Where images are."""
        return {"resident": "ram" if isinstance(self.images, Decoded) else "stream"}

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        order = np.arange(len(self))
        rng = np.random.default_rng((seed, epoch))
        rng.shuffle(order)
        batches = own_parts(in_batches(order, batch_size))
        places = shown(self.copies, len(self), seed, epoch)
        others = beside(self.companions, self.copies, places)

        def views(examples: Places, images: Places, cropped: bool = True) -> list[View]:
            columns = (part.tolist() for part in (examples, images[examples], places[examples]))
            rows = zip(*columns, strict=True)
            return [View(i, image, like, cropped, seed, epoch) for i, image, like in rows]

        if self.companions is not None and self.companions.match is not None:
            own = world().part(np.arange(len(self)))
            parts = np.array_split(own, len(in_batches(own, batch_size)))
            self.companions.match(self._made([views(part, places) for part in parts]))
        companions, numbers = chosen(self.companions, batches, rng)
        cropped = self.companions is None or self.companions.cropped
        wanted = [
            [*views(batch, places), *views(more, others, cropped)]
            for batch, more in zip(batches, companions, strict=True)
        ]
        labels, made = torch.tensor(self.labels), self._made(wanted)
        for batch, of_batch, both in zip(batches, numbers, made, strict=True):
            x, more = torch.split(both, [len(batch), len(both) - len(batch)])
            y, which = (v.to(self.device) for v in (labels[batch], torch.from_numpy(of_batch)))
            yield (x, y) if self.companions is None else (x, y, more, which)

    def _made(self, groups: Sequence[Sequence[View]]) -> Iterator[Tensor]:
        """Views (n, 3, size, size) of each group, on the device."""
        most = max(map(len, groups))
        if self._ring is None or self._ring.most < most:
            make, shape = partial(_make, self.images, self.size), (self.size, self.size, 3)
            self._ring = Ring(make, shape, most, crew(self.threads, len(self), EPOCHS))
        for views in self._ring.groups(groups):
            yield torch.from_numpy(views).permute(0, 3, 1, 2).to(self.device, copy=True)


def _make(images: Pictures, size: int, view: View, place: Pixels) -> None:
    """Write a view (size, size, 3)."""
    image = images.image(view.image)
    if view.cropped:
        rng = np.random.default_rng((view.seed, view.epoch, view.example))
        height, width = map(int, images.sides[view.like])
        image = train_crop(image, size, rng, (height, width))
    else:
        image = centre_crop(image, size)
    place[:] = image.permute(1, 2, 0).numpy()
