"""Fit classes into the bytes a budget leaves for images, or say why they do not fit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mrdc._utils.errors import BudgetError, ImageError
from mrdc.memory.budget import Budget, share
from mrdc.memory.classes import ClassImages
from mrdc.memory.encode import Entry
from mrdc.memory.fill import Growing

Name = Callable[[int], str]


def cut(
    classes: Mapping[int, ClassImages], room: int, entry: Entry | None, name: Name
) -> dict[int, ClassImages]:
    """The highest ranks of each class that fit together into `room` bytes.

    Raises:
        BudgetError: a class would hold no image.
    """
    counts = share(room, [images.costs(entry) for images in classes.values()])
    for (label, images), count in zip(classes.items(), counts, strict=True):
        if not count:
            raise BudgetError(
                f"the budget leaves {max(room, 0):,} bytes for the images of {len(classes)} "
                f"classes, so no image of class {name(label)!r} fits: its first takes "
                f"{images.sizes[0]:,}; raise the budget"
            )
    pairs = zip(classes.items(), counts, strict=True)
    return {label: images.cut(count) for (label, images), count in pairs}


def check_filled(
    filled: Mapping[int, Growing],
    held: Sequence[int],
    budget: Budget,
    room_in: Callable[[Budget], int],
    name: Name,
) -> None:
    """Refuse new classes that hold no image.

    Args:
        held: cost of the first image of each class held before.
        room_in: bytes that a budget leaves for images.

    Raises:
        ImageError: no image of a class could be read.
        BudgetError: the first images of all classes do not fit.
    """
    empty = {label: grown for label, grown in filled.items() if not grown.sizes}
    for label, grown in empty.items():
        if not grown.waiting:
            raise ImageError(f"class {name(label)!r} has no readable image")
    if not empty:
        return
    label, grown = max(empty.items(), key=lambda pair: pair[1].first)
    firsts = [*held, *(new.first for new in filled.values())]
    total, room = budget.total_bytes(len(firsts)), room_in(budget)
    needed = _needed(total, sum(firsts), budget, room_in)
    raise BudgetError(
        f"the budget of {total:,} bytes leaves {max(room, 0):,} for images, but the first images "
        f"of the classes take {sum(firsts):,} together (class {name(label)!r}, "
        f"{grown.waiting[0].source}: {grown.first:,}): {len(firsts)} classes need "
        f"{needed:,} bytes or more, or a lower quality"
    )


def _needed(total: int, cost: int, budget: Budget, room_in: Callable[[Budget], int]) -> int:
    """Smallest budget in bytes, from `total` up, with room for `cost`."""
    lacking = cost - room_in(budget)
    if budget.unit != "bytes":
        return total + lacking
    while lacking > 0:  # a larger budget may have more digits, so a longer header
        total += lacking
        lacking = cost - room_in(replace(budget, amount=float(total)))
    return total
