"""Batches for training and evaluation, decoded in threads."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from mrdc._utils.extras import Tensor, torch
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import Pixels
from mrdc.data.crops import centre_crop, stack, tensor, train_crop
from mrdc.data.photo import Photo

T = TypeVar("T")


class Images(Protocol):
    """A map-style data set of (uint8 tensor (3, h, w), label)."""

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]: ...


def batches(
    photos: Sequence[Photo],
    targets: ArrayLike,
    batch_size: int,
    size: int,
    train: bool,
    *,
    seed: int,
    epoch: int,
    threads: int | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Uint8 batches (n, 3, size, size) and labels (n,).

    With `train`, images are shuffled, randomly cropped and mirrored; the draws depend on (seed,
    epoch, index) and not on the threads. Otherwise they are in order and centre-cropped.
    """
    order = np.arange(len(photos))
    if train:
        np.random.default_rng((seed, epoch)).shuffle(order)
    labels = torch.from_numpy(np.asarray(targets, np.int64))

    def pixels(index: int) -> Pixels:
        image = tensor(photos[index].pixels())
        if train:
            image = train_crop(image, size, np.random.default_rng((seed, epoch, index)))
        else:
            image = centre_crop(image, size)
        return cast(Pixels, image.permute(1, 2, 0).numpy())

    with workers(threads) as pool:
        made = ordered(pool, pixels, cast(Sequence[int], order), 2 * batch_size)
        for start in range(0, len(order), batch_size):
            group = order[start : start + batch_size]
            yield stack([next(made)[1] for _ in group]), labels[group]


def grouped(
    view: Callable[[T], Tensor], groups: Sequence[Sequence[T]], threads: int | None
) -> Iterator[Tensor]:
    """Views (n, 3, h, w) of each group of items, prepared a little ahead in threads."""
    items = [item for group in groups for item in group]
    ahead = 2 * max(map(len, groups), default=1)
    with workers(threads) as pool:
        made = ordered(pool, lambda item: view(item).permute(1, 2, 0).numpy(), items, ahead)
        for group in groups:
            yield stack([next(made)[1] for _ in group])
