"""Training images, still encoded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.extras import Tensor
from mrdc.data.crops import tensor
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo

Places = NDArray[np.intp]


@dataclass(frozen=True)
class Examples:
    """Labelled images, still encoded; a map-style data set of (uint8 (3, h, w), label)."""

    photos: Sequence[Photo] = ()
    labels: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return tensor(self.photos[index].pixels()), self.labels[index]

    def __add__(self, other: "Examples") -> "Examples":
        return Examples((*self.photos, *other.photos), self.labels + other.labels)

    def pick(self, indices: Iterable[int]) -> "Examples":
        """The examples at these positions, in this order."""
        chosen = list(indices)
        photos, labels = self.photos, self.labels
        return Examples(tuple(photos[i] for i in chosen), tuple(labels[i] for i in chosen))


def from_images(images: ImageSet, first_label: int = 0) -> Examples:
    """All images of a set, with labels starting at `first_label`."""
    counts = enumerate(images.photos, first_label)
    labels = tuple(label for label, photos in counts for _ in photos)
    return Examples(tuple(images.all_photos), labels)


@dataclass(frozen=True)
class Companions:
    """Additional images that accompany every batch, drawn from the same examples.

    `choose` maps the positions of a batch, and a generator, to the positions of its companions
    and to numbers that are passed to the loss with them. `cropped` companions are cropped at
    random like the batch (an image looks the same throughout an epoch), others as in evaluation.
    With `copies` they are compressed copies where there are any, cropped like their originals.
    `match` is called before every epoch with its training views, batch by batch, in the order of
    the examples. With several processes, both see this one's part: of the batch, and of the views.
    """

    choose: Callable[[Places, np.random.Generator], tuple[Places, Places]]
    count: int  # companions that the network sees together with a batch; 0 for none
    cropped: bool
    match: Callable[[Iterator[Tensor]], None] | None = None
    copies: bool = False
