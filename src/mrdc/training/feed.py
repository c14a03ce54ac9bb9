"""Feeds: training views of examples that stay encoded, in RAM, or on the GPU.

Every feed first scales images that are more than twice as long as a view down to that, so that
all of them show the same pictures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.errors import TrainingError
from mrdc._utils.ranks import local_ranks
from mrdc._utils.threads import ordered, workers
from mrdc.data.batch_crops import Crops, centre_crops, compiled_crop, crop_batch, draw_crops
from mrdc.data.crops import centre_crop, resize, train_crop
from mrdc.data.examples import Companions, Examples, Places
from mrdc.data.loader import Images, grouped
from mrdc.distributed.group import world
from mrdc.training.match import Copies, beside, shown, with_copies

Resident = Literal["auto", "gpu", "ram", "stream"]
SHARE = 0.4  # of free memory that decoded images may take


class Feed(Protocol):
    """Training views of some examples; with several processes, this one's part of each batch."""

    def __len__(self) -> int: ...

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Shuffled crops (n, 3, size, size) from 0 to 255, labels, and companions if any."""
        ...


def in_batches(order: Places, batch_size: int) -> list[Places]:
    """Cut an order into batches of at least two images and a quarter of the batch size.

    Each process gets at least one image of every batch.

    A shorter rest joins the batch before it: batch norms over a few images spoil an epoch, and
    over one they fail.
    """
    cuts = list(range(batch_size, len(order), batch_size))
    if cuts and len(order) - cuts[-1] < max(2, batch_size / 4, world().size):
        cuts.pop()
    return np.split(order, cuts)


def own_parts(batches: list[Places]) -> list[Places]:
    """This process's part of each batch."""
    if (fewest := min(map(len, batches))) < (ranks := world().size):
        raise TrainingError(
            f"a batch has {fewest} images, too few for {ranks} processes: run with fewer processes"
        )
    return [world().part(batch) for batch in batches]


def chosen(
    companions: Companions | None, batches: list[Places], rng: np.random.Generator
) -> tuple[list[Places], list[Places]]:
    """Companions of each batch and their numbers; empty without companions."""
    none = (np.empty(0, np.intp),) * 2
    pairs = [companions.choose(batch, rng) if companions else none for batch in batches]
    return [places for places, _ in pairs], [numbers for _, numbers in pairs]


@dataclass
class HostFeed:
    """Crops made by threads, from images that are decoded once or every time."""

    images: Images
    labels: Sequence[int]
    size: int
    device: torch.device
    threads: int | None = None
    companions: Companions | None = None
    copies: Copies | None = None  # among the images, after those that have labels

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        places = shown(self.copies, len(self), seed, epoch)
        order = np.arange(len(self))
        rng = np.random.default_rng((seed, epoch))
        rng.shuffle(order)
        batches = own_parts(in_batches(order, batch_size))

        def view(job: tuple[int, int, bool]) -> Tensor:
            index, place, cropped = job
            image, own = self.images[place][0], int(places[index])
            if not cropped:
                return centre_crop(image, self.size)
            like = image if place == own else self.images[own][0]
            rng = np.random.default_rng((seed, epoch, index))
            return train_crop(image, self.size, rng, (like.shape[1], like.shape[2]))

        if self.companions is not None and self.companions.match is not None:
            own = world().part(np.arange(len(self)))
            parts = np.array_split(own, len(in_batches(own, batch_size)))
            everything = [jobs(part, places) for part in parts]
            made = grouped(view, everything, self.threads)
            self.companions.match(views.to(self.device) for views in made)
        companions, told = chosen(self.companions, batches, rng)
        cropped = self.companions is None or self.companions.cropped
        others = beside(self.companions, self.copies, places)
        wanted = [
            [*jobs(batch, places), *jobs(more, others, cropped)]
            for batch, more in zip(batches, companions, strict=True)
        ]
        labels, made = torch.tensor(self.labels), grouped(view, wanted, self.threads)
        for batch, numbers, views in zip(batches, told, made, strict=True):
            sizes = [len(batch), len(views) - len(batch)]
            x, more = torch.split(views.to(self.device), sizes)
            y, which = (v.to(self.device) for v in (labels[batch], torch.from_numpy(numbers)))
            yield (x, y) if self.companions is None else (x, y, more, which)


def jobs(indices: Places, places: Places, cropped: bool = True) -> list[tuple[int, int, bool]]:
    """Views to make: which example, where its image is, and whether to crop it at random."""
    pairs = zip(indices.tolist(), places[indices].tolist(), strict=True)
    return [(index, place, cropped) for index, place in pairs]


@dataclass
class Decoded:
    """Images in RAM as uint8."""

    images: list[Tensor]
    labels: Sequence[int]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.labels[index]


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
        copies: Copies | None = None,
    ):
        self.size, self.compiled = size, compiled
        self.companions, self.copies = companions, copies
        self.labels = torch.tensor(examples.labels, device=device)
        examples = with_copies(examples, copies)
        own = examples.pick(range(*world().span(len(examples))))
        self.sides = np.empty((len(own), 2), np.int64)
        self.images = torch.empty(len(own), 0, 3, 0, dtype=torch.uint8, device=device)
        chunk: list[Tensor] = []
        for index, image in enumerate(_decoded(own, threads, size)):
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
        places = shown(self.copies, len(self), seed, epoch)
        height, width = self.sides[places].T
        crops = draw_crops(height, width, rng)
        looks = self._looks(crops, places)
        batches = own_parts(in_batches(rng.permutation(len(self)), batch_size))
        if self.companions is not None and self.companions.match is not None:
            own = torch.arange(*world().span(len(self)), device=self.labels.device)
            parts = torch.split(own, batch_size)
            self.companions.match(self._views(looks, part, batch_size) for part in parts)
        companions, told = chosen(self.companions, batches, rng)
        others, where = looks, beside(self.companions, self.copies, places)
        tall, wide = self.sides[where].T
        if self.companions is not None and not self.companions.cropped:
            others = self._looks(centre_crops(tall, wide, self.size), where)
        elif where is not places:
            others = self._looks(crops.scaled(tall / height, wide / width), where)
        sent = (  # each in one transfer
            torch.split(self._send(np.concatenate(groups)), list(map(len, groups)))
            for groups in (batches, companions, told)
        )
        for index, more, numbers in zip(*sent, strict=True):
            x, y = self._views(looks, index, batch_size), self.labels[index]
            if self.companions is None:
                yield x, y
            else:
                yield x, y, self._views(others, more, batch_size), numbers

    def _looks(self, crops: Crops, places: Places) -> tuple[Tensor, Tensor]:
        """How to crop the image of each example, and where it is, on the GPU."""
        return self._send(np.stack(crops).astype(np.float32)), self._send(places)

    def _views(self, looks: tuple[Tensor, Tensor], index: Tensor, batch_size: int) -> Tensor:
        """Crops of these examples, one batch size at a time."""
        (crops, places), views = looks, []
        for part in torch.split(index, batch_size):
            images = self.images.index_select(0, places[part]).permute(0, 2, 1, 3)
            compiled = self.compiled and len(part) == batch_size
            crop = compiled_crop() if compiled else crop_batch
            views.append(crop(images, crops[:, part], self.size))
        return views[0] if len(views) == 1 else torch.cat(views)

    def _send(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.images.device)


def open_feed(
    examples: Examples,
    size: int,
    device: torch.device,
    resident: Resident = "auto",
    threads: int | None = None,
    compiled: bool = False,
    companions: Companions | None = None,
    copies: Copies | None = None,
) -> Feed:
    """A feed that keeps the images in the fastest place with room for them and their copies."""
    images = with_copies(examples, copies)
    where = _where(images, size, device) if resident == "auto" else resident
    if where == "gpu":
        return GpuFeed(examples, size, device, threads, compiled, companions, copies)
    source: Images = Streamed(images, size)
    if where == "ram":
        source = Decoded(list(_decoded(images, threads, size)), images.labels)
    return HostFeed(source, examples.labels, size, device, threads, companions, copies)


def _where(examples: Examples, size: int, device: torch.device) -> Resident:
    """The fastest place with room, estimated from a sample."""
    places = np.linspace(0, len(examples) - 1, min(len(examples), 32)).astype(int)
    sides = [examples[int(place)][0].shape[1:] for place in places]
    if device.type == "cuda":
        height, width = (min(max(side[i] for side in sides), 2 * size) for i in (0, 1))
        if 3 * height * width * len(examples) < SHARE * free_memory(device):
            return "gpu"
    mean = sum(3 * height * width for height, width in sides) / len(sides)
    room = SHARE * free_memory(torch.device("cpu"))
    return "ram" if mean * len(examples) < room else "stream"


def free_memory(device: torch.device) -> int:
    """Free bytes on a device, shared with other ranks; a guess if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))
        return free // local_ranks()
    except (OSError, StopIteration):
        return 4 << 30


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


def _decoded(examples: Examples, threads: int | None, size: int) -> Iterator[Tensor]:
    """Every image in order."""
    images = Streamed(examples, size)
    with workers(threads) as pool:
        for _, image in ordered(pool, lambda index: images[index][0], range(len(examples))):
            yield image
