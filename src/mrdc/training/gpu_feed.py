"""Training views that are cropped on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.forked import crew
from mrdc._utils.ring import Ring
from mrdc.codec.image import Pixels
from mrdc.data.batch_crops import Crops, centre_crops, compiled_crop, crop_batch, draw_crops
from mrdc.data.examples import Companions, Examples, Places
from mrdc.distributed.group import world
from mrdc.training.batches import chosen, in_batches, own_parts
from mrdc.training.match import Copies, beside, shown, with_copies
from mrdc.training.pictures import Files, Pictures

CHUNK = 256  # images that are sent to the GPU at once


class Look(NamedTuple):
    """How examples are seen in an epoch."""

    places: Places  # where the image of each example is
    crops: Tensor  # how it is cropped, on the device


class DeviceFeed(ABC):
    """Crops of images that lie in the corner of a canvas (height, 3, width), on the device.

    The views of an epoch depend on the sides of all images, (n, 2), copies last, and on nothing
    else that differs between feeds.
    """

    def __init__(
        self,
        labels: Sequence[int],
        sides: NDArray[np.int64],
        size: int,
        device: torch.device,
        compiled: bool = False,
        companions: Companions | None = None,
        copies: Copies | None = None,
    ):
        self.copies = copies
        self.sides, self.size, self.device = sides, size, device
        self.compiled, self.companions = compiled, companions
        self.labels = torch.tensor(labels, device=device)

    @abstractmethod
    def _canvases(self, parts: Sequence[tuple[Places, Tensor]]) -> Iterator[Tensor]:
        """Images (n, height, 3, width) at each of these places, given here and on the device."""

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        rng = np.random.default_rng((seed, epoch))
        places = shown(self.copies, len(self), seed, epoch)
        height, width = self.sides[places].T
        crops = draw_crops(height, width, rng)
        look = self._look(places, crops)
        batches = own_parts(in_batches(rng.permutation(len(self)), batch_size))
        more = self.companions
        if more is not None and more.match is not None:
            own = np.arange(*world().span(len(self)))
            more.match(self._views([(look, part) for part in cut(own, batch_size)], batch_size))
        companions, chosen_numbers = chosen(more, batches, rng)
        labels, numbers = self._send_all(batches), self._send_all(chosen_numbers)
        wanted = [(look, batch) for batch in batches]
        if more is not None:
            other, pairs = self._beside(more, look, crops), zip(batches, companions, strict=True)
            wanted = [part for a, b in pairs for part in ((look, a), (other, b))]
        views = self._views(wanted, batch_size)
        for x, index, which in zip(views, labels, numbers, strict=False):
            y = self.labels[index]
            yield (x, y) if more is None else (x, y, next(views), which)

    def _look(self, places: Places, crops: Crops) -> Look:
        return Look(places, self._send(np.stack(crops).astype(np.float32)))

    def _beside(self, companions: Companions, look: Look, crops: Crops) -> Look:
        """How examples are seen as companions of a batch, given how they are seen in it."""
        places = beside(companions, self.copies, look.places)
        height, width = self.sides[places].T
        if not companions.cropped:
            return self._look(places, centre_crops(height, width, self.size))
        if places is look.places:
            return look
        tall, wide = self.sides[look.places].T
        return self._look(places, crops.scaled(height / tall, width / wide))

    def _views(self, wanted: Sequence[tuple[Look, Places]], batch_size: int) -> Iterator[Tensor]:
        """Views of each group of examples, made one batch size at a time."""
        groups = [(look, cut(examples, batch_size)) for look, examples in wanted]
        parts = [(look.places, part) for look, pieces in groups for part in pieces]
        indices = self._send_all([part for _, part in parts])
        images = [places[part] for places, part in parts]
        sent = list(zip(images, self._send_all(images), strict=True))
        ready = zip(self._canvases(sent), indices, strict=True)
        for look, pieces in groups:
            views = []
            for _ in pieces:
                canvas, index = next(ready)
                compiled = self.compiled and len(index) == batch_size
                crop = compiled_crop() if compiled else crop_batch
                views.append(crop(canvas.permute(0, 2, 1, 3), look.crops[:, index], self.size))
            yield views[0] if len(views) == 1 else torch.cat(views)

    def _send(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _send_all(self, groups: Sequence[NDArray[Any]]) -> Sequence[Tensor]:
        """Arrays on the device, in one transfer."""
        return torch.split(self._send(np.concatenate(groups)), list(map(len, groups)))


def cut(places: Places, size: int) -> list[Places]:
    """Places in parts of a size; the last may be smaller, and there is at least one."""
    return np.split(places, range(size, len(places), size))


def canvas_ring(images: Pictures, most: int, threads: int | None, passes: int = 1) -> Ring[int]:
    """A ring whose processes put images, by place, into the corners of canvases."""
    height, width = images.sides.max(0, initial=1).tolist()
    who = crew(threads, len(images.sides), passes)
    return Ring(partial(_fill, images), (height, 3, width), most, who)


def _fill(images: Pictures, place: int, canvas: Pixels) -> None:
    put(torch.from_numpy(canvas), images.image(place))


def put(canvas: Tensor, image: Tensor) -> None:
    """Copy an image (3, h, w) into the corner of a canvas (height, 3, width)."""
    canvas[: image.shape[1], :, : image.shape[2]] = image.permute(1, 0, 2)


class GpuFeed(DeviceFeed):
    """Images decoded once, by all processes together, to uint8 on the GPU.

    The canvas is as large as the largest image.
    """

    def __init__(
        self,
        examples: Examples,
        size: int,
        device: torch.device,
        threads: int | None = None,
        compiled: bool = False,
        companions: Companions | None = None,
        copies: Copies | None = None,
        *,
        room: float = 0,
    ):
        photos = with_copies(examples, copies).photos
        own = Files(photos[slice(*world().span(len(photos)))], 2 * size, room, threads)
        super().__init__(examples.labels, own.sides, size, device, compiled, companions, copies)
        count, (height, width) = len(own.sides), own.sides.max(0, initial=1).tolist()
        self.images = torch.empty(count, height, 3, width, dtype=torch.uint8, device=device)
        groups, start = [range(n, min(n + CHUNK, count)) for n in range(0, count, CHUNK)], 0
        for canvases in canvas_ring(own, CHUNK, threads).groups(groups):
            there = torch.from_numpy(canvases).to(device)
            self.images[start : start + len(there)] = there
            start += len(there)
        self._exchange(world().bounds(len(photos)))

    @property
    def about(self) -> dict[str, Any]:
        """Where images are."""
        return {"resident": "gpu"}

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

    def _canvases(self, parts: Sequence[tuple[Places, Tensor]]) -> Iterator[Tensor]:
        return (self.images.index_select(0, index) for _, index in parts)
