"""Images from Python instead of a path: a data set of (image, label), or images by class."""

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mrdc._utils.errors import ImageError, UsageError
from mrdc._utils.store_path import as_path
from mrdc.codec.image import Pixels
from mrdc.data.images import Columns, ImageSet, by_number, file_entry, some_of
from mrdc.data.inputs import AnyImage, as_photo
from mrdc.data.photo import Photo


class Samples(Protocol):
    """A map-style data set of (image, label), such as those of torchvision."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Given: TypeAlias = ImageSet | Mapping[Any, Iterable[AnyImage]] | Samples
Source: TypeAlias = str | os.PathLike[str] | Given
Sized = tuple[Photo, int]  # a photo, and its bytes


def given_images(source: Given, columns: Columns | None = None, numbered: bool = False) -> ImageSet:
    """The images of a data set, or of each class.

    The bytes of an image are those of its file; without a file, of its pixels. So each image is
    read once, unless the data set lists its files in `samples`, as `ImageFolder` does. `numbered`
    refuses labels that are not the positions of the classes.

    Raises:
        UsageError: something else, or a data set with a transform.
    """
    if columns is not None:
        raise UsageError("columns are those of a CSV or Parquet file: leave them out")
    if isinstance(source, ImageSet):
        return source
    if isinstance(source, Mapping):
        found = {_label(key): _sized(key, images) for key, images in source.items()}
        return _by_label(found, {}, numbered)
    return _by_label(*samples_by_label(source), numbered)


def samples_by_label(
    source: Samples, start: Callable[[int | str], int] = lambda label: 0
) -> tuple[dict[Any, list[Sized]], dict[Any, str]]:
    """The images of a data set by label, and the names of these labels.

    Images without a file are named by label and number, counted from `start` of the label.

    Raises:
        UsageError: as for `given_images`.
    """
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise UsageError(
            f"got {type(source).__name__}; pass a path, a data set of (image, label) with a "
            "length, images by class such as {'owl': paths}, or an ImageSet"
        )
    found: dict[int | str, list[Sized]] = {}
    names: dict[int | str, str] = {}
    for index in range(len(source)):
        data, place = _innermost(source, index)
        label, class_name, (photo, size) = _sample(data, place)
        names[label] = _one_name(label, names.get(label, ""), class_name, data)
        of_class = found.setdefault(label, [])
        name = photo.id or f"{label}/{start(label) + len(of_class)}"
        of_class.append((photo._replace(id=name), size))
    return found, {label: name or str(label) for label, name in names.items()}


def source_path(source: Source) -> Path:
    """The path of a source; if it is not one, the name of its type."""
    return as_path(source if isinstance(source, str | os.PathLike) else type(source).__name__)


def _by_label(
    found: Mapping[int | str, list[Sized]], names: Mapping[int | str, str], numbered: bool
) -> ImageSet:
    """Images in the order of their labels; names that two classes share are not used."""
    labels = sorted(found, key=lambda label: by_number(str(label)))
    numbers = list(map(str, labels))
    counted = [label for label in labels if isinstance(label, int)]
    if numbered and counted not in ([], list(range(len(labels)))):
        raise UsageError(
            f"labels {some_of(numbers)} are not 0 to {len(labels) - 1}; Replay and "
            "ReplayMemory.add keep any labels"
        )
    named = [names.get(label, str(label)) for label in labels]
    return ImageSet(
        tuple(named if len(set(named)) == len(named) else numbers),
        tuple([photo for photo, _ in found[label]] for label in labels),
        tuple([size for _, size in found[label]] for label in labels),
    )


def _label(given: Any) -> int | str:
    """A label or the name of a class."""
    if isinstance(given, str):
        return given
    try:
        return operator.index(given)
    except TypeError:
        raise UsageError(f"label {given!r} must be a whole number or a name") from None


def _sized(key: Any, images: Iterable[AnyImage]) -> list[Sized]:
    """The images of a class with their sizes."""
    if isinstance(images, str | bytes):
        raise UsageError(f"images of class {key!r} are one {type(images).__name__}: pass a list")
    return [
        _with_size(image, f"{key}/{number}", f"image {number} of class {key!r}")
        for number, image in enumerate(images)
    ]


def _with_size(image: Any, name: str, where: str) -> Sized:
    if isinstance(image, str | os.PathLike):
        path = os.fspath(image)
        return file_entry("", path, path)[1:]
    photo = as_photo(image, name, where)
    try:
        data = photo.load()
    except ImageError:
        return photo, 0  # refused or skipped when it is needed
    return photo, len(data) if isinstance(data, bytes) else data.nbytes


def _innermost(data: Any, index: int) -> tuple[Any, int]:
    """The data set, and the place there, of a sample of a torch `Subset` or `ConcatDataset`."""
    while True:
        if hasattr(data, "dataset") and hasattr(data, "indices"):
            data, index = data.dataset, int(data.indices[index])
        elif hasattr(data, "datasets") and hasattr(data, "cumulative_sizes"):
            part = bisect_right(data.cumulative_sizes, index)
            data, index = data.datasets[part], index - [0, *data.cumulative_sizes][part]
        else:
            return data, index


def _sample(data: Any, index: int) -> tuple[int | str, str, Sized]:
    """Label, class and photo of a sample: its file, if the data set lists files, or without a name.

    A transform of labels is applied.
    """
    samples, change = getattr(data, "samples", None), getattr(data, "target_transform", None)
    if isinstance(samples, Sequence) and isinstance(samples[index][0], str | os.PathLike):
        path, number = samples[index][:2]
        label = _label(number if change is None else change(number))
        return label, _class_name(data, _label(number)), _with_size(path, "", "")
    if getattr(data, "transform", None) is not None:
        raise UsageError(
            f"{type(data).__name__} has a transform, but a memory stores images as they are: make "
            "the data set without it"
        )
    item = data[index]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise UsageError(f"sample {index}: got {type(item).__name__}; give (image, label)")
    _, size = _with_size(item[0], "", f"sample {index}")
    label = _label(item[1])
    name = _class_name(data, label) if change is None else ""
    return label, name, (Photo("", partial(_read, data, index)), size)


def _read(data: Any, index: int) -> bytes | Pixels:
    """The image of a sample, read again when it is needed."""
    return as_photo(data[index][0], f"{index}", f"sample {index}").load()


def _class_name(data: Any, label: int | str) -> str:
    """The name of a class, if the data set lists names in `classes`; otherwise none."""
    names = getattr(data, "classes", None)
    if isinstance(names, Sequence) and isinstance(label, int) and 0 <= label < len(names):
        return str(names[label])
    return ""


def _one_name(label: int | str, known: str, given: str, data: Any) -> str:
    """The name of a class that was called `known` so far and is called `given` now.

    Classes that a transform of labels puts together have the name of their label.
    """
    if not known or not given or known == given:
        return known or given
    if getattr(data, "target_transform", None) is None:
        raise UsageError(
            f"label {label} is class {known!r} in one data set and {given!r} in another: give a "
            "class the same label in both"
        )
    return str(label)
