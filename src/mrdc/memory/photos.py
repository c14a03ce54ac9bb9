"""All images of a memory by index, as arrays; and as photos that are made when they are read."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mrdc.data.photo import Photo
from mrdc.memory.classes import ClassImages


class Index:
    """Finds the class and rank of an image; as large as the number of classes, not of images."""

    def __init__(self, classes: Mapping[int, ClassImages]):
        self.counts = np.array([len(images) for images in classes.values()], np.int64)
        self._classes = list(classes.items())
        self._ends = np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def find(self, index: int) -> tuple[int, ClassImages, int]:
        """Label, class and rank of an image."""
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} is outside a memory of {len(self)} images")
        number = int(np.searchsorted(self._ends, position, side="right"))
        label, images = self._classes[number]
        return label, images, position - int(self._ends[number]) + len(images)

    def labels(self) -> NDArray[np.int64]:
        """Label of every image."""
        return np.repeat(np.array([label for label, _ in self._classes], np.int64), self.counts)

    def ranks(self) -> NDArray[np.int64]:
        """Rank of every image in its class."""
        return np.arange(len(self)) - np.repeat(self._ends - self.counts, self.counts)


class StoredPhotos(Sequence[Photo]):
    """The images of a memory as photos, unaffected by later changes of it."""

    def __init__(self, index: Index):
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, index: int) -> Photo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Photo]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        _, images, rank = self._index.find(index)
        return Photo(images.name(rank), partial(images.load, rank), held=True)
