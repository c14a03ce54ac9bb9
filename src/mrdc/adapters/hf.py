"""Memories as Hugging Face data sets, and back; the files of images stay the same bytes."""

import os
from functools import partial
from typing import Any

import datasets

from mrdc._utils.errors import DataError, ImageError
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory

MOST_NAMES = 10_000  # of a ClassLabel


def to_hf(memory: ReplayMemory) -> datasets.Dataset:
    """The images of a memory as a data set of image, label, rank and source.

    Labels are a ClassLabel; if they reach beyond 10,000 or classes share a name, there is a column
    `class` instead.
    The images are the stored files. `to_parquet` of the result writes the Hub's format, and
    `push_to_hub` publishes it.
    """
    highest = max([*memory.labels, *memory.class_names], default=-1)
    names = [memory.class_names.get(n, str(n)) for n in range(min(highest + 1, MOST_NAMES))]
    named = highest < MOST_NAMES and len(set(names)) == len(names)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=names) if named else datasets.Value("int64"),
            "rank": datasets.Value("int32"),
            "source": datasets.Value("string"),
        }
    )
    if not named:  # ClassLabel has a distinct name for every number up to the highest
        features["class"] = datasets.Value("string")
    files = (memory.encoded(index) for index in range(len(memory)))
    columns = {
        "image": [{"bytes": file, "path": None} for file in files],
        "label": memory.targets.tolist(),
        "rank": memory.ranks.tolist(),
        "source": [photo.id for photo in memory.examples().photos],
    }
    if not named:
        columns["class"] = [memory.class_names.get(n, str(n)) for n in columns["label"]]
    return datasets.Dataset.from_dict(columns, features=features)


def from_hf(
    data: datasets.Dataset,
    budget: int | str,
    *,
    image: str = "image",
    label: str = "label",
    **options: Any,
) -> ReplayMemory:
    """A memory of the images of a data set, in its order; `options` as for `ReplayMemory`.

    With the defaults an image is stored as it is in the data set; pass `codec` and `quality` to
    compress it.

    Raises:
        DataError: the columns are not there, or hold something else.
        BudgetError: the budget has no room for one image of each class.
    """
    rows = Rows(data, image=image, label=label)
    photos: dict[int, list[Photo]] = {}
    sources = data["source"] if "source" in data.column_names else None
    for index, number in enumerate(rows.labels):
        name = f"{index}" if sources is None else sources[index]
        photos.setdefault(number, []).append(Photo(name, partial(rows.file, index)))
    names = {number: name for number, name in enumerate(rows.classes) if number in photos}
    memory = ReplayMemory(budget, options.pop("codec", "original"), class_names=names, **options)
    memory.add(photos)
    return memory


class Rows:
    """A data set as pairs of an image's file and its label, for `plan`, `pack`, `open_stream`.

    Raises:
        DataError: the columns are not there.
    """

    def __init__(self, data: datasets.Dataset, *, image: str = "image", label: str = "label"):
        for column in (image, label):
            if column not in data.column_names:
                has = ", ".join(data.column_names)
                raise DataError(f"the data set has no column {column!r}; it has {has}")
        self.data, self.column = data.cast_column(image, datasets.Image(decode=False)), image
        self.labels: list[int] = list(data[label])
        kind = data.features[label]
        self.classes: list[str] = kind.names if isinstance(kind, datasets.ClassLabel) else []

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.file(index), self.labels[index]

    def file(self, index: int) -> bytes:
        """The file of an image."""
        found = self.data[index][self.column] or {}
        if found.get("bytes") is not None:
            return bytes(found["bytes"])
        try:
            with open(os.fspath(found.get("path") or ""), "rb") as file:
                return file.read()
        except OSError as error:
            why = error.strerror if found else "it is empty"
            raise ImageError(f"row {index}: no image in {self.column} ({why})") from None
