"""Batches for training and evaluation, decoded by threads."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mrdc.threads import ordered, workers
from mrdc.views import centre_crop, stack, train_crop


class Images(Protocol):
    """A map-style data set of (uint8 tensor (3, h, w), label)."""

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]: ...


def batches(
    images: Images,
    targets: Sequence[int],
    batch_size: int,
    size: int,
    train: bool,
    *,
    seed: int,
    epoch: int,
    threads: int | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Uint8 batches (n, 3, size, size) and labels (n,).

    With `train`, shuffled, randomly cropped and mirrored; the draws belong to
    (seed, epoch, index), so they do not depend on the threads. Else in order,
    centre-cropped.
    """
    order = np.arange(len(targets))
    if train:
        np.random.default_rng((seed, epoch)).shuffle(order)
    labels = torch.tensor(targets)

    def view(index: int) -> Tensor:
        image = images[index][0]
        if not train:
            return centre_crop(image, size)
        return train_crop(image, size, np.random.default_rng((seed, epoch, index)))

    with workers(threads) as pool:
        views: list[Tensor] = []
        indices: list[int] = []
        for index, image in ordered(pool, view, order.tolist(), 2 * batch_size):
            views.append(image)
            indices.append(index)
            if len(views) == batch_size:
                yield stack(views), labels[indices]
                views, indices = [], []
        if views:
            yield stack(views), labels[indices]
