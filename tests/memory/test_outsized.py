"""Outsized images come after all others of their class, and do not keep them out."""

from functools import partial
from statistics import median_low

from hypothesis import given, settings
from hypothesis import strategies as st

from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.fill import OUTSIZED, PROBE
from mrdc.memory.replay import ReplayMemory
from tests.conftest import pixels

SMALL, LARGE = 8, 60  # sides; about 260 and 11,000 bytes as PNGs of noise


def pngs(sides: list[int]) -> list[Photo]:
    """Images whose names are their ranks."""
    made = [CODECS["png"].encode(pixels(n, side, side)) for n, side in enumerate(sides)]
    return [Photo(str(n), partial(bytes, data)) for n, data in enumerate(made)]


def held(sides: list[int], budget: int) -> list[int]:
    """Ranks of the images that a budget of image bytes holds, in the order of the memory."""
    memory = ReplayMemory(Budget(budget, "originals", 1.0), "original")
    memory.add({0: pngs(sides)})
    return [int(source) for source in memory.sources(0)]


def test_a_giant_does_not_keep_others_out() -> None:
    """It neither blocks the images that follow nor takes their bytes, whatever its rank."""
    for rank in (0, 1, 5):
        sides = [SMALL] * 20
        sides[rank] = LARGE
        others = [n for n in range(20) if n != rank]
        assert held(sides, 8_000) == others  # it would not fit
        assert held(sides, 12_000) == others  # it would, alone
        assert held(sides, 20_000) == [*others, rank]  # all fit


def test_large_classes_keep_their_order() -> None:
    """Images are compared within their class, so another class may have much larger ones."""
    memory = ReplayMemory("1MB", "original")
    memory.add({0: pngs([SMALL] * 5), 1: pngs([LARGE] * 5)})
    assert memory.sources(0) == memory.sources(1) == list("01234")


def test_progress_counts_every_image_once() -> None:
    counted: list[int] = []
    memory = ReplayMemory("1MB", "original")
    memory.add({0: pngs([SMALL, LARGE, SMALL, SMALL, LARGE])}, progress=counted.append)
    assert (sum(counted), memory.sources(0)) == (5, list("02314"))


def reference(costs: list[int]) -> list[int]:
    """Ranks as stored: the first images are judged together, every other one when it comes."""
    order: list[int] = []
    late: list[int] = []
    for rank, cost in enumerate(costs):
        compared = costs[: max(PROBE, rank + 1)]
        (late if cost > OUTSIZED * median_low(compared) else order).append(rank)
    return order + late


@given(
    st.lists(st.sampled_from([4, 8, 16, 30, 60]), min_size=1, max_size=25), st.integers(1, 60_000)
)
@settings(max_examples=80, deadline=None)
def test_the_order_is_that_of_a_slow_reference(sides: list[int], budget: int) -> None:
    """A memory holds a prefix of it: as many as fit."""
    costs = [len(photo.load()) for photo in pngs(sides)]
    order = reference(costs)
    total = costs[order[0]]
    count = 1
    while count < len(order) and total + costs[order[count]] <= budget:
        total += costs[order[count]]
        count += 1
    if total <= budget:
        assert held(sides, budget) == order[:count]
