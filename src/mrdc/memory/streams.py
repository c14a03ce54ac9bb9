"""More images of classes already held: ranks among the images held, and reservoirs.

A reservoir gives every image a random priority and keeps the lowest. A priority depends on the
seed, the label and the name of the image alone, so that nothing but the images is stored.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mrdc.memory.budget import level
from mrdc.memory.classes import ClassImages
from mrdc.memory.encode import Item

Costs = NDArray[np.int64]  # of the images of a class


def interleave(
    held: Sequence[Item], seen: int, new: Sequence[Item], new_seen: int | None = None
) -> Sequence[Item]:
    """Ranked images of a class after more have come: `new_seen` of them, by default all `new`.

    An image keeps its relative rank among all images it came with, stored or not, so that at
    any cut old and new images are in proportion to the numbers seen.
    """
    if not held:
        return new  # perhaps not ranked to the end
    keys = [(rank + 0.5) / seen for rank in range(len(held))]
    keys += [(rank + 0.5) / (new_seen or len(new)) for rank in range(len(new))]
    both = [*held, *new]
    return [both[place] for place in np.argsort(keys, kind="stable")]


def priorities(seed: int, label: int, sources: Iterable[str]) -> list[int]:
    """A random number for each image."""
    texts = [f"{seed} {label} {source}".encode(errors="surrogateescape") for source in sources]
    return [int.from_bytes(hashlib.blake2b(text, digest_size=6).digest()) for text in texts]


def by_priority(seed: int, label: int, items: Sequence[Item]) -> list[Item]:
    """Images of a class, lowest priority first."""
    keys = priorities(seed, label, [item.source for item in items])
    return [items[place] for place in np.argsort(keys, kind="stable")]


def wanted(
    held: Mapping[int, ClassImages],
    arriving: Mapping[int, Sequence[Item]],
    costs: Mapping[int, Costs],
    seed: int,
    room: int,
    overall: bool,
) -> dict[int, list[Item]]:
    """The arriving images that a reservoir may keep, by label.

    Where there is no room for more, only images that come before the last one held.
    """
    last = math.inf
    if overall and costs:
        every = np.concatenate(list(costs.values()))
        if every.sum() + every.mean() > room:
            last = max(max(priorities(seed, label, c.sources)) for label, c in held.items())

    def limit(label: int) -> float:
        if overall or not is_full(costs, label, room):
            return last if label in held else math.inf
        return max(priorities(seed, label, held[label].sources))

    found: dict[int, list[Item]] = {}
    for label, items in arriving.items():
        below, keys = limit(label), priorities(seed, label, [item.source for item in items])
        found[label] = [item for key, item in zip(keys, items, strict=True) if key < below]
    return found


def is_full(costs: Mapping[int, Costs], label: int, room: int) -> bool:
    """True if the share of a class has no room for another image of mean size."""
    if label not in costs:
        return False
    needs = [math.inf if one == label else float(c.sum()) for one, c in costs.items()]
    share = level(room, needs, [int(c[0]) for c in costs.values()])
    return bool(costs[label].sum() + costs[label].mean() > share)


def cut_overall(
    keys: Mapping[int, Sequence[int]], costs: Mapping[int, Costs], room: int
) -> dict[int, list[int]]:
    """Places of the images that fit together, by label, from their priorities and costs.

    The best image of each class comes before all others, so that no class is lost.
    """
    rows = sorted(
        (key, label, place)
        for label, of_class in keys.items()
        for place, key in enumerate(of_class)
    )
    firsts = {label: (key, label, place) for key, label, place in reversed(rows)}
    order = [*firsts.values(), *(row for row in rows if row != firsts[row[1]])]
    sums = np.cumsum([int(costs[label][place]) for _, label, place in order])
    kept: dict[int, list[int]] = {label: [] for label in keys}
    for _, label, place in order[: int(np.searchsorted(sums, room, side="right"))]:
        kept[label].append(place)
    return kept
