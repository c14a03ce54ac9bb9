"""Memories as Hugging Face data sets, and back; the files of images stay the same bytes."""

import os
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
    for column in (image, label):
        if column not in data.column_names:
            has = ", ".join(data.column_names)
            raise DataError(f"the data set has no column {column!r}; it has {has}")
    plain = data.cast_column(image, datasets.Image(decode=False))
    photos: dict[int, list[Photo]] = {}
    sources = data["source"] if "source" in data.column_names else None
    for index, number in enumerate(data[label]):
        name = f"{index}" if sources is None else sources[index]
        photos.setdefault(number, []).append(Photo(name, Row(plain, index, image)))
    kind = data.features[label]
    names = dict(enumerate(kind.names)) if isinstance(kind, datasets.ClassLabel) else {}
    kept = {number: name for number, name in names.items() if number in photos}
    memory = ReplayMemory(budget, options.pop("codec", "original"), class_names=kept, **options)
    memory.add(photos)
    return memory


class Row:
    """Reads the file of an image from a data set."""

    def __init__(self, data: datasets.Dataset, index: int, column: str):
        self.data, self.index, self.column = data, index, column

    def __call__(self) -> bytes:
        found = self.data[self.index][self.column] or {}
        if found.get("bytes") is not None:
            return bytes(found["bytes"])
        try:
            with open(os.fspath(found.get("path") or ""), "rb") as file:
                return file.read()
        except OSError as error:
            why = error.strerror if found else "it is empty"
            raise ImageError(f"row {self.index}: no image in {self.column} ({why})") from None
