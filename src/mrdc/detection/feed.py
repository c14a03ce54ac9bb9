"""Batches of scenes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.clock import Clock
from mrdc.data.scenes import Boxes
from mrdc.detection.album import Album
from mrdc.detection.methods import Shot
from mrdc.detection.settings import SceneSettings
from mrdc.distributed.group import world
from mrdc.training.match import Copies, shown

CHUNKS = 100  # parts of a phase, after each of which it can be resumed


@dataclass
class SceneFeed:
    """Batches of a phase, chunk by chunk; the labelled images of a step depend on its number only.

    `pools` gives the unlabelled images that each step of a chunk draws from. With several
    processes, this one gets its part of every batch.
    """

    labelled: Album  # followed by the copies
    boxes: Sequence[Boxes]  # of the labelled images, with labels
    unlabelled: Album
    pools: Callable[[range], Sequence[Sequence[int]]]
    settings: SceneSettings
    clock: Clock
    copies: Copies | None = None  # of labelled images
    images: int = 0  # labelled images in the last chunk

    def __len__(self) -> int:
        return self.images

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Any, ...]]:
        """Shots, their indices, the step, unlabelled images and their indices."""
        total, parts = self.settings.train.steps, chunks(self.settings)
        steps = range(epoch * total // parts, (epoch + 1) * total // parts)
        count = len(self.boxes)
        known, seen = (
            [sampled(count, batch_size, step, seed, copies) for step in steps]
            for copies in (None, self.copies)
        )
        self.images = sum(map(len, known))
        size = self.settings.train.unlabelled_batch
        unknown = [
            [pool[place] for place in sampled(len(pool), size, step, seed + 1)] if pool else []
            for step, pool in zip(steps, self.pools(steps), strict=True)
        ]
        known, seen, unknown = ([*map(world().part, of)] for of in (known, seen, unknown))
        photos, scenes = self.unlabelled.groups(unknown), self.labelled.groups(seen)
        for step, places, images, others, more in zip(
            steps, known, self._timed(scenes), unknown, self._timed(photos), strict=True
        ):
            pairs = zip(images, places, strict=True)
            shots = [Shot(i, torch.from_numpy(self.boxes[p]).to(i.device)) for i, p in pairs]
            yield shots, torch.tensor(places), step, more, others

    def _timed(self, groups: Iterator[list[Tensor]]) -> Iterator[list[Tensor]]:
        """The same groups; waiting for them does not count as training."""
        while True:
            with self.clock.part("decode"):
                group = next(groups, None)
            if group is None:
                return
            yield group


def chunks(settings: SceneSettings) -> int:
    """Number of parts of a phase."""
    return min(CHUNKS, settings.train.steps)


def sampled(
    count: int, batch: int, step: int, seed: int, copies: Copies | None = None
) -> list[int]:
    """Indices that a step sees: a slice of an endless sequence of permutations.

    With copies, some are the indices of copies, drawn anew for each permutation.
    """
    first = step * batch
    rounds = range(first // count, (first + batch - 1) // count + 1)
    orders = [np.random.default_rng((seed, r)).permutation(count) for r in rounds]
    pairs = zip(rounds, orders, strict=True)
    row = np.concatenate([shown(copies, count, seed, r)[order] for r, order in pairs])
    start = first - rounds.start * count
    return [int(place) for place in row[start : start + batch]]
