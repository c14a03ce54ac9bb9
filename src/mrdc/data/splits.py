"""Training and test images: published data sets in their own layout, folders, or a share set aside.

    textures              synthetic, made on the spot
    cifar100:FOLDER       where cifar-100-python.tar.gz was unpacked
    imagenet-sub:FOLDER   ImageNet, of which 100 classes are drawn as LUCIR and MRDC do
    imagenet-similar:FOLDER, imagenet-dissimilar:FOLDER
                          100 classes that stand together, or ten from every hundred (App. B.1)
    FOLDER                CUB-200-2011, Tiny-ImageNet or ImageNet as published; or train/ and
                          test/ (or val/) folders of class folders
    anything else         what `read_images` reads: some images of each class are set aside

Both sides of every source have the same classes, by sorted names, and none is empty.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from mrdc._utils.errors import DataError, UsageError
from mrdc.data.cifar import cifar100, superclasses
from mrdc.data.coco import is_coco
from mrdc.data.images import (
    CLASSES,
    TESTS,
    TRAIN,
    ImageSet,
    class_folders,
    file_photo,
    file_size,
    gather,
    read_images,
    some_of,
    split_folders,
    sub_folders,
)
from mrdc.data.photo import Photo
from mrdc.data.textures import textures_splits

ANNOTATIONS = "val_annotations.txt"
NESTED = ("CUB_200_2011", "tiny-imagenet-200", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
IMAGENET, SUB, SUB_SEED = 1000, 100, 1993


@dataclass(frozen=True)
class Splits:
    """Training and test images of the same classes, none of them empty.

    Attributes:
        train: what may be learned from and stored.
        test: what accuracy is measured on; its classes stand as those of `train`.
        held_out: the source has no test split, so test images were set aside from its images.
        superclasses: by class, where the source knows them.
    """

    train: ImageSet
    test: ImageSet
    held_out: bool
    superclasses: tuple[str, ...] | None = None


def open_splits(source: str | os.PathLike[str], *, holdout: float = 0.2, seed: int = 0) -> Splits:
    """Training and test images of a source in one of the forms above.

    Args:
        source: a name, a kind with a folder, or a path.
        holdout: share of each class to set aside where the source has no test split.
        seed: which images are set aside.

    Raises:
        UsageError: `holdout` is not between 0 and 1, or `seed` is negative.
        DataError: nothing there, not in one of the forms, or classes that differ or are empty.
    """
    if not 0 < holdout < 1:
        raise UsageError(f"holdout must lie between 0 and 1, got {holdout}")
    if seed < 0:
        raise UsageError(f"seed must be 0 or more, got {seed}")
    name, path = os.fspath(source), Path(source)
    if is_coco(path):
        raise DataError(f"{path}: scenes with boxes, but classes are needed; give {CLASSES}")
    if path.exists():
        path = _inside(path)
        return _published(path) or _set_aside(path, holdout, seed)
    if name in DATASETS:
        return DATASETS[name]()
    kind, _, folder = name.partition(":")
    if kind in KINDS and folder:
        return KINDS[kind](Path(folder).expanduser())
    choices = ", ".join([*DATASETS, *(f"{kind}:FOLDER" for kind in KINDS)])
    raise DataError(f"{name}: no such folder or file; give {CLASSES}; or {choices}")


def _inside(root: Path) -> Path:
    """The folder that the archive of a published set makes, or the folder itself."""
    return next((root / nested for nested in NESTED if (root / nested).is_dir()), root)


def _published(root: Path) -> Splits | None:
    """A folder that has a test split of its own; None for all else."""
    if (root / "train_test_split.txt").is_file():
        return _cub(root)
    found = _train_and_test(root)
    if found is None:
        return None
    train, test = found
    return _paired(
        root, class_folders(train), _annotated(test) if _flat(test) else class_folders(test)
    )


def _train_and_test(root: Path) -> tuple[Path, Path] | None:
    """The training folder and the first labelled test folder; None without a test split."""
    splits = split_folders(root) if root.is_dir() else {}
    tests = [splits[name] for name in TESTS if name in splits]
    for test in tests:
        if not _flat(test) or (test / ANNOTATIONS).is_file():
            return splits[TRAIN], test
    if tests:
        flat = tests[-1]
        raise DataError(
            f"{flat}: no class folders; {flat.name} must have one folder for each class, "
            f"as {TRAIN} has"
        )
    return None


def _flat(test: Path) -> bool:
    """Whether images lie in no class folders, but in `test` itself or in images/."""
    return {folder.name for folder in sub_folders(test)} <= {"images"}


def _paired(where: Path, train: ImageSet, test: ImageSet) -> Splits:
    """Both, once it is sure that they have the same classes and no empty one."""
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


def _cub(root: Path) -> Splits:
    """CUB-200-2011: lists by image number beside images/."""
    paths = _table(root / "images.txt", "number path", " ")
    labels = _table(root / "image_class_labels.txt", "number class", " ")
    sides = _table(root / "train_test_split.txt", "number 0|1", " ")
    names = _table(root / "classes.txt", "class name", " ")
    entries: dict[str | None, list[tuple[str, Photo, int]]] = {"1": [], "0": []}
    for number, path in paths.items():
        name, side = names.get(labels.get(number, "")), entries.get(sides.get(number))
        if name is None or side is None:
            raise DataError(
                f"{root}: image {number} of images.txt needs a class of classes.txt in "
                "image_class_labels.txt, and 0 or 1 in train_test_split.txt"
            )
        side.append((name, *_listed(root / "images" / path, path)))
    classes = sorted(names.values())
    return _paired(root, gather(entries["1"], classes, []), gather(entries["0"], classes, []))


def _annotated(val: Path) -> ImageSet:
    """Tiny-ImageNet's val/: all images in one folder, and a list with their classes."""
    labels = _table(val / ANNOTATIONS, "file class", "\t")
    entries = [
        (label, *_listed(val / "images" / name, f"images/{name}")) for name, label in labels.items()
    ]
    return gather(entries, sorted(set(labels.values())), [])


def _listed(file: Path, name: str) -> tuple[Photo, int]:
    return file_photo(str(file), name), file_size(str(file))


def _table(path: Path, form: str, separator: str) -> dict[str, str]:
    """Second column by the first, of a published list; columns after a tab are dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    table: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        key, _, rest = line.partition(separator)
        value = rest.partition("\t")[0].strip()
        if not key or not value or key in table:
            raise DataError(f"{path}: line {number} must be '{form}', each once, got {line!r}")
        table[key] = value
    return table


def _imagenet(kind: str, root: Path) -> Splits:
    """100 classes of ImageNet, in sorted order: `DRAWS` says which."""
    found = _train_and_test(_inside(root))
    if found is None:
        raise DataError(f"{root}: no train/ and val/ there; give {kind} ImageNet's folder")
    train, test = found
    wnids = [folder.name for folder in sub_folders(train)]
    if len(wnids) != IMAGENET:
        raise DataError(
            f"{train}: {kind} is drawn from the {IMAGENET} classes of ImageNet, found {len(wnids)}"
        )
    only = {wnids[index] for index in DRAWS[kind]()}
    return _paired(root, class_folders(train, only), class_folders(test, only))


def _cifar100(root: Path) -> Splits:
    pair = _paired(root, *cifar100(root))
    return replace(pair, superclasses=superclasses(pair.train.classes))


def _set_aside(path: Path, holdout: float, seed: int) -> Splits:
    """A share of each class, at least one image, becomes the test split."""
    images = read_images(path)
    kept: list[list[int]] = []
    aside: list[list[int]] = []
    for label, photos in enumerate(images.photos):
        count = len(photos)
        if count < 2:
            raise DataError(
                f"{path}: class {images.classes[label]!r} has {count} image(s); without a test "
                "split each class needs 2, one of which is set aside for testing"
            )
        order = np.random.default_rng((seed, label)).permutation(count).tolist()
        share = min(max(round(holdout * count), 1), count - 1)
        aside.append(sorted(order[:share]))
        kept.append(sorted(order[share:]))
    return Splits(_at(images, kept), _at(images, aside), held_out=True)


def _at(images: ImageSet, places: list[list[int]]) -> ImageSet:
    """The photos at these places of each class."""
    return replace(
        images,
        photos=tuple([of[i] for i in at] for of, at in zip(images.photos, places, strict=True)),
        sizes=tuple([of[i] for i in at] for of, at in zip(images.sizes, places, strict=True)),
    )


def _textures() -> Splits:
    return Splits(*textures_splits(), held_out=False)


DATASETS: dict[str, Callable[[], Splits]] = {"textures": _textures}
DRAWS: dict[str, Callable[[], Iterable[int]]] = {
    "imagenet-sub": lambda: np.random.RandomState(SUB_SEED).choice(IMAGENET, SUB, replace=False),
    "imagenet-similar": lambda: range(SUB),
    "imagenet-dissimilar": lambda: [100 * ten + one for ten in range(10) for one in range(10)],
}
KINDS: dict[str, Callable[[Path], Splits]] = {
    "cifar100": _cifar100,
    **{kind: partial(_imagenet, kind) for kind in DRAWS},
}
