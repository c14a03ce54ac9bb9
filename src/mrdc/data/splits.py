"""Training and test images of a source.

    textures              synthetic, generated in memory
    cifar100:FOLDER       where cifar-100-python.tar.gz was unpacked
    imagenet-sub:FOLDER   100 classes of ImageNet, drawn as in LUCIR and MRDC
    imagenet-similar:FOLDER, imagenet-dissimilar:FOLDER
                          100 consecutive classes, or ten of every hundred (App. B.1)
    FOLDER                CUB-200-2011, Tiny-ImageNet or ImageNet as published; or train/ and
                          test/ (or val/) folders of class folders
    anything else         a form that `read_images` reads: some images of each class are held out

Both splits have the same classes, sorted by name, and at least one image of each.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from mrdc._utils.errors import DataError, UsageError
from mrdc._utils.registry import Registry
from mrdc.data.cifar import cifar100, superclasses
from mrdc.data.coco import is_coco
from mrdc.data.files import CLASSES
from mrdc.data.images import ImageSet, read_images, some_of
from mrdc.data.published import DRAWS, imagenet, inside, published
from mrdc.data.textures import textures_splits


@dataclass(frozen=True)
class Splits:
    """Training and test images of the same classes, none of them empty.

    Attributes:
        train: images to learn from and to store.
        test: images to measure accuracy on, with the same classes in the same order.
        held_out: test images were set aside from training images, as the source has no test split.
        superclasses: the superclass of each class, if the source knows it.
    """

    train: ImageSet
    test: ImageSet
    held_out: bool
    superclasses: tuple[str, ...] | None = None


def open_splits(
    source: str | os.PathLike[str],
    *,
    holdout: float = 0.2,
    seed: int = 0,
    missing: bool = False,
) -> Splits:
    """Open training and test images of a source in one of the forms above.

    Args:
        source: a name, a kind with a folder, or a path.
        holdout: share of each class to set aside if the source has no test split.
        seed: chooses the images that are set aside.
        missing: accept missing files in a CSV; loading one raises an ImageError.

    Raises:
        UsageError: `holdout` is not between 0 and 1, or `seed` is negative.
        DataError: no such source, not in one of the forms, or classes that differ or are empty.
    """
    if not 0 < holdout < 1:
        raise UsageError(f"holdout must lie between 0 and 1, got {holdout}")
    if seed < 0:
        raise UsageError(f"seed must be 0 or more, got {seed}")
    load, path = named(source), Path(source)
    if load is not None:
        return load()
    if not path.exists():
        raise DataError(f"{path}: no such folder or file; give {CLASSES}; or {names()}")
    if is_coco(path):
        raise DataError(f"{path}: scenes with boxes, but classes are needed; give {CLASSES}")
    root = inside(path)
    pair = published(root)
    if pair is not None:
        return _paired(root, *pair)
    return _set_aside(root, read_images(root, missing), holdout, seed)


def named(source: str | os.PathLike[str]) -> Callable[[], Splits] | None:
    """Loader of a built-in data set, or of a KIND:FOLDER; None for a path."""
    name = os.fspath(source)
    if Path(name).exists():
        return None
    kind, _, folder = name.partition(":")
    if kind in KINDS and folder:
        return partial(KINDS[kind], Path(folder).expanduser())
    if name not in DATASETS:
        DATASETS.discover()
    return DATASETS.find(name) if name in DATASETS else None


def names() -> str:
    """Names that a source can have, for a message."""
    return ", ".join([*DATASETS, *(f"{kind}:FOLDER" for kind in KINDS)])


def _paired(where: Path, train: ImageSet, test: ImageSet) -> Splits:
    """Check that both splits have the same classes and no empty one."""
    for one, other, side in ((train, test, "training"), (test, train, "test")):
        alone = [name for name in one.classes if name not in other.classes]
        if alone:
            raise DataError(
                f"{where}: only the {side} split has {some_of(alone)}; "
                "both splits must have the same classes"
            )
        empty = [name for name, photos in zip(one.classes, one.photos, strict=True) if not photos]
        if empty:
            raise DataError(f"{where}: no {side} image of {some_of(empty)}; each class needs one")
    return Splits(train, test, held_out=False)


def _set_aside(where: Path, images: ImageSet, holdout: float, seed: int) -> Splits:
    """Hold out a share of each class, at least one image, as the test split."""
    kept: list[list[int]] = []
    aside: list[list[int]] = []
    for label, photos in enumerate(images.photos):
        count = len(photos)
        if count < 2:
            raise DataError(
                f"{where}: class {images.classes[label]!r} has {count} image(s); without a test "
                "split each class needs 2, one of which is set aside for testing"
            )
        order = np.random.default_rng((seed, label)).permutation(count).tolist()
        share = min(max(round(holdout * count), 1), count - 1)
        aside.append(sorted(order[:share]))
        kept.append(sorted(order[share:]))
    return Splits(images.keep(kept), images.keep(aside), held_out=True)


def _textures() -> Splits:
    return Splits(*textures_splits(), held_out=False)


def _cifar100(root: Path) -> Splits:
    splits = _paired(root, *cifar100(root))
    return replace(splits, superclasses=superclasses(splits.train.classes))


def _imagenet(kind: str, root: Path) -> Splits:
    return _paired(root, *imagenet(root, kind))


DATASETS: Registry[Callable[[], Splits]] = Registry("data set", "datasets", {"textures": _textures})
KINDS: dict[str, Callable[[Path], Splits]] = {
    "cifar100": _cifar100,
    **{kind: partial(_imagenet, kind) for kind in DRAWS},
}
