"""Draw images of a memory at random, and make a batch of them."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import UsageError


def draw(
    sizes: NDArray[np.int64], count: int, balanced: bool, random: np.random.Generator
) -> list[int]:
    """Draw `count` of the indices of all images, given the number of images of each class.

    None is drawn twice, unless there are fewer. `balanced` draws the same number from each
    class, give or take one.
    """
    if not len(sizes):
        raise UsageError("the memory is empty: add images before drawing from it")
    if count < 1:
        raise UsageError(f"the number of images to draw must be at least 1, got {count}")
    if not balanced:
        return _some(int(sizes.sum()), count, random)
    starts = np.cumsum(sizes) - sizes
    shares = np.bincount(_some(len(sizes), count, random), minlength=len(sizes))
    chosen = [
        int(starts[number]) + place
        for number in np.flatnonzero(shares).tolist()
        for place in _some(int(sizes[number]), int(shares[number]), random)
    ]
    return [chosen[place] for place in random.permutation(len(chosen))]


def _some(size: int, count: int, random: np.random.Generator) -> list[int]:
    """`count` random numbers below `size`, each equally often, give or take one."""
    whole, rest = divmod(count, size)
    parts = [random.permutation(size) for _ in range(whole)]
    parts.append(random.choice(size, rest, replace=False))
    return [int(number) for part in parts for number in part]


def collate(items: Sequence[Any], what: str) -> Any:
    """Tensors, arrays or numbers of one shape as a batch; other things as a list.

    Batches are tensors if torch is in use, arrays otherwise.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(items[0], torch.Tensor):
        _check([tuple(item.shape) for item in items], what)
        return torch.stack(list(items))
    if isinstance(items[0], np.ndarray | np.generic | int | float):
        _check([np.shape(item) for item in items], what)
        stacked = np.stack(list(items))
        return stacked if torch is None else torch.from_numpy(stacked)
    return list(items)


def column(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    """The values called `name` beside each image, as a batch."""
    lacking = sum(name not in row for row in rows)
    if lacking:
        raise UsageError(f"{lacking} of {len(rows)} images have no value {name!r}")
    return collate([row[name] for row in rows], f"values {name!r}")


def _check(shapes: Sequence[tuple[int, ...]], what: str) -> None:
    if len(set(shapes)) > 1:
        raise UsageError(
            f"{what} differ in shape, such as {shapes[0]} and "
            f"{next(s for s in shapes if s != shapes[0])}: give the memory a transform that makes "
            "one size, or read single images with `draw`"
        )
