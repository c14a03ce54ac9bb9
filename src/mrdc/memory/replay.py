"""The replay memory: encoded images of old classes under a byte budget."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
from PIL import Image as Pillow

from mrdc._utils.errors import BudgetError, UsageError
from mrdc._utils.store_path import as_path
from mrdc._utils.threads import workers
from mrdc.codec import CODECS
from mrdc.data.inputs import as_photo
from mrdc.data.photo import Photo, channels_first
from mrdc.memory.accounting import entry_cost, room
from mrdc.memory.budget import Budget, parse_budget
from mrdc.memory.classes import from_stored
from mrdc.memory.contents import Transform
from mrdc.memory.encode import Encoded, Item, as_stored
from mrdc.memory.fade import faded, usual_level
from mrdc.memory.fill import Skip
from mrdc.memory.folder import write_file, write_folder
from mrdc.memory.inputs import Columns, Image, as_item, as_items, as_label
from mrdc.memory.segments import Saved
from mrdc.memory.stored import open_memory
from mrdc.memory.storing import Advance, Storing
from mrdc.memory.streams import interleave
from mrdc.memory.values import rows_of

AT_ONCE = 256  # images of a stream that are encoded before others are dropped for them


class ReplayMemory(Storing):
    """Encoded images of the classes seen so far, never over its byte budget.

    A map-style data set of (image, label), ordered by class and rank, for any torch
    DataLoader. An image is a uint8 tensor (3, h, w), or an array of that shape if torch is not
    installed, or what `transform` makes of it. Classes share the budget equally by bytes; a
    class with few images leaves its bytes to the others. Worker processes do not copy the
    images: they share the RAM, or map the file.

    A budget in bytes bounds the saved file, index included. A budget in originals bounds
    the bytes of images and values only, as in the paper.

    Images may have boxes: `boxes` by source id, with labels that index `box_classes`. The
    boxes of stored images go into the file, and so do `notes` (JSON values). A budget in
    bytes covers both, so set them before adding images.

    Args:
        budget: a `Budget`, a number of bytes, or text such as "200MB" or "20/class".
        codec: a codec or its name in `CODECS`.
        quality: the codec's quality, by default its own default. Changing `codec` and
            `quality` later affects the images added from then on.
        accounting: "packed" stores shared headers once; "file" stores whole files, to
            compare with the paper.
        fade: cut scans of images of codec jpeg-progressive before dropping images or leaving
            them out. All images fade evenly, down to 5 of 10 scans.
        class_names: names by label, for messages and the file.
        transform: applied to each image, a uint8 tensor (3, h, w), when it is read as an item or
            sampled, not by `batches`.
        original_bytes: mean bytes of an original image, for budgets such as "20/class".
        spool: a folder for an unnamed temporary file that holds the images instead of RAM.
        part_size: `save` writes a folder of memory files of at most this many bytes, instead of
            one file. A budget in bytes bounds the folder.
        seed: of the images that `sample` draws.
    """

    _counted: tuple[object, int] | None = None  # the classes at some time, and `_level` then

    def add(
        self,
        images: Mapping[int, Iterable[Image]],
        *,
        values: Mapping[int, Columns] | None = None,
        threads: int | None = None,
        skip: Skip | None = None,
        progress: Advance = lambda count: None,
    ) -> None:
        """Add new classes, each with its images in rank order, best first.

        Encodes images until the budget is used up; `Encoded` images are stored as they
        are. If the new classes need room, older classes lose their lowest ranks; if the
        memory fades, all images lose scans first. If anything fails, the memory stays
        unchanged.

        Args:
            images: by label: paths, file contents, PIL images, uint8 arrays (h, w, 3) or
                (h, w), uint8 tensors (3, h, w), Photos, or `Encoded` images.
            values: values beside the images, by label and name, one for each image: arrays,
                such as logits (n, c), or JSON values. They count towards any budget.
            skip: called with the error of each unreadable image, which is then left out.
            progress: called with 1 after each image.

        Raises:
            BudgetError: a class would hold no image.
            ImageError: an image cannot be read (and `skip` is not given).
        """
        if not isinstance(images, Mapping):
            raise UsageError(f"images must be given by label, as {{7: [...]}}, got {type(images)}")
        ranked: dict[int, Sequence[Item]] = {}
        for given, of_class in images.items():
            label = as_label(given)
            if label in self._classes:
                raise UsageError(f"class {label} is already in the memory: use extend to add to it")
            if label in ranked:
                raise UsageError(f"class {label} is given twice")
            ranked[label] = as_items(label, of_class, (values or {}).get(given))
        seen = {label: len(items) for label, items in ranked.items()}
        self._store(ranked, seen, threads, skip, progress)

    def extend(
        self,
        label: SupportsIndex,
        images: Iterable[Image],
        *,
        values: Columns | None = None,
        threads: int | None = None,
        skip: Skip | None = None,
        progress: Advance = lambda count: None,
    ) -> None:
        """Add more images, in rank order, to a class that may be in the memory already.

        They are ranked among the images held by their relative ranks: old and new images are
        kept in proportion to the numbers seen. Otherwise as `add`.
        """
        number = as_label(label)
        items = as_items(number, images, values, self._seen(number))
        self._extend({number: items}, threads, skip, progress)

    def _extend(
        self,
        arriving: Mapping[int, Sequence[Item]],
        threads: int | None = None,
        skip: Skip | None = None,
        progress: Advance = lambda count: None,
    ) -> None:
        """Add classes, or more images to classes held, all or none of them."""
        ranked: dict[int, Sequence[Item]] = {}
        for label, items in arriving.items():
            if items or label not in self._classes:
                ranked[label] = interleave(self._encoded(label), self._seen(label), items)
        seen = {label: self._seen(label) + len(arriving[label]) for label in ranked}
        self._store(ranked, seen, threads, skip, progress)

    def remove(self, label: SupportsIndex) -> None:
        """Remove a class. A budget per class shrinks with it.

        Raises:
            UsageError: there is no such class.
            BudgetError: a budget per class would have no room for the others.
        """
        self._remove([label])

    def _remove(self, labels: Sequence[SupportsIndex]) -> None:
        """Remove classes, all or none of them; the budget of the others is that after the last."""
        for label in labels:
            self._class(label)
        before, gone = self._classes, set(map(as_label, labels))
        self._replace({one: images for one, images in before.items() if one not in gone})
        try:
            self._refit()
        except BudgetError:
            self._replace(before)
            raise

    def rebudget(self, budget: Budget | int | str) -> None:
        """Change the budget; drops the lowest ranks to fit, never re-encodes.

        A memory that fades cuts scans before it drops images.

        Raises:
            BudgetError: a class would hold no image; nothing is dropped then.
        """
        new = parse_budget(budget, self.budget.original_bytes)
        self._fit(self._classes, room(self, new), entry_cost(self, new))
        self.budget = new

    def reservoir(
        self,
        images: Sequence[Image],
        labels: Sequence[SupportsIndex],
        *,
        over: Literal["class", "all"] = "class",
        seed: int = 0,
        values: Columns | None = None,
        threads: int | None = None,
        skip: Skip | None = None,
    ) -> None:
        """Offer a batch of a stream: every image seen is as likely to be held as any other.

        Images take random ranks, which depend on the seed, the label and the name of an image
        only. Single images are replaced within the budget; once it is used up, images that
        would be dropped at once are not even encoded. An image that comes again is not stored
        twice. Over all images, images are dropped whole, even from a memory that fades.

        Args:
            images: as for `add`, of any classes.
            labels: of these images.
            over: "class": within each class, and classes share the budget as usual; "all":
                over all images, so that classes are held in proportion to the images seen, with
                at least one image of each.
            values: as for `extend`.
        """
        if over not in ("class", "all"):
            raise UsageError(f"over must be 'class' or 'all', got {over!r}")
        arriving = self._arriving(images, labels, values)
        seen = {n: len(items) + self._seen(n) for n, items in arriving.items()}
        every = [(label, item) for label, items in arriving.items() for item in items]
        before = self._classes
        with workers(threads) as pool:
            try:
                for start in range(0, len(every), AT_ONCE):
                    some: dict[int, list[Item]] = {}
                    for label, item in every[start : start + AT_ONCE]:
                        some.setdefault(label, []).append(item)
                    self._offer(some, seen, seed, over == "all", pool, skip)
            except BaseException:
                self._replace(before)
                raise
        held = self._classes.keys() & seen.keys()
        counted = {label: replace(self._classes[label], seen=seen[label]) for label in held}
        self._replace(self._classes | counted)

    def as_stored(self, image: Any) -> Any:
        """An image of a new class as it will look once it is stored: encoded and decoded.

        Old images are replayed compressed. Show new ones like this too, as the first transform of
        their data set, and a network cannot learn to tell old from new by the compression. As
        long as the memory is empty, or stores originals, it is only turned upright and made RGB.

        Args:
            image: a PIL image, an array (h, w, 3), a tensor (3, h, w) or a `Photo`, which return
                the same kind; or a path or file contents, which return what an item of the memory
                is, without its transform.
        """
        photo = as_photo(image, "image", "image")
        if len(self) and self.codec.name != "original":
            photo = as_stored(photo, self.codec, self.quality, partial(faded, to=self._level))
        if isinstance(image, Photo):
            return photo
        if isinstance(image, Pillow.Image):
            return Pillow.fromarray(photo.pixels())
        return photo.pixels() if isinstance(image, np.ndarray) else channels_first(photo.pixels())

    @property
    def _level(self) -> int:
        """The level that most images have faded to, counted again when the images change."""
        if self._counted is None or self._counted[0] is not self._classes:
            self._counted = self._classes, usual_level(self.scans())
        return self._counted[1]

    def _arriving(
        self, images: Sequence[Image], labels: Sequence[SupportsIndex], values: Columns | None
    ) -> dict[int, list[Item]]:
        """Images of a batch by label, checked."""
        if len(images) != len(labels):
            raise UsageError(f"there are {len(images)} images, but {len(labels)} labels")
        beside = rows_of(values or {}, len(images))
        arriving: dict[int, list[Item]] = {}
        for place, given in enumerate(labels):
            label = as_label(given)
            items = arriving.setdefault(label, [])
            name = f"{label}/{self._seen(label) + len(items)}"
            items.append(as_item(images[place], beside[place], name, f"image {place}"))
        return arriving

    def _seen(self, label: int) -> int:
        return self._classes[label].seen if label in self._classes else 0

    def _encoded(self, label: int) -> list[Encoded]:
        return self._classes[label].encoded() if label in self._classes else []

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a path or URL, whole or not at all; with `part_size` as a folder.

        If names, notes, boxes, quality or codec have changed since the last images were added,
        the lowest ranks may be dropped so that a budget in bytes still bounds the file. Images
        mapped from the file that is replaced are mapped from the new one.

        Raises:
            BudgetError: a class would hold no image.
            OutputError: the file cannot be written; an older file stays as it was.
        """
        self._refit()
        path = as_path(path)
        replaced = self._labels_in(path)
        sha256 = write_file(self, path) if self.part_size is None else write_folder(self, path)
        if replaced and (saved := open_memory(path)).sha256 == sha256:
            classes = from_stored(saved)
            self._replace(self._classes | {label: classes[label] for label in replaced})

    def _labels_in(self, path: Path) -> list[int]:
        """Classes with images in the file or folder at a path."""
        if not path.exists():
            return []
        first = {label: images.segments[0] for label, images in self._classes.items()}
        saved = {n: one.part.memory for n, one in first.items() if isinstance(one, Saved)}
        there = {memory for memory in saved.values() if memory.is_at(path)}
        return [label for label, memory in saved.items() if memory in there]

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], transform: Transform | None = None, seed: int = 0
    ) -> "ReplayMemory":
        """Open a memory file or a folder of parts, by path or URL; images are read when needed."""
        stored = open_memory(path)
        meta = stored.meta
        try:
            codec = CODECS.find(meta["codec"])
        except UsageError:
            raise UsageError(
                f"{path}: was made with the codec {meta['codec']!r}, which is not registered: "
                "import the module that does that first (--plugin MODULE, or MRDC_PLUGINS)"
            ) from None
        memory = cls(
            stored.budget,
            codec,
            meta["quality"],
            accounting=meta["accounting"],
            class_names=stored.class_names,
            transform=transform,
            part_size=stored.part_size,
            seed=seed,
        )
        memory.notes, memory.box_classes = meta["notes"], stored.box_classes
        memory.fade = meta["fade"]
        if memory.box_classes:
            for _, file in stored.files():
                memory.boxes |= zip(file.names, file.boxes, strict=True)
        memory._replace(from_stored(stored))
        memory._loaded = stored
        return memory
