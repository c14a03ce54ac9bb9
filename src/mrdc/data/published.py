"""Published data sets in their own layout: CIFAR-100, CUB-200-2011, Tiny-ImageNet, ImageNet."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.exceptions import VisibleDeprecationWarning

from mrdc._utils.errors import DataError
from mrdc.data.columns import UnlabelledError
from mrdc.data.files import (
    class_folders,
    inner_splits,
    read_images,
    sharded,
    split_folders,
    sub_folders,
)
from mrdc.data.images import (
    TESTS,
    TRAIN,
    Columns,
    Entry,
    ImageSet,
    Splits,
    gather,
    paired,
    path_entry,
)
from mrdc.data.photo import Photo
from mrdc.data.shards import read_shards, shard_folder

ANNOTATIONS = "val_annotations.txt"
NESTED = ("CUB_200_2011", "tiny-imagenet-200", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
IMAGENET, SUB, SUB_SEED = 1000, 100, 1993
FIRST = "n01440764"  # ImageNet's first class
DRAWS: dict[str, Callable[[], Iterable[int]]] = {
    "imagenet-sub": lambda: np.random.RandomState(SUB_SEED).choice(IMAGENET, SUB, replace=False),
    "imagenet-similar": lambda: range(SUB),
    "imagenet-dissimilar": lambda: [100 * ten + one for ten in range(10) for one in range(10)],
}
CIFAR = "cifar-100-python"
# The published table. The files hold it as well, but torchvision does not pass it on.
SUPERCLASSES = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}


def inside(root: Path) -> Path:
    """The folder that the archive of a published set creates in `root`, or `root` itself."""
    return next((root / nested for nested in NESTED if (root / nested).is_dir()), root)


def published(root: Path, columns: Columns | None = None) -> Splits | None:
    """Training and test images of a folder; None if it has no test split."""
    if (root / "train_test_split.txt").is_file():
        return _cub(root)
    if not root.is_dir():
        return None
    shards = sharded(root)
    if tests := [shards[name] for name in TESTS if name in shards]:
        return paired(root, read_shards(shards[TRAIN], columns), _labelled(tests, columns))
    if inner := inner_splits(root):
        return paired(root, class_folders(root, split=TRAIN), class_folders(root, split=inner))
    found = _train_and_test(root)
    if found is None:
        return None
    train, test = found
    tested = _annotated(test) if _flat(test) else read_images(test, columns=columns)
    return paired(root, read_images(train, columns=columns), tested)


def _labelled(tests: Sequence[Sequence[Path]], columns: Columns | None) -> ImageSet:
    """The first of some splits whose images have classes."""
    for files in tests[:-1]:
        with suppress(UnlabelledError):
            return read_shards(files, columns)
    return read_shards(tests[-1], columns)


def imagenet(kind: str, root: Path) -> Splits:
    """100 classes of ImageNet, sorted; `DRAWS` chooses them by `kind`."""
    found = _train_and_test(inside(root))
    if found is None:
        raise DataError(f"{root}: no train/ and val/ in it; give {kind} ImageNet's folder")
    train, test = found
    wnids = [folder.name for folder in sub_folders(train)]
    if len(wnids) != IMAGENET:
        needed = f"{kind} needs the {IMAGENET} classes of ImageNet"
        raise DataError(f"{train}: {needed}, found {len(wnids)}")
    only = {wnids[index] for index in DRAWS[kind]()}
    return paired(root, class_folders(train, only), class_folders(test, only))


def has_imagenet(root: Path) -> bool:
    """Check for the training images of all classes of ImageNet."""
    train = split_folders(inside(root)).get(TRAIN) if root.is_dir() else None
    names = [] if train is None else [folder.name for folder in sub_folders(train)]
    return len(names) == IMAGENET and names[0] == FIRST


def _train_and_test(root: Path) -> tuple[Path, Path] | None:
    """The training folder and the first labelled test folder; None without a test split."""
    splits = split_folders(root) if root.is_dir() else {}
    tests = [splits[name] for name in TESTS if name in splits]
    for test in tests:
        if not _flat(test) or (test / ANNOTATIONS).is_file():
            return splits[TRAIN], test
    if tests:
        flat = tests[-1]
        rule = f"{flat.name} must have one folder for each class, like {TRAIN}"
        raise DataError(f"{flat}: no class folders; {rule}")
    return None


def _flat(test: Path) -> bool:
    """Check for images that lie in `test` itself or in images/, not in class folders or shards."""
    return not shard_folder(test) and {folder.name for folder in sub_folders(test)} <= {"images"}


def _cub(root: Path) -> Splits:
    """CUB-200-2011: lists by image number next to images/."""
    paths = _table(root / "images.txt", "number path", " ")
    labels = _table(root / "image_class_labels.txt", "number class", " ")
    sides = _table(root / "train_test_split.txt", "number 0|1", " ")
    names = _table(root / "classes.txt", "class name", " ")
    entries: dict[str, list[Entry]] = {"1": [], "0": []}
    for number, path in paths.items():
        name, side = names.get(labels.get(number, "")), sides.get(number, "")
        if name is None or side not in entries:
            raise DataError(
                f"{root}: image {number} of images.txt needs a class of classes.txt in "
                "image_class_labels.txt, and 0 or 1 in train_test_split.txt"
            )
        entries[side].append(path_entry(name, root / "images" / path, path))
    classes = sorted(names.values())
    return paired(root, gather(entries["1"], classes), gather(entries["0"], classes))


def _annotated(val: Path) -> ImageSet:
    """Tiny-ImageNet's val/: all images in one folder, and a list of their classes."""
    labels = _table(val / ANNOTATIONS, "file class", "\t")
    entries = [
        path_entry(label, val / "images" / name, f"images/{name}") for name, label in labels.items()
    ]
    return gather(entries, sorted(set(labels.values())))


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


def cifar100(root: Path) -> Splits:
    """Open training and test images in cifar-100-python/, or in the folder that holds it.

    Photos load as pixels, and the size of an image is that of its raw pixels. torchvision checks
    the files against the published MD5 before it unpickles them.
    """
    base = root.parent if root.name == CIFAR else root
    splits = paired(root, _part(base, "train"), _part(base, "test"))
    groups = {name: group for group, names in SUPERCLASSES.items() for name in names}
    return replace(splits, superclasses=tuple(groups[name] for name in splits.train.classes))


def _part(root: Path, part: str) -> ImageSet:
    from torchvision.datasets import CIFAR100

    try:
        with warnings.catch_warnings():
            # Numpy 2.4.0 warns about types in the files (pytorch/vision#9340).
            warnings.simplefilter("ignore", VisibleDeprecationWarning)
            data = CIFAR100(root, train=part == "train", download=False)
    except (RuntimeError, OSError):
        fix = f"unpack cifar-100-python.tar.gz ({CIFAR100.url}) in {root}"
        bad = f"{root / CIFAR}: missing, or not CIFAR-100 as published"
        raise DataError(f"{bad}; {fix}") from None
    entries = [
        (
            data.classes[label],
            Photo(f"{part}/{number:05d}", partial(np.ascontiguousarray, image)),
            image.nbytes,
        )
        for number, (label, image) in enumerate(zip(data.targets, data.data, strict=True))
    ]
    return gather(entries, sorted(data.classes))
