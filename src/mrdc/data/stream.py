"""The class-incremental protocol: an order of classes, cut into phases (Sec. 5.1).

Labels are put into stream order once, here; nothing after this sees another label.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Literal, cast

import numpy as np

from mrdc._utils.errors import DataError, UsageError
from mrdc.data.images import ImageSet, read_pairs, some_of
from mrdc.data.splits import Splits

SEED = 1993  # of the order that the papers share
Kind = Literal["similar", "dissimilar"]


@dataclass(frozen=True)
class Stream:
    """Classes that arrive in phases; a label is a place in the order of arrival.

    Attributes:
        train: all training images, classes in stream order.
        test: all test images, likewise.
        sizes: classes of each phase.
    """

    train: ImageSet
    test: ImageSet
    sizes: tuple[int, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in stream order."""
        return self.train.classes

    @property
    def phases(self) -> list[range]:
        """Labels of each phase."""
        ends = list(accumulate(self.sizes))
        return [range(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    @property
    def original_bytes(self) -> float:
        """Mean bytes of a training image as it is, over all phases."""
        return self.train.original_bytes

    def seen(self, phase: int) -> int:
        """Classes seen once this phase is over."""
        return sum(self.sizes[: phase + 1])

    def fresh(self, phase: int) -> ImageSet:
        """Training images of this phase's classes.

        Label i of the result is label phases[phase].start + i of the stream.
        """
        return self.train.pick(self.phases[phase])

    def fingerprint(self) -> str:
        """SHA-256 of the classes in order, the phases, and the ids and bytes of all photos.

        Streams of one fingerprint show the same images in the same phases, as far as
        names and sizes tell; contents are not read.
        """
        digest = hashlib.sha256(json.dumps([self.classes, self.sizes]).encode())
        for images in (self.train, self.test):
            for photos, sizes in zip(images.photos, images.sizes, strict=True):
                digest.update(json.dumps([[photo.id for photo in photos], sizes]).encode())
        return digest.hexdigest()


def make_stream(
    splits: Splits,
    phases: int,
    first: str | int = "half",
    order: str | int = SEED,
    superclasses: Path | None = None,
) -> Stream:
    """Put the classes in an order and cut it into phases.

    Args:
        splits: training and test images.
        phases: as for `phase_sizes`.
        first: as for `phase_sizes`.
        order: a seed for `class_order`; "sorted", which leaves the classes as they stand;
            or "similar" or "dissimilar", as for `superclass_order`.
        superclasses: CSV of class,superclass, before what the data set says itself; only
            "similar" and "dissimilar" look at it.

    Raises:
        UsageError: an impossible cut, an unknown order, or superclasses that nothing says.
        DataError: fewer than two classes, or a CSV that does not fit them.
    """
    assert splits.train.classes == splits.test.classes
    count = len(splits.train.classes)
    if count < 2:
        raise DataError(f"a stream needs at least 2 classes, the data set has {count}")
    sizes = phase_sizes(count, phases, first)
    labels = _order(splits, order, superclasses)
    return Stream(splits.train.pick(labels), splits.test.pick(labels), sizes)


def _order(splits: Splits, order: str | int, superclasses: Path | None) -> list[int]:
    classes = splits.train.classes
    if order in ("similar", "dissimilar"):
        groups = splits.superclasses
        if superclasses is not None:
            groups = read_superclasses(superclasses, classes)
        if groups is None:
            raise UsageError(
                f"order {order} needs the superclass of each class, which this data set does not "
                "say; give superclasses, a CSV of class,superclass"
            )
        return superclass_order(groups, cast(Kind, order), SEED)
    if order == "sorted":
        return list(range(len(classes)))
    return class_order(
        len(classes), _number(order, "order must be a seed, sorted, similar or dissimilar")
    )


def class_order(classes: int, seed: int) -> list[int]:
    """All labels, shuffled by numpy's legacy generator as in the papers' code."""
    order = np.arange(classes)
    _legacy(seed).shuffle(order)
    return order.tolist()


def superclass_order(superclasses: Sequence[str], kind: Kind, seed: int) -> list[int]:
    """All labels so that a phase is made of few superclasses, or of as many as can be.

    "similar" puts the classes of a superclass side by side; "dissimilar" takes one class of
    each superclass in turn. Superclasses, and classes within one, are shuffled by the seed.
    The question is that of App. B.1, but there it is asked of two sets of classes.
    """
    rng = _legacy(seed)
    names = sorted(set(superclasses))
    groups: list[list[int]] = []
    for place in rng.permutation(len(names)).tolist():
        members = [label for label, name in enumerate(superclasses) if name == names[place]]
        groups.append(rng.permutation(members).tolist())
    if kind == "similar":
        return [label for group in groups for label in group]
    return [label for turn in zip_longest(*groups) for label in turn if label is not None]


def _legacy(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise UsageError(f"the seed of an order must be from 0 to 2**32 - 1, got {seed}")
    return np.random.RandomState(seed)


def read_superclasses(path: Path, classes: Sequence[str]) -> tuple[str, ...]:
    """The superclass of each class, from a CSV of class,superclass with or without a header.

    Raises:
        DataError: cannot be read, or a class that is missing, twice there, or unknown.
    """
    table: dict[str, str] = {}
    for line, name, group in read_pairs(path, "class", "superclass"):
        if name in table or name not in classes:
            fault = "is there twice" if name in table else "is no class of the data set"
            raise DataError(f"{path}: line {line}: {name!r} {fault}; give each class once")
        table[name] = group
    missing = [name for name in classes if name not in table]
    if missing:
        raise DataError(f"{path}: no superclass for {some_of(missing)}; give each class once")
    return tuple(table[name] for name in classes)


def phase_sizes(classes: int, phases: int, first: str | int) -> tuple[int, ...]:
    """Classes of each phase, as even as can be and larger ones first.

    Args:
        classes: how many there are.
        phases: how many phases share them, not counting a larger first one.
        first: "half" puts half the classes (rounded up) into a phase before those, a number
            that many, and "equal" has no such phase.

    Raises:
        UsageError: a phase would be empty, or `first` is none of these.
    """
    if phases < 1:
        raise UsageError(f"phases must be at least 1, got {phases}")
    start: tuple[int, ...] = ()
    if first == "half":
        start = ((classes + 1) // 2,)
    elif first != "equal":
        start = (_number(first, "first must be half, equal or a number of classes"),)
        if start[0] < 1:
            raise UsageError(f"first must be at least 1 class, got {start[0]}")
    left = classes - sum(start)
    if phases > left:
        after = f" after a first phase of {sum(start)}" if start else ""
        raise UsageError(
            f"{classes} classes cannot make {phases} phases{after}: "
            f"{max(left, 0)} phases at most, of one class each"
        )
    share, extra = divmod(left, phases)
    return start + (share + 1,) * extra + (share,) * (phases - extra)


def _number(value: str | int, rule: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{rule}, got {value!r}") from None
