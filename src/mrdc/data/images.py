"""Sets of labelled images, and pairs of them for training and testing."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrdc._utils.errors import DataError
from mrdc._utils.store_path import StorePath
from mrdc._utils.stores import is_url
from mrdc.codec.image import EXTENSIONS
from mrdc.data.photo import Photo, file_photo, store_photo

if TYPE_CHECKING:
    from mrdc.data.scenes import Scenes

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")
SPLITS = frozenset({TRAIN, *TESTS})
CLASSES = (
    "a folder with one sub-folder of images for each class (or train/ and test/ folders of "
    "such), a .csv of path,label, a WebDataset .tar, a .parquet or .arrow file with images, a "
    "pattern such as 'photos-*.parquet', a URL of one of these, or hf:FOLDER"
)
FORMS = f"{CLASSES}; or scenes with boxes: a COCO .json, or a folder with train.json and images/"
NOT_IMAGE = "not an image (by its ending)"

Entry = tuple[str, Photo, int]  # class, photo and bytes of an image
Columns = tuple[str, str]  # names of the columns with the image (or its path) and the class


@dataclass(frozen=True)
class ImageSet:
    """Labelled images that are read when needed."""

    classes: tuple[str, ...]  # names; the label is the position
    photos: tuple[list[Photo], ...]  # by label
    sizes: tuple[list[int], ...]  # bytes of each photo, by label
    ignored: list[str] = field(default_factory=list)  # files not used, each with the reason
    scenes: "Scenes | None" = None  # the same images with their boxes, if they have boxes

    def __len__(self) -> int:
        return sum(map(len, self.photos))

    @property
    def all_photos(self) -> list[Photo]:
        """Photos of all classes, class after class."""
        return [photo for of_class in self.photos for photo in of_class]

    @property
    def original_bytes(self) -> float:
        """Mean bytes of a source image."""
        return sum(map(sum, self.sizes)) / len(self)

    def pick(self, labels: Iterable[int]) -> "ImageSet":
        """The classes with these labels, relabelled by their position in `labels`."""
        chosen = list(labels)
        return replace(
            self,
            classes=tuple(self.classes[label] for label in chosen),
            photos=tuple(self.photos[label] for label in chosen),
            sizes=tuple(self.sizes[label] for label in chosen),
        )

    def keep(self, places: Sequence[Sequence[int]]) -> "ImageSet":
        """The photos at these places of each class."""
        return replace(
            self,
            photos=tuple([p[i] for i in at] for p, at in zip(self.photos, places, strict=True)),
            sizes=tuple([s[i] for i in at] for s, at in zip(self.sizes, places, strict=True)),
        )


@dataclass(frozen=True)
class Splits:
    """Training and test images of the same classes in the same order, none of them empty."""

    train: ImageSet
    test: ImageSet
    held_out: bool  # test images were set aside, as the source has no test split
    superclasses: tuple[str, ...] | None = None  # of each class, if the source knows them


def paired(where: Path, train: ImageSet, test: ImageSet) -> Splits:
    """Check that both splits have the same classes and no empty one."""
    for one, other, side in ((train, test, "training"), (test, train, "test")):
        alone = [name for name in one.classes if name not in other.classes]
        if alone:
            only = f"only the {side} split has {some_of(alone)}"
            raise DataError(f"{where}: {only}; both splits must have the same classes")
        empty = [name for name, photos in zip(one.classes, one.photos, strict=True) if not photos]
        if empty:
            raise DataError(f"{where}: no {side} image of {some_of(empty)}; each class needs one")
    test = test.pick(test.classes.index(name) for name in train.classes)
    return Splits(train, test, held_out=False)


def gather(entries: Iterable[Entry], classes: list[str], ignored: Sequence[str] = ()) -> ImageSet:
    """Group images by class; `classes` are in label order."""
    labels = {name: label for label, name in enumerate(classes)}
    photos: tuple[list[Photo], ...] = tuple([] for _ in classes)
    sizes: tuple[list[int], ...] = tuple([] for _ in classes)
    for name, photo, size in entries:
        photos[labels[name]].append(photo)
        sizes[labels[name]].append(size)
    return ImageSet(tuple(classes), photos, sizes, [*ignored])


def by_number(name: str) -> tuple[int, int | str, str]:
    """Sort key: numbers in numerical order, then other names."""
    number = name.isdecimal() and len(name) < 20
    return (0, int(name), name) if number else (1, name, name)


def merged(sets: Sequence[ImageSet]) -> ImageSet:
    """The images of several sets; classes of one name become one, and empty ones are dropped."""
    first = sets[0].classes
    same = all(one.classes == first for one in sets)
    names = {name for one in sets for name in one.classes}
    entries = (
        (name, photo, size)
        for one in sets
        for name, photos, sizes in zip(one.classes, one.photos, one.sizes, strict=True)
        for photo, size in zip(photos, sizes, strict=True)
    )
    ignored = [line for one in sets for line in one.ignored]
    whole = gather(entries, [*first] if same else sorted(names, key=by_number), ignored)
    return whole.pick(label for label, photos in enumerate(whole.photos) if photos)


def is_image(name: str) -> bool:
    """Check for an ending that image files have."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def file_entry(label: str, path: str, name: str, size: int | None = None) -> Entry:
    """An image in its own file, or in an object of this size; 0 bytes if it does not exist."""
    if is_url(path):
        return label, store_photo(path, name, size or 0), size or 0
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError):
        size = 0
    return label, file_photo(path, name), size


def path_entry(label: str, path: Path, name: str) -> Entry:
    """An image at a path, which may be in an object store."""
    return file_entry(label, str(path), name, path.size() if isinstance(path, StorePath) else None)


def some_of(names: Sequence[str]) -> str:
    """The first few of many names, for a message."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
