"""Labelled images wherever people keep them: folders, a CSV, a WebDataset tar."""

import csv
import json
import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mrdc._utils.errors import DataError, ImageError
from mrdc.codec.image import EXTENSIONS
from mrdc.data.photo import Photo

if TYPE_CHECKING:
    from mrdc.data.scenes import Scenes

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")
SPLITS = frozenset({TRAIN, *TESTS})
CLASSES = (
    "a folder with one sub-folder of images for each class (or train/ and test/ folders of "
    "such), a .csv of path,label, or a WebDataset .tar"
)
FORMS = f"{CLASSES}; or scenes with boxes: a COCO .json, or a folder with train.json and images/"


@dataclass(frozen=True)
class ImageSet:
    """Labelled images that are read when needed.

    Attributes:
        classes: names; the label is the position.
        photos: by label.
        sizes: bytes of each photo, by label.
        ignored: files passed over because they are not images by their ending.
        scenes: the same images with their boxes, where they have boxes.
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
        """Class after class."""
        return [photo for of_class in self.photos for photo in of_class]

    @property
    def original_bytes(self) -> float:
        """Mean bytes of an image as it is."""
        return sum(map(sum, self.sizes)) / len(self)

    def pick(self, labels: Iterable[int]) -> "ImageSet":
        """The classes that have these labels here; there a label is the position in `labels`."""
        chosen = list(labels)
        return ImageSet(
            tuple(self.classes[label] for label in chosen),
            tuple(self.photos[label] for label in chosen),
            tuple(self.sizes[label] for label in chosen),
            self.ignored,
            self.scenes,
        )


def read_images(path: Path) -> ImageSet:
    """Open a folder, CSV or tar of labelled images.

    Raises:
        DataError: nothing there, or not in one of the forms.
    """
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise DataError(f"{path}: no such folder or file; give {FORMS}")
    if not path.is_file():
        raise DataError(f"{path}: neither a folder nor a file; give {FORMS}")
    if path.suffix.lower() == ".csv":
        return _csv(path)
    if tarfile.is_tarfile(path):
        return _webdataset(path)
    raise DataError(f"{path}: not a form mrdc reads; give {FORMS}")


def _folder(root: Path) -> ImageSet:
    splits = split_folders(root)
    return _folder(splits[TRAIN]) if splits else class_folders(root)


def class_folders(root: Path, only: Collection[str] | None = None) -> ImageSet:
    """Images of one folder for each class, or of the classes in `only`.

    Raises:
        DataError: no class folder, or no image in any.
    """
    children = _children(root)
    folders = [
        child for child in children if child.is_dir() and (only is None or child.name in only)
    ]
    if not folders:
        loose = sum(child.suffix.lower() in EXTENSIONS for child in children)
        found = f"{loose} images but no class folders" if loose else "no class folders"
        raise DataError(f"{root}: has {found}; give {FORMS}")
    ignored = [child.name for child in children if not child.is_dir()]
    entries: list[tuple[str, Photo, int]] = []
    for folder in folders:
        for parent, names, files in os.walk(folder, onerror=_refuse_folder):
            names[:] = sorted(name for name in names if not name.startswith("."))
            prefix = Path(parent).relative_to(root).as_posix()
            links = [name for name in names if os.path.islink(os.path.join(parent, name))]
            ignored += [f"{prefix}/{name}" for name in links]  # could lead anywhere, or back
            for name in sorted(file for file in files if not file.startswith(".")):
                file, relative = os.path.join(parent, name), f"{prefix}/{name}"
                if os.path.splitext(name)[1].lower() in EXTENSIONS:
                    entries.append((folder.name, file_photo(file, relative), file_size(file)))
                else:
                    ignored.append(relative)
    if not entries:
        raise DataError(f"{root}: no image in any class folder; give {FORMS}")
    return gather(entries, [folder.name for folder in folders], ignored)


def split_folders(root: Path) -> dict[str, Path]:
    """Folders by the name of their split in lower case; none where the folders are classes.

    A class may be called train, so it takes another split beside it, or nothing.

    Raises:
        DataError: splits without train/, or with other folders beside them.
    """
    folders = {folder.name.lower(): folder for folder in sub_folders(root)}
    splits = SPLITS & set(folders)
    if not splits or (splits == {TRAIN} and len(folders) > 1):
        return {}
    if TRAIN not in splits or len(splits) < len(folders):
        odd = ", ".join(sorted(set(folders) - SPLITS)) or f"no {TRAIN}/"
        raise DataError(
            f"{root}: {', '.join(sorted(splits))} look like splits, but with {odd} beside them; "
            f"give the folder that holds the classes"
        )
    return folders


def sub_folders(root: Path) -> list[Path]:
    """Folders in a folder that are not hidden, in order."""
    return [child for child in _children(root) if child.is_dir()]


def _children(root: Path) -> list[Path]:
    try:
        return sorted(child for child in root.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})") from None


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")


def file_size(file: str) -> int:
    """Bytes of a file; 0 where it cannot be read, which is told when it is."""
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return 0


def _csv(path: Path) -> ImageSet:
    entries = []
    for _, name, label in read_pairs(path, "path", "label"):
        file = os.path.join(path.parent, name)
        entries.append((label, file_photo(file, name), file_size(file)))
    return gather(entries, sorted({label for label, _, _ in entries}, key=_natural), [])


def read_pairs(path: Path, first: str, second: str) -> list[tuple[int, str, str]]:
    """Line number and both cells of each row of a CSV with two columns.

    A header of the columns' names is passed over.

    Raises:
        DataError: cannot be read, a row without two filled cells, or no row.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None
    if rows and [cell.strip().lower() for cell in rows[0][1]] == [first, second]:
        rows = rows[1:]
    form = f"{first},{second}"
    for line, row in rows:
        if len(row) != 2 or not all(cell.strip() for cell in row) or "\0" in row[0]:
            raise DataError(f"{path}: line {line} must be {form}, got {','.join(row)!r}")
    if not rows:
        raise DataError(f"{path}: no row of {form}")
    return [(line, row[0].strip(), row[1].strip()) for line, row in rows]


def _webdataset(path: Path) -> ImageSet:
    """Samples of an image and a .cls with its class, grouped by name up to the first dot.

    A class has the name that a .json beside it says, as `export` writes it, else its number.
    """
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    names: dict[str, str] = {}
    ignored = []
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                key, _, ending = base.partition(".")
                key = f"{folder}/{key}"
                if not member.isfile() or not key.strip("/"):
                    continue
                if f".{ending.lower()}" in EXTENSIONS:
                    if key in images:
                        both = f"{images[key].name} and {member.name}"
                        raise DataError(f"{path}: two images for one sample: {both}")
                    images[key] = member
                elif ending.lower() in ("cls", "json"):
                    content = tar.extractfile(member)
                    assert content is not None
                    text = content.read().decode("utf-8", "replace").strip()
                    if ending.lower() == "cls":
                        labels[key] = text
                    elif name := _class_name(text):
                        names[key] = name
                    else:
                        ignored.append(member.name)
                else:
                    ignored.append(member.name)
    except tarfile.ReadError as error:
        raise DataError(f"{path}: not a plain (uncompressed, whole) tar: {error}") from None
    labels |= {key: names[key] for key in labels if key in names}
    unlabelled = [images[key].name for key in images if not labels.get(key)]
    if unlabelled:
        raise DataError(f"{path}: {unlabelled[0]} has no .cls file with its class beside it")
    if not images:
        raise DataError(f"{path}: no image with a .cls file beside it")
    entries = [
        (labels[key], Photo(member.name, partial(_read_member, path, member)), member.size)
        for key, member in images.items()
    ]
    return gather(entries, sorted({labels[key] for key in images}, key=_natural), ignored)


def _class_name(text: str) -> str | None:
    """What a sample's .json says of its class."""
    with suppress(ValueError):
        found = json.loads(text)
        name = found.get("class") if isinstance(found, dict) else None
        return name if isinstance(name, str) else None
    return None


def _natural(label: str) -> tuple[int, int | str, str]:
    """Numbers in number order, then names."""
    number = label.isdecimal() and len(label) < 20
    return (0, int(label), label) if number else (1, label, label)


def _read_member(path: Path, member: tarfile.TarInfo) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(member.offset_data)
            return file.read(member.size)
    except OSError as error:
        raise ImageError(f"{member.name}: cannot be read ({error.strerror})") from None


def gather(
    entries: list[tuple[str, Photo, int]], classes: list[str], ignored: list[str]
) -> ImageSet:
    """An image set of (class, photo, bytes) in any order of classes."""
    labels = {name: label for label, name in enumerate(classes)}
    photos: tuple[list[Photo], ...] = tuple([] for _ in classes)
    sizes: tuple[list[int], ...] = tuple([] for _ in classes)
    for name, photo, size in entries:
        photos[labels[name]].append(photo)
        sizes[labels[name]].append(size)
    return ImageSet(tuple(classes), photos, sizes, ignored)


def some_of(names: Sequence[str]) -> str:
    """A few names of many, for an error."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def file_photo(path: str, name: str) -> Photo:
    """A photo in a file of its own."""
    return Photo(name, partial(_read, path, name))


def _read(path: str, name: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ImageError(f"{name}: not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None
