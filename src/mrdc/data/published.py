"""Published data sets in their own layout: CUB-200-2011, Tiny-ImageNet, ImageNet."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from mrdc._utils.errors import DataError
from mrdc.data.files import Listing, file_photo, file_size
from mrdc.data.folders import TESTS, TRAIN, class_folders, split_folders, sub_folders
from mrdc.data.images import ImageSet, gather
from mrdc.data.photo import Photo

ANNOTATIONS = "val_annotations.txt"
NESTED = ("CUB_200_2011", "tiny-imagenet-200", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
IMAGENET, SUB, SUB_SEED = 1000, 100, 1993
DRAWS: dict[str, Callable[[], Iterable[int]]] = {
    "imagenet-sub": lambda: np.random.RandomState(SUB_SEED).choice(IMAGENET, SUB, replace=False),
    "imagenet-similar": lambda: range(SUB),
    "imagenet-dissimilar": lambda: [100 * ten + one for ten in range(10) for one in range(10)],
}

Pair = tuple[ImageSet, ImageSet]  # training and test images


def inside(root: Path) -> Path:
    """The folder that the archive of a published set creates in `root`, or `root` itself."""
    return next((root / nested for nested in NESTED if (root / nested).is_dir()), root)


def published(root: Path) -> Pair | None:
    """Training and test images of a folder; None if it has no test split.

    Raises:
        DataError: splits that cannot be used.
    """
    if (root / "train_test_split.txt").is_file():
        return _cub(root)
    found = _train_and_test(root)
    if found is None:
        return None
    train, test = found
    tested = _annotated(test) if _flat(test) else class_folders(test)
    return gather(class_folders(train)), gather(tested)


def imagenet(root: Path, kind: str) -> Pair:
    """100 classes of ImageNet, sorted; `DRAWS` chooses them by `kind`.

    Raises:
        DataError: not ImageNet's folder.
    """
    found = _train_and_test(inside(root))
    if found is None:
        raise DataError(f"{root}: no train/ and val/ in it; give {kind} ImageNet's folder")
    train, test = found
    wnids = [folder.name for folder in sub_folders(train)]
    if len(wnids) != IMAGENET:
        raise DataError(
            f"{train}: {kind} needs the {IMAGENET} classes of ImageNet, found {len(wnids)}"
        )
    only = {wnids[index] for index in DRAWS[kind]()}
    return gather(class_folders(train, only)), gather(class_folders(test, only))


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
            f"like {TRAIN}"
        )
    return None


def _flat(test: Path) -> bool:
    """Check for images that lie in `test` itself or in images/, not in class folders."""
    return {folder.name for folder in sub_folders(test)} <= {"images"}


def _cub(root: Path) -> Pair:
    """CUB-200-2011: lists by image number next to images/."""
    paths = _table(root / "images.txt", "number path", " ")
    labels = _table(root / "image_class_labels.txt", "number class", " ")
    sides = _table(root / "train_test_split.txt", "number 0|1", " ")
    names = _table(root / "classes.txt", "class name", " ")
    classes = sorted(names.values())
    train, test = Listing([], classes, []), Listing([], classes, [])
    listings = {"1": train, "0": test}
    for number, path in paths.items():
        name, listing = names.get(labels.get(number, "")), listings.get(sides.get(number, ""))
        if name is None or listing is None:
            raise DataError(
                f"{root}: image {number} of images.txt needs a class of classes.txt in "
                "image_class_labels.txt, and 0 or 1 in train_test_split.txt"
            )
        listing.entries.append((name, *_listed(root / "images" / path, path)))
    return gather(train), gather(test)


def _annotated(val: Path) -> Listing:
    """Tiny-ImageNet's val/: all images in one folder, and a list of their classes."""
    labels = _table(val / ANNOTATIONS, "file class", "\t")
    entries = [
        (label, *_listed(val / "images" / name, f"images/{name}")) for name, label in labels.items()
    ]
    return Listing(entries, sorted(set(labels.values())), [])


def _listed(file: Path, name: str) -> tuple[Photo, int]:
    return file_photo(str(file), name), file_size(str(file)) or 0


def _table(path: Path, form: str, separator: str) -> dict[str, str]:
    """Second column of a published list by the first; columns after a tab are dropped."""
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
            raise DataError(f"{path}: line {number} must be a unique '{form}', got {line!r}")
        table[key] = value
    return table
