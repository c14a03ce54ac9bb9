"""Images in one folder for each class, listed in a CSV, or packed in a WebDataset tar."""

import csv
import json
import os
import tarfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from mrdc._utils.errors import DataError, ImageError
from mrdc._utils.text import count
from mrdc.codec.image import EXTENSIONS
from mrdc.data.images import FORMS, NOT_IMAGE, ImageSet, file_entry, gather, is_image
from mrdc.data.photo import Photo

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")
SPLITS = frozenset({TRAIN, *TESTS})


def read_images(path: Path, missing: bool = False) -> ImageSet:
    """Open a folder, CSV or tar of labelled images; `missing` as for `read_csv`."""
    if path.is_dir():
        splits = split_folders(path)
        return read_images(splits[TRAIN]) if splits else class_folders(path)
    if not path.exists():
        raise DataError(f"{path}: no such folder or file; give {FORMS}")
    if not path.is_file():
        raise DataError(f"{path}: neither a folder nor a file; give {FORMS}")
    if path.suffix.lower() == ".csv":
        return read_csv(path, missing)
    if tarfile.is_tarfile(path):
        return read_tar(path)
    raise DataError(f"{path}: not a form mrdc reads; give {FORMS}")


def class_folders(root: Path, only: Collection[str] | None = None) -> ImageSet:
    """Open the images of every class folder, or of the classes in `only`."""
    children = _children(root)
    folders = [one for one in children if one.is_dir() and (only is None or one.name in only)]
    loose = [child.name for child in children if not child.is_dir()]
    if not folders:
        images = sum(map(is_image, loose))
        found = f"{count(images, 'image')} but no class folders" if images else "no class folders"
        raise DataError(f"{root}: has {found}; give {FORMS}")
    outside = "image outside a class folder"
    ignored = [f"{name}: {outside if is_image(name) else NOT_IMAGE}" for name in loose]
    entries = [
        file_entry(folder.name, file, name)
        for folder in folders
        for file, name in _images(root, folder, ignored)
    ]
    if not entries:
        raise DataError(f"{root}: no image in any class folder; give {FORMS}")
    return gather(entries, [folder.name for folder in folders], ignored)


def _images(root: Path, folder: Path, ignored: list[str]) -> Iterator[tuple[str, str]]:
    """Path and id of each image below a folder; other files are added to `ignored`."""
    for parent, names, files in os.walk(folder, onerror=_refuse):
        prefix = Path(parent).relative_to(root).as_posix()
        names[:] = sorted(name for name in names if not name.startswith("."))
        links = [name for name in names if os.path.islink(os.path.join(parent, name))]
        ignored += [f"{prefix}/{name}: link to a folder" for name in links]  # may lead back here
        for name in sorted(file for file in files if not file.startswith(".")):
            if is_image(name):
                yield os.path.join(parent, name), f"{prefix}/{name}"
            else:
                ignored.append(f"{prefix}/{name}: {NOT_IMAGE}")


def split_folders(root: Path) -> dict[str, Path]:
    """Train and test folders by their name in lower case; empty if the folders are classes.

    A class may be called train: it is a split only on its own or next to another split.
    """
    folders = {folder.name.lower(): folder for folder in sub_folders(root)}
    splits = SPLITS & set(folders)
    if not splits or (splits == {TRAIN} and len(folders) > 1):
        return {}
    if TRAIN not in splits or len(splits) < len(folders):
        odd = ", ".join(sorted(set(folders) - SPLITS)) or f"no {TRAIN}/"
        mixed = f"{', '.join(sorted(splits))} look like splits, but with {odd} beside them"
        raise DataError(f"{root}: {mixed}; give the folder that holds the classes")
    return folders


def sub_folders(root: Path) -> list[Path]:
    """Visible folders in a folder, sorted."""
    return [child for child in _children(root) if child.is_dir()]


def _children(root: Path) -> list[Path]:
    try:
        return sorted(child for child in root.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})") from None


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")


def read_csv(path: Path, missing: bool) -> ImageSet:
    """Open the images of a CSV of path,label; paths are relative to its folder.

    `missing` files are accepted or refused; loading one raises an ImageError.
    """
    rows = read_pairs(path, "path", "label")
    folder = path.parent
    entries = [file_entry(label, os.path.join(folder, name), name) for _, name, label in rows]
    empty = [row for row, entry in zip(rows, entries, strict=True) if entry[2] == 0]
    absent = [row for row in empty if not os.access(folder / row[1], os.F_OK)]
    if absent and not missing:
        line, name, _ = absent[0]
        reason = f"{len(absent):,} of {len(rows):,} missing; --skip-bad leaves them out"
        if absent[0] == rows[0] and not os.path.splitext(name)[1]:
            reason = "columns are path,label; a heading must be path,label"
        raise DataError(f"{path}: line {line}: no such file {name!r} ({reason})")
    return gather(entries, sorted({label for _, _, label in rows}, key=_by_number))


def read_pairs(path: Path, first: str, second: str) -> list[tuple[int, str, str]]:
    """Line number and both cells of the rows of a CSV; a heading of these names is optional."""
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


def read_tar(path: Path) -> ImageSet:
    """Open the samples of a tar: an image and a .cls with its class.

    Files belong to one sample if their names agree up to the first dot. A .json with a "class",
    as `export` writes it, gives the class a name; otherwise its name is the text of the .cls.
    """
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    names: dict[str, str] = {}
    ignored: list[str] = []
    for member, key, ending, text in _members(path):
        if f".{ending}" in EXTENSIONS:
            if key in images:
                both = f"{images[key].name} and {member.name}"
                raise DataError(f"{path}: two images for one sample: {both}")
            images[key] = member
        elif ending == "cls":
            labels[key] = text
        elif ending != "json":
            ignored.append(f"{member.name}: {NOT_IMAGE}")
        elif name := _class_name(text):
            names[key] = name
        else:
            ignored.append(f"{member.name}: no class name in it")
    if not images:
        raise DataError(f"{path}: no image with a .cls file")
    entries = []
    for key, member in images.items():
        label = names.get(key, labels[key]) if key in labels else ""
        if not label:
            raise DataError(f"{path}: {member.name} has no .cls file with its class")
        entries.append((label, Photo(member.name, partial(_read, path, member)), member.size))
    return gather(entries, sorted({label for label, _, _ in entries}, key=_by_number), ignored)


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, str, str, str]]:
    """Files of a tar with their sample, their ending, and the text of a .cls or .json."""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, ending = base.partition(".")
                key, ending = f"{folder}/{stem}", ending.lower()
                if not member.isfile() or not key.strip("/"):
                    continue
                content = tar.extractfile(member) if ending in ("cls", "json") else None
                text = content.read().decode("utf-8", "replace").strip() if content else ""
                yield member, key, ending, text
    except tarfile.ReadError as error:
        raise DataError(f"{path}: not an uncompressed, complete tar ({error})") from None


def _class_name(text: str) -> str | None:
    """The "class" of a sample's .json."""
    with suppress(ValueError, AttributeError):
        name = json.loads(text).get("class")
        return name if isinstance(name, str) else None
    return None


def _read(path: Path, member: tarfile.TarInfo) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(member.offset_data)
            return file.read(member.size)
    except OSError as error:
        raise ImageError(f"{member.name}: cannot be read ({error.strerror})") from None


def _by_number(name: str) -> tuple[int, int | str, str]:
    """Sort key: numbers in numerical order, then other names."""
    number = name.isdecimal() and len(name) < 20
    return (0, int(name), name) if number else (1, name, name)
