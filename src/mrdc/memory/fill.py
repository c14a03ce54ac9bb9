"""Fill classes with encoded images until the bytes are used up.

Images are encoded in parallel and taken in rank order, so the result does not depend on the number
of threads. Outsized images come after all others of their class: one photo of twelve megapixels
among thumbnails would otherwise take the place of a hundred, or keep all that follow out.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from mrdc._utils.errors import BudgetError, ImageError
from mrdc._utils.threads import ordered
from mrdc.memory.budget import Budget, level
from mrdc.memory.encode import Encoded, Item

Skip = Callable[[ImageError], None]
Cost = Callable[[Encoded], int]
Spooling = Callable[[bytes], int]  # writes some bytes and returns their position
OUTSIZED = 10  # times the median cost of the images of a class so far
PROBE = 3  # images of a class to compare before the first one is taken
SAMPLE = 1000  # images of a class to take the median of


@dataclass
class Growing:
    """A class while it is being filled."""

    pending: Iterator[Item]  # not requested yet
    left: int  # number of these
    spool: Spooling | None
    cost: Cost
    taken: list[Encoded] = field(default_factory=list)  # without their bodies if spooled
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    waiting: deque[Encoded] = field(default_factory=deque)  # encoded, until there is room
    late: list[Item] | None = field(default_factory=list)  # outsized; None once requested
    costs: list[int] = field(default_factory=list)  # of images seen, smallest first
    known: set[bytes] = field(default_factory=set)
    nbytes: int = 0
    first: int = 0  # cost of the first image, once known
    spent: int = 0  # cost of the images taken
    duplicates: int = 0

    @property
    def done(self) -> bool:
        """True if no image is left to take."""
        return not self.left and not self.waiting and not self.late

    def request(self, share: int, mean: float) -> list[Item]:
        """The next images to encode, about as many as still fit; none while one waits."""
        if not self.first:
            return list(islice(self.pending, PROBE - len(self.waiting)))
        if self.waiting:
            return []
        if not self.left and self.late:
            self.pending, self.left, self.late = iter(self.late), len(self.late), None
        if self.sizes:
            mean = self.spent / len(self.sizes)
        count = max(1, int((share - self.spent) / mean)) if mean else 1
        count = min(count, 8 + 2 * len(self.sizes))  # in case the first ones were unusually small
        return list(islice(self.pending, count))

    @property
    def next_cost(self) -> int:
        """Cost of the first waiting image."""
        return self.cost(self.waiting[0])

    def offer(self, item: Item, image: Encoded) -> None:
        """Queue an image, or put it off; exact duplicates are counted and dropped."""
        if image.identity in self.known:
            self.duplicates += 1
            return
        if self.late is not None and len(self.costs) < SAMPLE:
            insort(self.costs, self.cost(image))
        if self.late is not None and self.first and self._outsized(image):
            self.late.append(item)  # to be encoded again, if it comes to that
            return
        self.known.add(image.identity)
        self.waiting.append(image)

    def _outsized(self, image: Encoded) -> bool:
        return self.cost(image) > OUTSIZED * self.costs[(len(self.costs) - 1) // 2]

    def start(self) -> None:
        """Put off outsized images of the probe, and name the first image."""
        if self.first or not self.waiting or (self.left and len(self.waiting) < PROBE):
            return
        large = [image for image in self.waiting if self._outsized(image)]
        self.late = [*large]
        for image in large:
            self.waiting.remove(image)
            self.known.remove(image.identity)
        self.first = self.next_cost

    def settle(self, share: int) -> None:
        """Take waiting images, in order, while they fit."""
        while self.waiting and self.spent + (cost := self.next_cost) <= share:
            self.spent += cost
            image = self.waiting.popleft()
            self.sizes.append(len(image.body) + len(image.values))
            if self.spool is None:
                self.starts.append(self.nbytes)
            else:
                self.starts.append(self.spool(image.body + image.values))
                image = replace(image, body=b"", digest=image.identity)
            self.taken.append(image)
            self.nbytes += self.sizes[-1]


def fill(
    images: Mapping[int, Sequence[Item]],
    total: int,
    held: Sequence[tuple[int, int]],
    encode: Callable[[Item], Encoded],
    pool: Executor,
    cost: Cost,
    *,
    spool: Spooling | None,
    skip: Skip | None,
    progress: Callable[[int], None],
) -> dict[int, Growing]:
    """Share `total` bytes between new classes and the classes already held.

    The first image of every class comes first; if these do not all fit, nothing is taken.
    Then, in waves, each class encodes about as many images as still fit its share; outsized
    ones have to wait for all others. When a class runs out of images, the share of the
    others grows. Bytes left over at the end buy one more image here and there.

    Args:
        images: new images by label, in rank order.
        held: cost of each class already held, and of its first image.
        cost: bytes charged for an image.
        skip: called with the error of each unreadable image, which is then left out;
            without it the first error is raised.
    """
    classes = {n: Growing(iter(ranked), len(ranked), spool, cost) for n, ranked in images.items()}
    share = -1
    while True:
        before = share
        for grown in classes.values():
            grown.start()
        firsts = [*(first for _, first in held), *(grown.first for grown in classes.values())]
        needs = [grown.spent if grown.done else math.inf for grown in classes.values()]
        known = all(grown.first or grown.done for grown in classes.values())
        if known and sum(firsts) > total:
            return classes
        share = level(total, [*(need for need, _ in held), *needs], firsts) if known else 0
        for grown in classes.values() if known else ():
            grown.settle(max(share, grown.first))
        count = sum(len(grown.sizes) for grown in classes.values())
        mean = sum(grown.spent for grown in classes.values()) / max(count, 1)
        wave = [(new, image) for new in classes.values() for image in new.request(share, mean)]
        if not wave and share == before:
            break
        jobs = [item for _, item in wave if not isinstance(item, Encoded)]
        made = ordered(pool, partial(attempt, encode), jobs)
        for grown, item in wave:
            image = attempt(encode, item) if isinstance(item, Encoded) else next(made)[1]
            grown.left -= 1
            progress(0 if grown.late is None else 1)
            if isinstance(image, Encoded):
                grown.offer(item, image)
                grown.settle(share)
            elif skip is None:
                raise image
            else:
                skip(image)
    rest = total - sum(min(need, max(first, share)) for need, first in held)
    rest -= sum(grown.spent for grown in classes.values())
    for grown in sorted(classes.values(), key=lambda grown: grown.spent):
        if grown.waiting and grown.next_cost <= rest:
            rest -= grown.next_cost
            grown.settle(grown.spent + grown.next_cost)
    return classes


def attempt(encode: Callable[[Item], Encoded], item: Item) -> Encoded | ImageError:
    """An encoded image, or the error that it cannot be read."""
    try:
        return encode(item)
    except ImageError as error:
        return error


def check_filled(
    filled: Mapping[int, Growing],
    held: Sequence[tuple[int, int]],
    budget: Budget,
    room_in: Callable[[Budget], int],
    name: Callable[[int], str],
) -> None:
    """Refuse new classes that hold no image; `room_in` gives the bytes a budget leaves them."""
    empty = {label: grown for label, grown in filled.items() if not grown.sizes}
    for label, grown in empty.items():
        if not grown.waiting:
            raise ImageError(f"class {name(label)!r} has no readable image")
    if not empty:
        return
    label, grown = max(empty.items(), key=lambda pair: pair[1].first)
    firsts = [*(first for _, first in held), *(new.first for new in filled.values())]
    total, room, cost = budget.total_bytes(len(firsts)), room_in(budget), sum(firsts)
    needed, lacking = total, cost - room
    while lacking > 0:  # a larger budget may have more digits, so a longer header
        needed += lacking
        larger = replace(budget, amount=float(needed))
        lacking = cost - room_in(larger) if budget.unit == "bytes" else 0
    raise BudgetError(
        f"the budget of {total:,} bytes leaves {max(room, 0):,} for images, but the first images "
        f"of the classes take {cost:,} together (class {name(label)!r}, "
        f"{grown.waiting[0].source}: {grown.first:,}): {len(firsts)} classes need "
        f"{needed:,} bytes or more, or a lower quality"
    )
