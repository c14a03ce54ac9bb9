"""The replay memory: encoded images of old classes under a byte budget."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from mrdc import __version__
from mrdc._utils.errors import BudgetError, ImageError, UsageError
from mrdc._utils.threads import workers
from mrdc.codec import CODECS, Codec, lookup
from mrdc.codec.image import Pixels, decode
from mrdc.data.crops import tensor
from mrdc.data.loader import batches
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes
from mrdc.memory.budget import Budget, parse_budget, quantity, share
from mrdc.memory.classes import Payload, Shelf, box_arrays, from_file, in_ram, in_use, to_arrays
from mrdc.memory.file import (
    MemoryFile,
    box_entry,
    box_problems,
    head_bytes,
    index_entry,
    join_names,
    split_names,
    write_memory,
)
from mrdc.memory.fill import Entry, Growing, Skip, Spool, encode, fill

__all__ = ["Budget", "ReplayMemory", "parse_budget", "quantity"]


class ReplayMemory(Dataset[tuple[Tensor, int]]):
    """Encoded images of classes seen so far, never over its byte budget.

    A map-style torch Dataset of (uint8 tensor (3, h, w), label), ordered by
    class and rank. Classes share the budget equally by bytes; one that is
    short of images leaves its bytes to the others. Pickling it for worker
    processes does not copy the images: they are shared, or mapped from the file.

    Images may have boxes: `boxes`, by source id, with labels that count in
    `box_classes`; those of images held go into the file. A budget in originals is
    not charged for them, as in the paper. One that bounds the whole file is, and
    for `notes` (JSON values, for the file), so set these before the images are added.

    Args:
        budget: a `Budget`, a number of bytes, or its text, such as "200MB".
        codec: a name in `CODECS`, or a codec.
        quality: the codec's setting; None for codecs that have none. Both may be
            changed later, for the classes added from then on.
        accounting: "packed" stores JPEG tables once; "file" stores whole
            files, to compare with the paper.
        class_names: names by label, for messages and for the file.
        whole_file: whether the budget bounds the saved file, index included,
            rather than the images alone.
        spool: a folder for an unnamed temporary file that holds the bytes
            instead of RAM.
    """

    def __init__(
        self,
        budget: Budget | int | str,
        codec: Codec | str = "jpeg",
        quality: int | None = None,
        *,
        accounting: Literal["packed", "file"] = "packed",
        class_names: Mapping[int, str] | None = None,
        whole_file: bool = False,
        spool: Path | None = None,
    ):
        self.budget = budget if isinstance(budget, Budget) else parse_budget(budget)
        self.codec = lookup(CODECS, codec, "codec") if isinstance(codec, str) else codec
        self.codec.check_quality(quality)
        if accounting not in ("packed", "file"):
            raise UsageError(f"accounting must be 'packed' or 'file', got {accounting!r}")
        self.quality = quality
        self.accounting = accounting
        self.class_names = dict(class_names or {})
        self.whole_file = whole_file
        self.notes: dict[str, Any] = {}
        self.boxes: dict[str, Boxes] = {}
        self.box_classes: tuple[str, ...] = ()
        self._spool = Spool(spool) if spool is not None else None
        self._shelves: dict[int, Shelf] = {}
        self._ends: list[int] = []  # where each class ends in the data set

    # What it holds

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label, shelf, rank = self._find(index)
        return tensor(decode(shelf.stream(rank))), label

    @property
    def labels(self) -> list[int]:
        """The classes held, in the order they were added."""
        return list(self._shelves)

    @property
    def targets(self) -> list[int]:
        """The label of every image."""
        return [label for label, shelf in self._shelves.items() for _ in range(len(shelf))]

    @property
    def ranks(self) -> list[int]:
        """The rank of every image in its class, best first."""
        return [rank for shelf in self._shelves.values() for rank in range(len(shelf))]

    @property
    def nbytes(self) -> int:
        """Bytes charged to the budget: images, and each shared header once."""
        shared = sum(map(len, in_use(self._shelves)))
        return sum(shelf.nbytes for shelf in self._shelves.values()) + shared

    @property
    def budget_bytes(self) -> int:
        """Bytes the classes held may take now."""
        return self.budget.total_bytes(len(self._shelves))

    def encoded(self, index: int) -> bytes:
        """An image as a whole file."""
        _, shelf, rank = self._find(index)
        return shelf.stream(rank)

    def sources(self, label: int) -> list[str]:
        """Ids of a class's images, in rank order."""
        return split_names(self._shelves[label].sources)

    def duplicates(self) -> dict[int, int]:
        """How many exact duplicates each class had, where it had any."""
        return {label: s.duplicates for label, s in self._shelves.items() if s.duplicates}

    def kept_sources(self) -> int:
        """How many images are source bytes, since encoding made them no smaller."""
        return sum(int(shelf.kept.sum()) for shelf in self._shelves.values())

    def _find(self, index: int) -> tuple[int, Shelf, int]:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} is outside a memory of {len(self)} images")
        number = bisect_right(self._ends, position)
        label = self.labels[number]
        shelf = self._shelves[label]
        return label, shelf, position - self._ends[number] + len(shelf)

    # What goes in and out

    def add(
        self,
        images: Mapping[int, Iterable[Photo | bytes | Pixels]],
        *,
        threads: int | None = None,
        skip: Skip | None = None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Add new classes, each with its images in rank order, best first.

        Encodes until the budget is used up. Images of older classes are
        dropped, lowest ranks first, where the budget asks for it. If anything
        fails the memory stays as it was.

        Raises:
            BudgetError: a class would hold no image.
            ImageError: an image cannot be read (and `skip` is not given).
            UsageError: a class is there already.
        """
        known = [label for label in images if label in self._shelves]
        if known:
            raise UsageError(f"classes {known} are in the memory already: each is added once")
        odd = [label for label in images if not 0 <= label < 2**31]
        if odd:
            raise UsageError(f"labels must be from 0 to 2147483647, got {odd}")
        packed = self.accounting == "packed"
        tables = self.codec.tables(self.quality) if packed else b""
        photos = {label: list(_photos(label, ranked)) for label, ranked in images.items()}
        counts = {label: len(ranked) for label, ranked in photos.items()}
        room_in = partial(self._room, counts=counts, tables=tables)
        room = room_in(self.budget)
        costs = [shelf.costs(self._entry_bytes) for shelf in self._shelves.values()]
        held = [(int(of_class.sum()), int(of_class[0])) for of_class in costs]
        job = partial(encode, codec=self.codec, quality=self.quality, tables=tables)
        with workers(threads) as pool:
            classes = fill(
                photos,
                room,
                held,
                job,
                pool,
                entry=self._entry_bytes,
                spool=self._spool,
                skip=skip,
                progress=progress,
            )
        self._check_filled(classes, [first for _, first in held], room_in)
        shelves = {label: self._shelf(grown, tables) for label, grown in classes.items()}
        self._replace(self._cut({**self._shelves, **shelves}, room))

    def rebudget(self, budget: Budget | int | str) -> None:
        """Change the budget; drops lowest ranks to fit, never encodes again.

        Raises:
            BudgetError: a class would hold no image; nothing is dropped then.
        """
        new = budget if isinstance(budget, Budget) else parse_budget(budget)
        self._replace(self._cut(self._shelves, self._room(new, {})))
        self.budget = new

    def _check_filled(
        self, classes: dict[int, Growing], firsts: list[int], room_in: Callable[[Budget], int]
    ) -> None:
        """Refuse to go on with classes that got nothing."""
        empty = {label: grown for label, grown in classes.items() if not grown.sizes}
        for label, grown in empty.items():
            if not grown.waiting:
                raise ImageError(f"class {self._name(label)!r} has no readable image")
        if not empty:
            return
        label, grown = max(empty.items(), key=lambda pair: pair[1].first)
        firsts = [*firsts, *(new.first for new in classes.values())]
        total, room = self.budget.total_bytes(len(firsts)), room_in(self.budget)
        needed, lacking = total, sum(firsts) - room
        while lacking > 0:  # again where more digits make a longer header
            needed += lacking
            enough = replace(self.budget, amount=float(needed), unit="bytes")
            lacking = sum(firsts) - room_in(enough)
        raise BudgetError(
            f"the budget of {total:,} bytes leaves {max(room, 0):,} for images, but the first of "
            f"each class take {sum(firsts):,} together, that of class {self._name(label)!r} "
            f"({grown.waiting[0].source}) {grown.first:,}: {len(firsts)} classes need "
            f"{needed:,} bytes or more, or a lower quality"
        )

    def _room(self, budget: Budget, counts: Mapping[int, int], tables: bytes = b"") -> int:
        """Bytes for images, after what they share, once so many of new classes are offered."""
        total, used = budget.total_bytes(len(self._shelves) + len(counts)), in_use(self._shelves)
        used = list(dict.fromkeys([*used, tables])) if tables else used
        if not self.whole_file:
            return total - sum(map(len, used))
        new = [self._entry(label) | {"items": n, "duplicates": n} for label, n in counts.items()]
        meta = self._metadata(budget, [*map(self._entry, self._shelves), *new])
        return total - head_bytes(total, meta, used, boxes=bool(self.box_classes))

    @property
    def _entry_bytes(self) -> Entry | None:
        """What the index holds of an image, boxes included, where the file is bounded."""
        return self._indexed if self.whole_file else None

    def _indexed(self, source: str) -> int:
        boxes = box_entry(len(self.boxes.get(source, ()))) if self.box_classes else 0
        return index_entry(source) + boxes

    def _cut(self, shelves: dict[int, Shelf], room: int) -> dict[int, Shelf]:
        counts = share(room, [shelf.costs(self._entry_bytes) for shelf in shelves.values()])
        cut: dict[int, Shelf] = {}
        for (label, shelf), count in zip(shelves.items(), counts, strict=True):
            cut[label] = shelf.cut(count)
            if not count:
                raise BudgetError(
                    f"budget leaves {max(room, 0):,} bytes for the images of {len(shelves)} "
                    f"classes, so none of class {self._name(label)!r} fits: its first takes "
                    f"{shelf.sizes[0]:,}; raise the budget"
                )
        return cut

    def _replace(self, shelves: dict[int, Shelf]) -> None:
        self._shelves = shelves
        self._ends = list(accumulate(map(len, shelves.values())))

    def _shelf(self, grown: Growing, tables: bytes) -> Shelf:
        bodies = (item.body for item in grown.items)
        payload: Payload = self._spool if self._spool is not None else in_ram(bodies)
        return Shelf(
            payload,
            np.array(grown.starts, np.int64),
            np.array(grown.sizes, np.int64),
            np.array([item.shared for item in grown.items], bool),
            np.array([item.kept for item in grown.items], bool),
            join_names(item.source for item in grown.items),
            tables,
            self.codec.name,
            self.quality,
            self.codec.encoder,
            grown.duplicates,
        )

    def _name(self, label: int) -> str:
        return self.class_names.get(label, str(label))

    # Batches

    def batches(
        self,
        batch_size: int,
        size: int,
        *,
        train: bool = True,
        seed: int = 0,
        epoch: int = 0,
        threads: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Uint8 batches (n, 3, size, size) and labels (n,), decoded by threads.

        With `train`, shuffled, randomly cropped and mirrored; the draws belong
        to (seed, epoch, index), so they do not depend on the threads. Else in
        order, centre-cropped.
        """
        yield from batches(
            self, self.targets, batch_size, size, train, seed=seed, epoch=epoch, threads=threads
        )

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory file, whole or not at all.

        Raises:
            UsageError: boxes that cannot be.
            OutputError: it cannot be written; an older file stays as it was.
        """
        arrays, tables = to_arrays(self._shelves)
        arrays |= self._box_arrays(split_names(arrays["sources"].tobytes()))
        shelves = self._shelves.values()
        payload = (shelf.body(rank) for shelf in shelves for rank in range(len(shelf)))
        total = sum(shelf.nbytes for shelf in shelves)
        meta = self._metadata(self.budget, list(map(self._entry, self._shelves)))
        write_memory(Path(path), arrays, payload, total, meta, tables)

    def _box_arrays(self, sources: list[str]) -> dict[str, NDArray[Any]]:
        """Boxes of the images held, where there are any; refused where they cannot be."""
        arrays = box_arrays(sources, self.boxes)
        counts, rows = arrays["box_counts"], arrays["boxes"]
        if not self.box_classes and not len(rows):
            return {}
        problems = box_problems(counts, rows, sources, len(self.box_classes))
        if problems:
            raise UsageError(problems[0])
        return arrays

    def _named(self) -> dict[str, Any]:
        """What the file says of box classes; nothing where there are none."""
        return {"box_classes": self.box_classes} if self.box_classes else {}

    def _entry(self, label: int) -> dict[str, Any]:
        """What the file says of a class; of one not held yet, its name."""
        shelf = self._shelves.get(label)
        entry: dict[str, Any] = {"label": label, "name": self._name(label)}
        if shelf is None:
            return entry
        entry |= {"items": len(shelf), "duplicates": shelf.duplicates}
        made = {"codec": shelf.codec, "quality": shelf.quality, "encoder": shelf.encoder}
        return entry if made == self._made() else entry | made

    def _made(self) -> dict[str, Any]:
        """What makes new images; a class that was made otherwise says so itself."""
        return {"codec": self.codec.name, "quality": self.quality, "encoder": self.codec.encoder}

    def _metadata(self, budget: Budget, classes: list[dict[str, Any]]) -> dict[str, Any]:
        about = {
            "amount": budget.amount,
            "unit": budget.unit,
            "original_bytes": budget.original_bytes,
            "bytes": budget.total_bytes(len(classes)),
        }
        return {
            "budget": about,
            "accounting": self.accounting,
            "whole_file": self.whole_file,
            **self._made(),
            "mrdc": __version__,
            "classes": classes,
            "notes": self.notes,
            **self._named(),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ReplayMemory":
        """Open a memory file; its images stay mapped, not read.

        Raises:
            MemoryFileError: missing, damaged, or not a memory file.
        """
        file = MemoryFile(path)
        meta = file.meta
        budget = Budget(*(meta["budget"][key] for key in ("amount", "unit", "original_bytes")))
        memory = cls(
            budget,
            meta["codec"],
            meta["quality"],
            accounting=meta["accounting"],
            whole_file=meta["whole_file"],
            class_names={entry["label"]: entry["name"] for entry in meta["classes"]},
        )
        memory.notes = meta["notes"]
        memory.box_classes = file.box_classes
        if memory.box_classes:
            memory.boxes = dict(zip(file.sources, file.boxes, strict=True))
        memory._replace(from_file(file))
        return memory


def _photos(label: int, images: Iterable[Photo | bytes | Pixels]) -> Iterator[Photo]:
    """Photos as they are; bytes and pixels with an id made of label and rank."""
    for rank, image in enumerate(images):
        if isinstance(image, Photo):
            yield image
        elif not isinstance(image, bytes | np.ndarray):
            kind = type(image).__name__
            raise UsageError(
                f"image {rank} of class {label} is a {kind}: give a Photo, a file's bytes, or "
                "pixels (height, width, 3)"
            )
        else:
            yield Photo(f"{label}/{rank}", partial(_same, image))


def _same(image: bytes | Pixels) -> bytes | Pixels:
    return image
