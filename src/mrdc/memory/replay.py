"""The replay memory: encoded images of old classes under a byte budget."""

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import Dataset

from mrdc import __version__
from mrdc._utils.errors import BudgetError, UsageError
from mrdc._utils.lazy import LazyList
from mrdc._utils.threads import workers
from mrdc.codec import CODECS, Codec
from mrdc.codec.image import decode
from mrdc.data.crops import tensor
from mrdc.data.examples import Examples
from mrdc.data.loader import batches
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes
from mrdc.memory.budget import Budget, parse_budget, share
from mrdc.memory.classes import ClassImages, Mapped, Spool, from_file, in_use, to_arrays
from mrdc.memory.encode import Encoded, Encoding, Entry, Image, as_image, as_label, encode
from mrdc.memory.file import box_arrays, head_bytes, index_entry, split_names, write_memory
from mrdc.memory.fill import Skip, check_filled, fill

Transform = Callable[[Tensor], Any]


class ReplayMemory(Dataset[tuple[Any, int]]):
    """Encoded images of the classes seen so far, never over its byte budget.

    A map-style torch Dataset of (image, label), ordered by class and rank. An image is a
    uint8 tensor (3, h, w), or what `transform` makes of it. Classes share the budget
    equally by bytes; a class with few images leaves its bytes to the others. Worker
    processes do not copy the images: they share the RAM, or map the file.

    A budget in bytes bounds the saved file, index included. A budget in originals bounds
    the image bytes only, as in the paper.

    Images may have boxes: `boxes` by source id, with labels that index `box_classes`. The
    boxes of stored images go into the file, and so do `notes` (JSON values). A budget in
    bytes covers both, so set them before adding images.

    Args:
        budget: a `Budget`, a number of bytes, or text such as "200MB" or "20/class".
        codec: a codec or its name in `CODECS`.
        quality: the codec's quality, by default its own default. Changing `codec` and
            `quality` later affects the classes added from then on.
        accounting: "packed" stores shared JPEG tables once; "file" stores whole files, to
            compare with the paper.
        class_names: names by label, for messages and the file.
        transform: applied to each image when it is read as an item, not by `batches`.
        original_bytes: mean bytes of an original image, for budgets such as "20/class".
        spool: a folder for an unnamed temporary file that holds the images instead of RAM.
    """

    def __init__(
        self,
        budget: Budget | int | str,
        codec: Codec | str = "jpeg",
        quality: int | None = None,
        *,
        accounting: Literal["packed", "file"] = "packed",
        class_names: Mapping[int, str] | None = None,
        transform: Transform | None = None,
        original_bytes: float | None = None,
        spool: Path | None = None,
    ):
        self.budget = parse_budget(budget, original_bytes)
        self.codec = CODECS.find(codec) if isinstance(codec, str) else codec
        self.quality = self.codec.default_quality if quality is None else quality
        self.codec.check_quality(self.quality)
        if accounting not in ("packed", "file"):
            raise UsageError(f"accounting must be 'packed' or 'file', got {accounting!r}")
        self.accounting = accounting
        self.class_names = dict(class_names or {})
        self.transform = transform
        self.notes: dict[str, Any] = {}
        self.boxes: dict[str, Boxes] = {}
        self.box_classes: tuple[str, ...] = ()
        self._spool = Spool(spool) if spool is not None else None
        self._classes: dict[int, ClassImages] = {}
        self._ends: list[int] = []  # index after the last image of each class
        self._epoch = 0  # of the next training batches

    # Contents

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> tuple[Any, int]:
        label, images, rank = self._find(index)
        image = tensor(decode(images.stream(rank)))
        return image if self.transform is None else self.transform(image), label

    @property
    def labels(self) -> list[int]:
        """Labels of the classes, in the order they were added."""
        return list(self._classes)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in label order."""
        return [self._name(label) for label in sorted(self._classes)]

    @property
    def targets(self) -> list[int]:
        """Label of every image."""
        return [label for label, images in self._classes.items() for _ in range(len(images))]

    @property
    def ranks(self) -> list[int]:
        """Rank of every image in its class, best first."""
        return [rank for images in self._classes.values() for rank in range(len(images))]

    @property
    def nbytes(self) -> int:
        """Bytes of the images, and of each shared header once."""
        shared = sum(map(len, in_use(self._classes)))
        return sum(images.nbytes for images in self._classes.values()) + shared

    @property
    def budget_bytes(self) -> int:
        """Bytes the present classes may take."""
        return self.budget.total_bytes(len(self._classes))

    @property
    def whole_file(self) -> bool:
        """True if the budget bounds the saved file rather than the images alone."""
        return self.budget.unit == "bytes"

    def encoded(self, index: int) -> bytes:
        """An image as a whole file."""
        _, images, rank = self._find(index)
        return images.stream(rank)

    def encoded_images(self, label: int) -> list[Encoded]:
        """The images of a class as stored, for `add` of another memory."""
        return self._classes[operator.index(label)].encoded()

    def examples(self) -> Examples:
        """The images as encoded training examples, unaffected by later changes."""
        photos = tuple(
            Photo(name, partial(images.stream, rank))
            for images in self._classes.values()
            for rank, name in enumerate(images.sources)
        )
        return Examples(photos, tuple(self.targets))

    def sources(self, label: int) -> list[str]:
        """Ids of a class's images, in rank order."""
        return self._classes[operator.index(label)].sources

    def duplicates(self) -> dict[int, int]:
        """Number of exact duplicates left out, for each class that had any."""
        return {label: c.duplicates for label, c in self._classes.items() if c.duplicates}

    def kept_sources(self) -> int:
        """Number of images stored as source bytes because encoding made them no smaller."""
        return sum(int(images.kept.sum()) for images in self._classes.values())

    def _find(self, index: int) -> tuple[int, ClassImages, int]:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} is outside a memory of {len(self)} images")
        number = bisect_right(self._ends, position)
        label = self.labels[number]
        images = self._classes[label]
        return label, images, position - self._ends[number] + len(images)

    def _name(self, label: int) -> str:
        return self.class_names.get(label, str(label))

    # Adding and dropping images

    def add(
        self,
        images: Mapping[int, Iterable[Image]],
        *,
        threads: int | None = None,
        skip: Skip | None = None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Add new classes, each with its images in rank order, best first.

        Encodes images until the budget is used up; `Encoded` images are stored as they
        are. If the new classes need room, older classes lose their lowest ranks. If
        anything fails, the memory stays unchanged.

        Args:
            images: Photos, file contents, pixels (h, w, 3) or `Encoded` images by label.
            skip: called with the error of each unreadable image, which is then left out.
            progress: called with 1 after each image.

        Raises:
            BudgetError: a class would hold no image.
            ImageError: an image cannot be read (and `skip` is not given).
        """
        ranked = self._ranked(images)
        encoding, entry, spool = self._encoding, self._entry_bytes(self.budget), self._spool
        tables = self.codec.tables(self.quality) if self.accounting == "packed" else b""
        counts = {label: len(of_class) for label, of_class in ranked.items()}
        room_in = partial(self._room, counts=counts, tables=tables)
        room = room_in(self.budget)
        costs = [of_class.costs(entry) for of_class in self._classes.values()]
        held = [(int(cost.sum()), int(cost[0])) for cost in costs]
        made = partial(encode, codec=self.codec, encoding=encoding, tables=tables)
        write = spool.append if spool else None
        with workers(threads) as pool:
            filled = fill(
                ranked, room, held, made, pool, entry, spool=write, skip=skip, progress=progress
            )
        check_filled(filled, held, self.budget, room_in, self._name)
        new = {n: ClassImages.of(grown, encoding, tables, spool) for n, grown in filled.items()}
        self._fit({**self._classes, **new}, room, entry)

    def rebudget(self, budget: Budget | int | str) -> None:
        """Change the budget; drops the lowest ranks to fit, never encodes again.

        Raises:
            BudgetError: a class would hold no image; nothing is dropped then.
        """
        new = parse_budget(budget, self.budget.original_bytes)
        self._fit(self._classes, self._room(new, {}), self._entry_bytes(new))
        self.budget = new

    def _fit(self, classes: Mapping[int, ClassImages], room: int, entry: Entry | None) -> None:
        """Hold the highest ranks of each class that fit together into `room` bytes."""
        counts = share(room, [images.costs(entry) for images in classes.values()])
        kept = {}
        for (label, images), count in zip(classes.items(), counts, strict=True):
            if not count:
                raise BudgetError(
                    f"the budget leaves {max(room, 0):,} bytes for the images of {len(classes)} "
                    f"classes, so no image of class {self._name(label)!r} fits: its first takes "
                    f"{images.sizes[0]:,}; raise the budget"
                )
            kept[label] = images.cut(count)
        self._replace(kept)

    @property
    def _encoding(self) -> Encoding:
        """How new images are encoded."""
        return Encoding(self.codec.name, self.quality, self.codec.encoder)

    def _ranked(
        self, images: Mapping[int, Iterable[Image]]
    ) -> dict[int, Sequence[Photo | Encoded]]:
        """New images by label, checked."""
        ranked: dict[int, Sequence[Photo | Encoded]] = {}
        encoding = self._encoding
        for given, of_class in images.items():
            label = as_label(given)
            if label in self._classes:
                raise UsageError(f"class {label} is already in the memory: add each class once")
            if label in ranked:
                raise UsageError(f"class {label} is given twice")
            if isinstance(of_class, LazyList):  # photos that a search has ranked
                ranked[label] = of_class
                continue
            ranked[label] = [as_image(label, n, i, encoding) for n, i in enumerate(of_class)]
        return ranked

    def _room(self, budget: Budget, counts: Mapping[int, int], tables: bytes = b"") -> int:
        """Bytes left for images after shared tables and the index.

        New classes have `tables`, and at most `counts` images by label.
        """
        total = budget.total_bytes(len(self._classes) + len(counts))
        used = list(dict.fromkeys([*in_use(self._classes), *([tables] if tables else [])]))
        if budget.unit != "bytes":
            return total - sum(map(len, used))
        meta = self._metadata(budget, counts)
        return total - head_bytes(total, meta, used, boxes=bool(self.box_classes))

    def _entry_bytes(self, budget: Budget) -> Entry | None:
        """Size of index entries, boxes included, if the budget bounds the file."""

        def size(source: str) -> int:
            boxes = self.boxes.get(source, ())
            return index_entry(source, len(boxes) if self.box_classes else None)

        return size if budget.unit == "bytes" else None

    def _replace(self, classes: dict[int, ClassImages]) -> None:
        self._classes = classes
        self._ends = list(accumulate(map(len, classes.values())))

    # Batches

    def batches(
        self,
        batch_size: int,
        size: int,
        *,
        train: bool = True,
        seed: int = 0,
        epoch: int | None = None,
        threads: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Uint8 batches (n, 3, size, size) and labels (n,), decoded by threads.

        Training batches are shuffled, randomly cropped and mirrored; the draws depend on
        seed, epoch and image only. Other batches are in order and centre-cropped.

        Args:
            epoch: by default 0 for the first training batches, 1 for the next call, ...
        """
        if epoch is None:
            epoch = self._epoch
            self._epoch += train
        make = partial(batches, seed=seed, epoch=epoch, threads=threads)
        return make(self.examples(), self.targets, batch_size, size, train)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory file, whole or not at all.

        Images mapped from the file that is replaced are mapped from the new one.

        Raises:
            OutputError: the file cannot be written; an older file stays as it was.
        """
        path, classes = Path(path), self._classes.values()
        arrays, tables = to_arrays(self._classes)
        sources = split_names(arrays["sources"].tobytes())
        arrays |= box_arrays(sources, self.boxes, self.box_classes)
        payload = (images.body(rank) for images in classes for rank in range(len(images)))
        total = sum(images.nbytes for images in classes)
        meta = self._metadata(self.budget, {})
        sha256 = write_memory(path, arrays, payload, total, meta, tables)
        payloads = {label: images.payload for label, images in self._classes.items()}
        old = {label: p.path for label, p in payloads.items() if isinstance(p, Mapped)}
        stale = [label for label, from_ in old.items() if from_.exists() and from_.samefile(path)]
        if stale and (mapped := Mapped(path)).file.sha256 == sha256:
            saved = from_file(mapped)
            self._classes |= {label: saved[label] for label in stale}

    def _metadata(self, budget: Budget, counts: Mapping[int, int]) -> dict[str, Any]:
        """Metadata of the file with new classes of at most `counts` images by label."""
        encoding = self._encoding
        classes = [
            {"label": label, "items": len(images), "duplicates": images.duplicates}
            | ({} if images.encoding == encoding else asdict(images.encoding))
            for label, images in self._classes.items()
        ]
        classes += [{"label": n, "items": most, "duplicates": most} for n, most in counts.items()]
        return {
            "budget": asdict(budget) | {"bytes": budget.total_bytes(len(classes))},
            "accounting": self.accounting,
            "whole_file": budget.unit == "bytes",
            **asdict(encoding),
            "mrdc": __version__,
            "classes": [entry | {"name": self._name(entry["label"])} for entry in classes],
            "notes": self.notes,
            **({"box_classes": self.box_classes} if self.box_classes else {}),
        }

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], transform: Transform | None = None
    ) -> "ReplayMemory":
        """Open a memory file; its images stay mapped, not read."""
        payload = Mapped(Path(path))
        file, meta = payload.file, payload.file.meta
        memory = cls(
            file.budget,
            meta["codec"],
            meta["quality"],
            accounting=meta["accounting"],
            class_names=file.class_names,
            transform=transform,
        )
        memory.notes, memory.box_classes = meta["notes"], file.box_classes
        if memory.box_classes:
            memory.boxes = dict(zip(file.sources, file.boxes, strict=True))
        memory._replace(from_file(payload))
        return memory
