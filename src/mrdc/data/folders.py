"""Images in one folder for each class."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from mrdc._utils.errors import DataError
from mrdc._utils.text import count
from mrdc.data.files import FORMS, NOT_IMAGE, Listing, file_photo, file_size, is_image

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")
SPLITS = frozenset({TRAIN, *TESTS})


def read_folder(root: Path) -> Listing:
    """List the class folders in a folder, or in its train/ folder.

    Raises:
        DataError: no images in class folders.
    """
    splits = split_folders(root)
    return read_folder(splits[TRAIN]) if splits else class_folders(root)


def class_folders(root: Path, only: Collection[str] | None = None) -> Listing:
    """List the images of every class folder, or of the classes in `only`.

    Raises:
        DataError: no class folder, or no image in any of them.
    """
    children = _children(root)
    folders = [
        child for child in children if child.is_dir() and (only is None or child.name in only)
    ]
    loose = [child.name for child in children if not child.is_dir()]
    if not folders:
        images = sum(map(is_image, loose))
        found = f"{count(images, 'image')} but no class folders" if images else "no class folders"
        raise DataError(f"{root}: has {found}; give {FORMS}")
    outside = "image outside a class folder"
    ignored = [f"{name}: {outside if is_image(name) else NOT_IMAGE}" for name in loose]
    entries = [
        (folder.name, file_photo(file, name), file_size(file) or 0)
        for folder in folders
        for file, name in _images(root, folder, ignored)
    ]
    if not entries:
        raise DataError(f"{root}: no image in any class folder; give {FORMS}")
    return Listing(entries, [folder.name for folder in folders], ignored)


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

    Raises:
        DataError: splits without train/, or next to other folders.
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
    """Visible folders in a folder, sorted."""
    return [child for child in _children(root) if child.is_dir()]


def _children(root: Path) -> list[Path]:
    try:
        return sorted(child for child in root.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root}: cannot be read ({error.strerror})") from None


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")
