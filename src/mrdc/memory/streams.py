"""More images of classes already held: ranks among the images held, and reservoirs.

A reservoir gives every image a random priority and keeps the lowest. A priority depends on the
seed, the label and the name of the image alone, so that nothing but the images is stored.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mrdc.memory.budget import level
from mrdc.memory.classes import ClassImages
from mrdc.memory.encode import Item
from mrdc.memory.fill import OUTSIZED
from mrdc.memory.names import Names
from mrdc.memory.segments import Held

Costs = NDArray[np.int64]  # of the images of a class
BASE = 0x9E3779B97F4A7C15  # odd; of the polynomials
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shifts and factors


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


def priorities(seed: int, label: int, names: Names) -> NDArray[np.uint64]:
    """A random number for each image: its name as a polynomial, mixed with seed and label."""
    if not len(names):
        return np.empty(0, np.uint64)
    lengths, text = names.lengths, names.data.astype(np.uint64) + np.uint64(1)
    begins = np.cumsum(lengths) - lengths
    powers = np.cumprod(np.full(lengths.max(), BASE, np.uint64))  # modulo 2^64, as all sums are
    places = np.arange(len(text)) - np.repeat(begins, lengths)
    mixed = np.add.reduceat(text * powers[places], begins)
    start = hashlib.blake2b(f"{seed} {label}".encode(), digest_size=8).digest()
    mixed ^= np.uint64(int.from_bytes(start))
    for shift, factor in MIX:  # the end of SplitMix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def with_more(
    held: ClassImages | None, more: Held, seed: int, label: int, overall: bool
) -> ClassImages:
    """The images of a class and others, lowest priority first, without exact duplicates.

    Outsized images come last, as they do in `fill`, unless all classes are cut together.
    """
    images = more if held is None else held.as_one() + more
    keys, sizes = priorities(seed, label, images.names), images.lengths
    late = sizes > (math.inf if overall else OUTSIZED * np.sort(sizes)[(len(sizes) - 1) // 2])
    order = np.lexsort((keys, late))
    halves = images.columns["identities"].view("<u8")[:, 0]  # equal for equal identities only
    order = order[np.sort(np.unique(halves[order], return_index=True)[1])]
    seen, double = (held.seen, held.duplicates) if held else (0, 0)
    double += len(images) - len(order)
    return ClassImages((images.take(order.tolist()),), seen=seen, duplicates=double)


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
            last = max(int(priorities(seed, n, images.names).max()) for n, images in held.items())

    def limit(label: int) -> float:
        if overall or not is_full(costs, label, room):
            return last if label in held else math.inf
        return int(priorities(seed, label, held[label].names).max())

    found: dict[int, list[Item]] = {}
    for label, items in arriving.items():
        below, names = limit(label), Names.of(item.source for item in items)
        keys = priorities(seed, label, names).tolist()
        some = [item for key, item in zip(keys, items, strict=True) if key < below]
        found |= {label: some} if some else {}
    return found


def is_full(costs: Mapping[int, Costs], label: int, room: int) -> bool:
    """True if the share of a class has no room for another image of mean size."""
    if label not in costs:
        return False
    needs = [math.inf if one == label else float(c.sum()) for one, c in costs.items()]
    share = level(room, needs, [int(c[0]) for c in costs.values()])
    return bool(costs[label].sum() + costs[label].mean() > share)


def cut_overall(
    keys: Mapping[int, NDArray[np.uint64]], costs: Mapping[int, Costs], room: int
) -> dict[int, list[int]]:
    """Places of the images that fit together, by label, from their priorities and costs.

    The best image of each class comes before all others, so that no class is lost.
    """
    counts = [len(of_class) for of_class in keys.values()]
    classes = np.repeat(np.arange(len(counts)), counts)
    places = np.concatenate([np.arange(count) for count in counts])
    order = np.argsort(np.concatenate([*keys.values()]), kind="stable")
    firsts = np.unique(classes[order], return_index=True)[1]
    order = np.concatenate([order[firsts], np.delete(order, firsts)])
    sums = np.cumsum(np.concatenate([costs[label] for label in keys])[order])
    kept = order[: np.searchsorted(sums, room, side="right")]
    return {
        label: places[kept[classes[kept] == number]].tolist() for number, label in enumerate(keys)
    }
