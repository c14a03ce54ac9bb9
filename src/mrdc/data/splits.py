"""Sources of images by name or path, and their training and test images.

    textures              synthetic, generated in memory
    cifar100:FOLDER       where cifar-100-python.tar.gz was unpacked
    imagenet-sub:FOLDER   100 classes of ImageNet, drawn as in LUCIR and MRDC
    imagenet-similar:FOLDER, imagenet-dissimilar:FOLDER
                          100 consecutive classes, or ten of every hundred (App. B.1)
    FOLDER                CUB-200-2011, Tiny-ImageNet or ImageNet as published; or train/ and
                          test/ (or val/) folders of class folders
    anything else         a form that `read_images` reads; without a test split, some images of each
                          class are held out

Both splits have the same classes, sorted by name, and at least one image of each.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from mrdc._utils.errors import DataError, UsageError
from mrdc._utils.registry import Registry
from mrdc._utils.store_path import StorePath, as_path
from mrdc._utils.stores import is_url
from mrdc.data.coco import find_layout, is_coco, read_scenes
from mrdc.data.datasets import Source, given_images, source_path
from mrdc.data.files import inner_folder, read_images
from mrdc.data.images import CLASSES, FORMS, Columns, ImageSet, paired
from mrdc.data.images import Splits as Splits
from mrdc.data.published import DRAWS, cifar100, imagenet, inside, published
from mrdc.data.saved import saved_folder
from mrdc.data.shards import find_files, is_pattern
from mrdc.data.textures import textures_splits

SHAPES = "shapes"  # built-in scenes
NOT_SCENES = "scenes with boxes, but classes are needed"


def open_splits(
    source: Source,
    *,
    test: Source | None = None,
    holdout: float = 0.2,
    seed: int = 0,
    missing: bool = False,
    columns: Columns | None = None,
) -> Splits:
    """Open the training and test images of a source.

    Args:
        source: a folder, file or name, as for `mrdc run`; or, as for `plan`, a data set of (image,
            label) or images by class.
        test: test images of the same classes, if they are not in the source.
        holdout: share of each class to test on, chosen by `seed`, if there are no test images.
        missing: accept a CSV that lists files that do not exist; loading one is an ImageError.
        columns: names of the image and the class in a CSV, Parquet or Arrow file.

    Raises:
        MrdcError: images that cannot be used.
    """
    if not 0 < holdout < 1:
        raise UsageError(f"holdout must lie between 0 and 1, got {holdout}")
    if seed < 0:
        raise UsageError(f"seed must be 0 or more, got {seed}")
    if test is not None:
        train, other = (class_images(one, missing, columns) for one in (source, test))
        return paired(source_path(source), train, other)
    if not isinstance(source, str | os.PathLike):
        return _set_aside(source_path(source), given_images(source, columns), holdout, seed)
    load = named(source)
    if load is not None:
        return load()
    path = saved_folder(os.fspath(source)) or _listed(source)
    if not path.exists() and not find_files(path):
        raise DataError(f"{path}: no such folder or file; give {CLASSES}; or {names()}")
    if is_coco(path):
        raise DataError(f"{path}: {NOT_SCENES}; give {CLASSES}")
    root = inside(path)
    root = inner_folder(root) if root.is_dir() else root
    found = published(root, columns)
    return found or _set_aside(root, read_images(root, missing, columns), holdout, seed)


def class_images(source: Source, missing: bool, columns: Columns | None) -> ImageSet:
    """Images of one split, by class."""
    if isinstance(source, str | os.PathLike):
        images = open_images(source, missing, columns)
    else:
        images = given_images(source, columns)
    if images.scenes is not None:
        raise DataError(f"{source_path(source)}: {NOT_SCENES}; give {CLASSES}; or {names()}")
    return images


def open_images(
    source: str | os.PathLike[str], missing: bool = False, columns: Columns | None = None
) -> ImageSet:
    """Open the training images of a data set by name, or of any form that `plan` reads.

    Scenes (COCO: a .json, or a folder) become one class. `missing` and `columns` as for
    `open_splits`; COCO files may list missing images too.
    """
    load, path = named(source), _listed(source)
    if load is not None:
        return load().train
    if not is_coco(path):
        return read_images(path, missing, columns)
    if isinstance(path, StorePath):
        raise DataError(f"{path}: scenes with boxes must be local; copy them")
    layout = None if path.is_file() else find_layout(path)
    scenes = read_scenes(layout.train if layout else path, missing)
    return ImageSet(("images",), ([*scenes.photos],), ([*scenes.sizes],), scenes=scenes)


def _listed(source: str | os.PathLike[str]) -> Path:
    """The path of a source; of a URL, with all objects below it."""
    path = as_path(source)
    return path.listed() if isinstance(path, StorePath) and not is_pattern(path) else path


def check_source(source: str | os.PathLike[str]) -> None:
    """Refuse a source that is not a name, KIND:FOLDER or path, without reading it."""
    name = os.fspath(source)
    kind, _, folder = name.partition(":")
    path = as_path(source)
    if path.exists() or name == SHAPES or saved_folder(name) or find_files(path):
        return
    if kind in KINDS and folder:
        if not Path(folder).expanduser().exists():
            raise DataError(f"{folder}: no such folder or file; give {kind} the data set's folder")
    elif named(name) is None:
        raise DataError(f"{name}: no such folder or file; give {FORMS}; or {names()}, {SHAPES}")


def named(source: str | os.PathLike[str]) -> Callable[[], Splits] | None:
    """Loader of a built-in data set, or of a KIND:FOLDER; None for a path."""
    name = os.fspath(source)
    if is_url(name) or Path(name).exists():
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


def _set_aside(where: Path, images: ImageSet, holdout: float, seed: int) -> Splits:
    """Hold out a share of each class, at least one image, as the test split."""
    kept: list[list[int]] = []
    aside: list[list[int]] = []
    for label, photos in enumerate(images.photos):
        count = len(photos)
        if count < 2:
            few = f"class {images.classes[label]!r} has {count} image(s)"
            rule = "without a test split each class needs 2, one of which is set aside for testing"
            raise DataError(f"{where}: {few}; {rule}")
        order = np.random.default_rng((seed, label)).permutation(count).tolist()
        share = min(max(round(holdout * count), 1), count - 1)
        aside.append(sorted(order[:share]))
        kept.append(sorted(order[share:]))
    return Splits(images.keep(kept), images.keep(aside), held_out=True)


DATASETS: Registry[Callable[[], Splits]] = Registry(
    "data set", "datasets", {"textures": lambda: Splits(*textures_splits(), held_out=False)}
)
KINDS: Mapping[str, Callable[[Path], Splits]] = {"cifar100": cifar100} | {
    kind: partial(imagenet, kind) for kind in DRAWS
}
