"""The class-incremental protocol: an order of classes, cut into phases (Sec. 5.1).

Labels are put into stream order once, here; nothing after this sees another label.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from mrdc._utils.errors import DataError, UsageError
from mrdc.data.datasets import Source
from mrdc.data.images import Columns, ImageSet, Splits, some_of
from mrdc.data.order import SEED, order_classes, whole_number
from mrdc.data.splits import open_splits


@dataclass(frozen=True)
class Stream:
    """Classes that arrive in phases; a label is a position in the order of arrival.

    Attributes:
        train: all training images, classes in stream order.
        test: all test images, classes in stream order.
        sizes: number of classes in each phase.
        held_out: test images were set aside from training images.
    """

    train: ImageSet
    test: ImageSet
    sizes: tuple[int, ...]
    held_out: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in stream order."""
        return self.train.classes

    @property
    def phases(self) -> list[range]:
        """Labels of each phase."""
        ends = list(accumulate(self.sizes))
        return [range(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    @property
    def original_bytes(self) -> float:
        """Mean bytes of a training image, over all phases."""
        return self.train.original_bytes

    @property
    def ignored(self) -> list[str]:
        """Files ignored in either split, each with the reason, sorted."""
        return sorted({*self.train.ignored, *self.test.ignored})

    def seen(self, phase: int) -> int:
        """Number of classes seen by the end of a phase."""
        return sum(self.sizes[: phase + 1])

    def fresh(self, phase: int) -> ImageSet:
        """Training images of a phase's classes.

        Label i of the result is label phases[phase].start + i of the stream.
        """
        return self.train.pick(self.phases[phase])

    def without(self, train_ids: Collection[str] = (), test_ids: Collection[str] = ()) -> "Stream":
        """The stream without the training and test photos with these ids.

        Raises:
            DataError: a class would be left without a training or a test image.
        """
        train = _without(self.train, set(train_ids), "training")
        return replace(self, train=train, test=_without(self.test, set(test_ids), "test"))

    def fingerprint(self) -> str:
        """SHA-256 of the classes in order, the phases, and the ids and bytes of all photos.

        Streams with one fingerprint have the same images in the same phases, judging by names
        and sizes; contents are not read.
        """
        digest = hashlib.sha256(json.dumps([self.classes, self.sizes]).encode())
        for images in (self.train, self.test):
            for photos, sizes in zip(images.photos, images.sizes, strict=True):
                digest.update(json.dumps([[photo.id for photo in photos], sizes]).encode())
        return digest.hexdigest()


def _without(images: ImageSet, ids: set[str], side: str) -> ImageSet:
    kept = [[i for i, photo in enumerate(of) if photo.id not in ids] for of in images.photos]
    empty = [name for name, places in zip(images.classes, kept, strict=True) if not places]
    if empty:
        raise DataError(f"no {side} image of {some_of(empty)} is left; each class needs one")
    return images.keep(kept)


def open_stream(
    source: Source,
    *,
    test: Source | None = None,
    phases: int = 5,
    first: str | int = "half",
    order: str | int = str(SEED),
    superclasses: Path | None = None,
    holdout: float = 0.2,
    missing: bool = False,
    columns: Columns | None = None,
) -> Stream:
    """Open images as a stream of classes.

    Args:
        source, test, holdout, missing, columns: as for `open_splits`.
        phases: how many, after a separate first one.
        first: classes in the first phase: "half", a number, or "equal", as many as in the others.
        order: a seed for the order of the classes, "sorted", "similar" or "dissimilar".
        superclasses: a CSV of class,superclass, for "similar" and "dissimilar".

    Raises:
        MrdcError: images that cannot be used, or not in these phases.
    """
    splits = open_splits(source, test=test, holdout=holdout, missing=missing, columns=columns)
    return make_stream(splits, phases, first, order, superclasses)


def check_stream(stream: Stream) -> None:
    """Refuse a stream that cannot be learned and tested.

    Raises:
        UsageError: phases that do not fit the classes, or without images.
    """
    sizes, classes = stream.sizes, stream.train.classes
    if min(sizes, default=0) < 1 or sum(sizes) != len(classes) or classes != stream.test.classes:
        raise UsageError(
            f"the stream has phases of {', '.join(map(str, sizes)) or 'no'} classes, "
            f"{len(classes)} classes to train on and {len(stream.test.classes)} to test on: each "
            "phase needs a class or more, and both splits the same classes"
        )
    for name, photos in zip(classes, stream.train.photos, strict=True):
        if not photos:
            raise UsageError(f"class {name!r} has no training image")
    for phase, labels in enumerate(stream.phases):
        if not any(stream.test.photos[label] for label in labels):
            raise UsageError(f"phase {phase} has no test image")


def make_stream(
    splits: Splits,
    phases: int,
    first: str | int = "half",
    order: str | int = SEED,
    superclasses: Path | None = None,
) -> Stream:
    """Put the classes in an order and cut it into phases.

    `phases` and `first` are as for `phase_sizes`; `order` is a seed for `class_order`, "sorted" for
    the classes by name, or "similar" or "dissimilar" as for `superclass_order`; `superclasses` is a
    CSV of class,superclass for the latter, used instead of the data set's own.
    """
    assert splits.train.classes == splits.test.classes
    count = len(splits.train.classes)
    if count < 2:
        raise DataError(f"a stream needs at least 2 classes, the data set has {count}")
    sizes = phase_sizes(count, phases, first)
    labels = order_classes(splits, order, superclasses)
    return Stream(splits.train.pick(labels), splits.test.pick(labels), sizes, splits.held_out)


def phase_sizes(classes: int, phases: int, first: str | int) -> tuple[int, ...]:
    """Number of classes in each phase, as even as possible, larger phases first.

    `phases` does not count a separate first one, whose size is `first`: a number of classes, or
    "half" for half of them, rounded up; "equal" for none.
    """
    if phases < 1:
        raise UsageError(f"phases must be at least 1, got {phases}")
    start: tuple[int, ...] = ()
    if first == "half":
        start = ((classes + 1) // 2,)
    elif first != "equal":
        start = (whole_number(first, "first must be half, equal or a number of classes"),)
        if start[0] < 1:
            raise UsageError(f"first must be at least 1 class, got {start[0]}")
    left = classes - sum(start)
    if phases > left:
        after = f" after a first phase of {sum(start)}" if start else ""
        most = f"{max(left, 0)} phases at most, of one class each"
        raise UsageError(f"{classes} classes cannot make {phases} phases{after}: {most}")
    share, extra = divmod(left, phases)
    return start + (share + 1,) * extra + (share,) * (phases - extra)
