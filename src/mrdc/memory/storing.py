"""Store images in a memory within its budget."""

import operator
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import BudgetError
from mrdc._utils.threads import ordered, workers
from mrdc.memory.accounting import coming, entry_cost, room
from mrdc.memory.budget import share
from mrdc.memory.classes import ClassImages
from mrdc.memory.contents import Contents
from mrdc.memory.encode import Encoded, Encoder, Item
from mrdc.memory.fade import faded, fitting_levels, least_cost, sizes_of
from mrdc.memory.fill import Cost, Growing, Skip, attempt, check_filled, fill
from mrdc.memory.names import IndexCost
from mrdc.memory.photos import Index
from mrdc.memory.segments import Held
from mrdc.memory.streams import cut_overall, priorities, wanted, with_more

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
    ) -> None:
        """Store new classes, or other images of classes held, as many as fit."""
        encoder = self._encoder()
        more = coming(self, ranked, seen, encoder)
        entry, budget = entry_cost(self, self.budget, more.values), self.budget
        bytes_left = room(self, budget, more)
        others = [images for n, images in self._classes.items() if n not in ranked]
        held, cost = self._terms(others, entry)
        write = self._spool.append if self._spool else None
        with workers(threads) as pool:
            filled = fill(
                ranked, bytes_left, held, encoder, pool, cost,
                spool=write, skip=skip, progress=progress,
            )  # fmt: skip
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

    def _offer(
        self,
        arriving: Mapping[int, Sequence[Item]],
        seen: Mapping[int, int],
        seed: int,
        overall: bool,
        pool: Executor,
        skip: Skip | None,
    ) -> None:
        """Store arriving images beside those held, as many as fit, lowest priority first."""
        entry, left = entry_cost(self, self.budget), room(self, self.budget)
        costs = {label: images.costs(entry) for label, images in self._classes.items()}
        arriving = wanted(self._classes, arriving, costs, seed, left, overall)
        if not arriving:
            return
        encoder = self._encoder()
        more = coming(self, arriving, seen, encoder)
        entry, left = entry_cost(self, self.budget, more.values), room(self, self.budget, more)
        classes = dict(self._classes)
        for label, images in self._encoded_for(arriving, encoder, pool, skip).items():
            classes[label] = with_more(classes.get(label), images, seed, label, overall)
        if not overall:
            self._fit(classes, left, entry)
            return
        keys = {n: priorities(seed, n, images.names) for n, images in classes.items()}
        costs = {n: images.costs(entry) for n, images in classes.items()}
        kept = cut_overall(keys, costs, left)
        self._check_room(kept, classes, left)
        self._replace(
            {
                n: images if kept[n] == list(range(len(images))) else images.take(kept[n])
                for n, images in classes.items()
            }
        )

    def _encoded_for(
        self,
        arriving: Mapping[int, Sequence[Item]],
        encoder: Encoder,
        pool: Executor,
        skip: Skip | None,
    ) -> dict[int, Held]:
        """Arriving images as they are stored, by label, without those that cannot be read."""
        pairs = [(label, item) for label, items in arriving.items() for item in items]
        made: dict[int, list[Encoded]] = {}
        for (label, _), image in ordered(pool, lambda pair: attempt(encoder, pair[1]), pairs):
            if isinstance(image, Encoded):
                made.setdefault(label, []).append(image)
            elif skip is None:
                raise image
            else:
                skip(image)
        return {label: self._held(images) for label, images in made.items()}

    def _held(self, images: Sequence[Encoded]) -> Held:
        """Images in one place."""
        stored = [image.body + image.values for image in images]
        sizes = list(map(len, stored))
        starts = list(accumulate(sizes, initial=0))[:-1]
        if self._spool is not None:
            starts = [self._spool.append(part) for part in stored]
        return Held.of(images, starts, sizes, self._spool)

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
        return replace(images, segments=(self._held(after),))

    def _check_room(
        self, kept: Mapping[int, object], classes: Mapping[int, ClassImages], left: int
    ) -> None:
        """Refuse a class that would hold no image."""
        for label in (label for label, images in kept.items() if not images):
            firsts = sum(int(images.sizes[0]) for images in classes.values())
            raise BudgetError(
                f"the budget leaves {max(left, 0):,} bytes for the images of {len(classes)} "
                f"classes, so no image of class {self._name(label)!r} fits: the first images of "
                f"all classes take {firsts:,} bytes together; raise the budget"
            )

    def _replace(self, classes: dict[int, ClassImages]) -> None:
        """Hold these images."""
        self._classes, self._index, self._loaded = classes, Index(classes), None
