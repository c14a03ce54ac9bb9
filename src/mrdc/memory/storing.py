"""Store images in a memory within its budget."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import BudgetError
from mrdc._utils.threads import workers
from mrdc.memory.accounting import coming, entry_cost, room
from mrdc.memory.budget import share
from mrdc.memory.classes import ClassImages
from mrdc.memory.contents import Contents
from mrdc.memory.encode import Encoded, Encoder, Item
from mrdc.memory.fade import faded, fitting_levels, least_cost, sizes_of
from mrdc.memory.fill import Cost, Growing, Skip, check_filled, fill
from mrdc.memory.names import IndexCost
from mrdc.memory.photos import Index
from mrdc.memory.segments import Held
from mrdc.memory.streams import cut_overall, priorities

UNLIMITED = 2**62
Advance = Callable[[int], None]


class Storing(Contents):
    """A memory whose contents change; the budget holds after every change."""

    def _store(
        self,
        ranked: Mapping[int, Sequence[Item]],
        seen: Mapping[int, int],
        threads: int | None = None,
        skip: Skip | None = None,
        progress: Advance = lambda count: None,
        lenient: bool = False,
    ) -> None:
        """Store new classes, or other images of classes held, as many as fit.

        A class without a readable image is refused, or left out if `lenient`.
        """
        encoder = self._encoder()
        more = coming(self, ranked, seen, encoder)
        entry, budget = entry_cost(self, self.budget, more.values), self.budget
        bytes_left = room(self, budget, more)
        others = [images for n, images in self._classes.items() if n not in ranked]
        held, cost = self._terms(others, entry)
        filled = self._fill(ranked, bytes_left, held, encoder, cost, threads, skip, progress)
        if lenient:
            filled = {n: grown for n, grown in filled.items() if grown.sizes or grown.waiting}
        check_filled(filled, held, budget, lambda other: room(self, other, more), self._name)
        new = {n: self._made(n, grown, seen[n]) for n, grown in filled.items()}
        self._fit({**self._classes, **new}, bytes_left, entry)

    def _terms(
        self, others: Sequence[ClassImages], entry: IndexCost | None
    ) -> tuple[list[tuple[int, int]], Cost]:
        """Inputs for filling new classes: costs of the others, and the cost of an image.

        A memory that fades counts all images at the lowest level, so that as many as possible fit.
        """
        cost: Cost = partial(least_cost if self.fade else Encoded.cost, entry=entry)
        costs = [sizes_of(c, entry)[:, 0] if self.fade else c.costs(entry) for c in others]
        return [(int(c.sum()), int(c[0])) for c in costs], cost

    def _store_overall(
        self,
        ranked: Mapping[int, Sequence[Item]],
        seen: Mapping[int, int],
        seed: int,
        threads: int | None,
        skip: Skip | None,
    ) -> None:
        """Store the images of all classes that come first by priority, as many as fit."""
        encoder = self._encoder()
        more = coming(self, ranked, seen, encoder)
        entry, left = entry_cost(self, self.budget, more.values), room(self, self.budget, more)
        cost = self._terms([], entry)[1]
        filled = self._fill(ranked, UNLIMITED, [], encoder, cost, threads, skip)
        made = {n: self._made(n, grown, seen[n]) for n, grown in filled.items() if grown.sizes}
        classes = {**self._classes, **made}
        keys = {n: priorities(seed, n, images.sources) for n, images in classes.items()}
        costs = {n: images.costs(entry) for n, images in classes.items()}
        kept = cut_overall(keys, costs, left)
        self._check_room(kept, classes, left)
        self._replace(
            {
                n: images if kept[n] == list(range(len(images))) else images.take(kept[n])
                for n, images in classes.items()
            }
        )

    def _made(self, label: int, grown: Growing, seen: int) -> ClassImages:
        """The images a class was filled with."""
        before = self._classes[label].duplicates if label in self._classes else 0
        counts = {"seen": seen, "duplicates": before + grown.duplicates}
        held = Held.of(grown.taken, grown.starts, grown.sizes, self._spool)
        return ClassImages((held,), **counts)

    def _count_duplicates(self, more: Mapping[int, int]) -> None:
        """Count duplicates that were left out elsewhere, by label."""
        self._replace(
            {
                label: replace(images, duplicates=images.duplicates + more[label])
                for label, images in self._classes.items()
            }
        )

    def _fill(
        self,
        ranked: Mapping[int, Sequence[Item]],
        bytes_left: int,
        held: Sequence[tuple[int, int]],
        encoder: Encoder,
        cost: Cost,
        threads: int | None,
        skip: Skip | None,
        progress: Advance = lambda count: None,
    ) -> dict[int, Growing]:
        write = self._spool.append if self._spool else None
        with workers(threads) as pool:
            return fill(
                ranked, bytes_left, held, encoder, pool, cost,
                spool=write, skip=skip, progress=progress,
            )  # fmt: skip

    def _refit(self) -> None:
        """Drop the lowest ranks if settings have changed so that the images no longer fit."""
        entry, left = entry_cost(self, self.budget), room(self, self.budget)
        if sum(int(images.costs(entry).sum()) for images in self._classes.values()) > left:
            self._fit(self._classes, left, entry)

    def _fit(self, classes: Mapping[int, ClassImages], left: int, entry: IndexCost | None) -> None:
        """Hold the highest ranks of each class that fit together into `left` bytes.

        A memory that fades gives up scans first.
        """
        if left < 0 and not classes:
            raise BudgetError(
                f"the budget is {-left:,} bytes less than a file without images takes: raise it"
            )
        if self.fade:
            classes = self._faded(classes, left, entry)
        counts = share(left, [images.costs(entry) for images in classes.values()])
        kept = dict(zip(classes, counts, strict=True))
        self._check_room(kept, classes, left)
        self._replace({label: images.cut(kept[label]) for label, images in classes.items()})

    def _faded(
        self, classes: Mapping[int, ClassImages], left: int, entry: IndexCost | None
    ) -> Mapping[int, ClassImages]:
        """Classes with as many scans as fit into `left` bytes together."""
        if sum(int(images.costs(entry).sum()) for images in classes.values()) <= left:
            return classes
        levels = fitting_levels([sizes_of(c, entry) for c in classes.values()], left)
        pairs = zip(classes.items(), levels, strict=True)
        return {label: self._cut(images, of_class) for (label, images), of_class in pairs}

    def _cut(self, images: ClassImages, levels: NDArray[np.int64]) -> ClassImages:
        """The images of a class, cut to these levels."""
        before = images.encoded()
        after = [faded(image, int(to)) for image, to in zip(before, levels, strict=True)]
        if all(map(operator.is_, before, after)):
            return images
        stored = [image.body + image.values for image in after]
        sizes = list(map(len, stored))
        starts = list(accumulate(sizes, initial=0))[:-1]
        if self._spool is not None:
            starts = [self._spool.append(part) for part in stored]
        return replace(images, segments=(Held.of(after, starts, sizes, self._spool),))

    def _check_room(
        self, kept: Mapping[int, object], classes: Mapping[int, ClassImages], left: int
    ) -> None:
        """Refuse a class that would hold no image."""
        for label in (label for label, images in kept.items() if not images):
            raise BudgetError(
                f"the budget leaves {max(left, 0):,} bytes for the images of {len(classes)} "
                f"classes, so no image of class {self._name(label)!r} fits: its first takes "
                f"{classes[label].sizes[0]:,}; raise the budget"
            )

    def _replace(self, classes: dict[int, ClassImages]) -> None:
        """Hold these images."""
        self._classes, self._index, self._loaded = classes, Index(classes), None
