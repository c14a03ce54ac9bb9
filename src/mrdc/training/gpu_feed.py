"""Training views of images that stay on the GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mrdc.data.batch_crops import centre_crops, compiled_crop, crop_batch, draw_crops
from mrdc.data.examples import Companions, Examples
from mrdc.distributed.group import world
from mrdc.training.batches import chosen, in_batches, own_parts
from mrdc.training.host_feed import decoded


class GpuFeed:
    """Images decoded once, by all processes together, to uint8 on the GPU, and cropped there.

    They lie in the corner of a canvas (height, 3, width) as large as the largest.
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        device: torch.device,
        threads: int | None = None,
        compiled: bool = False,
        companions: Companions | None = None,
    ):
        self.size, self.compiled, self.companions = size, compiled, companions
        self.labels = torch.tensor(examples.labels, device=device)
        own = examples.pick(range(*world().span(len(examples))))
        self.sides = np.empty((len(own), 2), np.int64)
        self.images = torch.empty(len(own), 0, 3, 0, dtype=torch.uint8, device=device)
        chunk: list[Tensor] = []
        for index, image in enumerate(decoded(own, threads, size)):
            self.sides[index] = image.shape[1:]
            chunk.append(image)
            if len(chunk) == 512 or index + 1 == len(own):
                self._upload(chunk, index + 1 - len(chunk))
                chunk = []
        self._exchange(world().bounds(len(examples)))

    def _upload(self, chunk: list[Tensor], start: int) -> None:
        self._enlarge(*(max(image.shape[side] for image in chunk) for side in (1, 2)))
        _, canvas_height, _, canvas_width = self.images.shape
        canvas = np.zeros((len(chunk), canvas_height, canvas_width, 3), np.uint8)
        for place, image in zip(canvas, chunk, strict=True):
            place[: image.shape[1], : image.shape[2]] = image.permute(1, 2, 0).numpy()
        there = torch.from_numpy(canvas).to(self.images.device)
        self.images[start : start + len(chunk)] = there.permute(0, 1, 3, 2)

    def _enlarge(self, height: int, width: int) -> None:
        """Make the canvas at least this large."""
        have_height, _, have_width = self.images.shape[1:]
        if height > have_height or width > have_width:
            more = (0, max(width - have_width, 0), 0, 0, 0, max(height - have_height, 0))
            self.images = F.pad(self.images, more)

    def _exchange(self, bounds: list[int]) -> None:
        """Get the images that other processes have decoded."""
        heights, _, widths = zip(*world().join([self.images.shape[1:]]), strict=True)
        self._enlarge(max(heights), max(widths))
        self.images = world().gather(self.images, bounds)
        self.sides = world().gather(torch.from_numpy(self.sides), bounds).numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        rng = np.random.default_rng((seed, epoch))
        height, width = self.sides[:, 0], self.sides[:, 1]
        crops = self._send(np.stack(draw_crops(height, width, rng)).astype(np.float32))
        batches = own_parts(in_batches(rng.permutation(len(self)), batch_size))
        if self.companions is not None and self.companions.match is not None:
            own = torch.arange(*world().span(len(self)), device=self.labels.device)
            places = torch.split(own, batch_size)
            self.companions.match(self._views(crops, part, batch_size) for part in places)
        companions, told = chosen(self.companions, batches, rng)
        others = crops
        if self.companions is not None and not self.companions.cropped:
            centres = np.stack(centre_crops(height, width, self.size))
            others = self._send(centres.astype(np.float32))
        sent = (  # each in one transfer
            torch.split(self._send(np.concatenate(groups)), list(map(len, groups)))
            for groups in (batches, companions, told)
        )
        for index, more, numbers in zip(*sent, strict=True):
            x, y = self._views(crops, index, batch_size), self.labels[index]
            if self.companions is None:
                yield x, y
            else:
                yield x, y, self._views(others, more, batch_size), numbers

    def _views(self, crops: Tensor, index: Tensor, batch_size: int) -> Tensor:
        """Crops of these images, one batch size at a time."""
        views = []
        for part in torch.split(index, batch_size):
            images = self.images.index_select(0, part).permute(0, 2, 1, 3)
            compiled = self.compiled and len(part) == batch_size
            crop = compiled_crop() if compiled else crop_batch
            views.append(crop(images, crops[:, part], self.size))
        return views[0] if len(views) == 1 else torch.cat(views)

    def _send(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.images.device)
