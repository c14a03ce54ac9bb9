"""Sets of labelled images: folders, a CSV, a WebDataset tar."""

import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mrdc._utils.errors import DataError
from mrdc.data.csv_file import read_csv
from mrdc.data.files import FORMS, Listing
from mrdc.data.folders import read_folder
from mrdc.data.photo import Photo
from mrdc.data.tar import read_tar

if TYPE_CHECKING:
    from mrdc.data.scenes import Scenes


@dataclass(frozen=True)
class ImageSet:
    """Labelled images that are read when needed.

    Attributes:
        classes: class names; the label is the position.
        photos: photos by label.
        sizes: bytes of each photo, by label.
        ignored: files that are not used, each with the reason.
        scenes: the same images with their boxes, if they have boxes.
    """

    classes: tuple[str, ...]
    photos: tuple[list[Photo], ...]
    sizes: tuple[list[int], ...]
    ignored: list[str] = field(default_factory=list)
    scenes: "Scenes | None" = None

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


def read_images(path: Path, missing: bool = False) -> ImageSet:
    """Open a folder, CSV or tar of labelled images.

    Args:
        missing: accept missing files in a CSV; loading one raises an ImageError.

    Raises:
        DataError: no such file, or not in one of the forms.
    """
    if path.is_dir():
        return gather(read_folder(path))
    if not path.exists():
        raise DataError(f"{path}: no such folder or file; give {FORMS}")
    if not path.is_file():
        raise DataError(f"{path}: neither a folder nor a file; give {FORMS}")
    if path.suffix.lower() == ".csv":
        return gather(read_csv(path, missing))
    if tarfile.is_tarfile(path):
        return gather(read_tar(path))
    raise DataError(f"{path}: not a form mrdc reads; give {FORMS}")


def gather(listing: Listing) -> ImageSet:
    """Group the images of a listing by class."""
    labels = {name: label for label, name in enumerate(listing.classes)}
    photos: tuple[list[Photo], ...] = tuple([] for _ in listing.classes)
    sizes: tuple[list[int], ...] = tuple([] for _ in listing.classes)
    for name, photo, size in listing.entries:
        photos[labels[name]].append(photo)
        sizes[labels[name]].append(size)
    return ImageSet(tuple(listing.classes), photos, sizes, listing.ignored)


def some_of(names: Sequence[str]) -> str:
    """The first few of many names, for a message."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
