"""The replay memory keeps to its budget, which its classes share."""

import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrdc._utils.errors import BudgetError
from mrdc.codec import CODECS
from mrdc.memory.budget import Budget
from mrdc.memory.names import IndexCost
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg, pixels
from tests.memory.memories import CLASSES, MADE, Photos, filled, streams


def of_images(count: int) -> Budget:
    """A budget of this many image bytes; the index does not count."""
    return Budget(count, "originals", 1.0)


def charged(memory: ReplayMemory) -> int:
    """Bytes that the budget bounds."""
    if not memory.whole_file:
        return memory.nbytes
    with tempfile.TemporaryDirectory() as folder:
        memory.save(Path(folder, "a"))
        return Path(folder, "a").stat().st_size


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CLASSES, MADE, st.integers(1, 20_000), st.integers(1, 20_000), st.booleans())
def test_bytes_never_exceed_the_budget(
    images: Photos, made: dict[str, Any], budget: int, smaller: int, whole_file: bool
) -> None:
    """For any images, codec and budget, also after a change of budget; or a refusal.

    A memory holds the highest ranks: a prefix of what one with room for everything holds.
    """
    first, second = (n if whole_file else of_images(n) for n in (budget, smaller))
    memory = ReplayMemory(first, **made)
    everything = ReplayMemory("1GB" if whole_file else of_images(10**9), **made)
    everything.add(images)
    try:
        memory.add(images)
    except BudgetError:
        assert len(memory) == 0
        return
    assert charged(memory) <= budget
    assert memory.labels == list(images)
    before = streams(memory)
    try:
        memory.rebudget(second)
    except BudgetError:
        assert streams(memory) == before
        return
    assert charged(memory) <= smaller
    assert set(memory.targets) == set(images)
    assert set(streams(memory)) <= set(before)
    for label in images:
        sources = memory.sources(label)
        assert sources == everything.sources(label)[: len(sources)]


def test_per_class_budget_grows_with_the_classes() -> None:
    """2/class is a promise to each class, however many there are."""
    size = float(np.mean([len(jpeg(n)) for n in range(40)]))
    memory = ReplayMemory("2/class", "original", original_bytes=size)
    memory.add({0: [jpeg(n) for n in range(20)]})
    first = memory.budget_bytes
    memory.add({1: [jpeg(n) for n in range(20, 40)]})
    assert memory.budget_bytes == 2 * first
    assert memory.nbytes <= memory.budget_bytes
    memory.rebudget("1.5/class")
    assert memory.budget_bytes == int(3 * size)


def test_fixed_budget_makes_room_for_new_classes() -> None:
    """Older classes lose their lowest ranks, and nothing is encoded again."""
    memory = filled(of_images(8_000), classes=1, images=40)
    alone, before = memory.sources(0), set(streams(memory))
    memory.add({1: [jpeg(1000 + n) for n in range(40)]})
    assert memory.nbytes <= 8_000
    shared = memory.sources(0)
    assert 0 < len(shared) < len(alone)
    assert shared == alone[: len(shared)]
    assert {memory.encoded(i) for i in range(len(shared))} <= before


def test_classes_may_come_together_or_one_by_one() -> None:
    """Both give the same shares, up to one image; a small class leaves its bytes to the others."""
    images = {label: [jpeg(100 * label + n) for n in range(40)] for label in range(4)}
    images[4] = [jpeg(999)]
    together, apart = (ReplayMemory(of_images(20_000), "jpeg", 50) for _ in range(2))
    together.add(images)
    for label, ranked in images.items():
        apart.add({label: ranked})
    for label in images:
        assert abs(len(together.sources(label)) - len(apart.sources(label))) <= 1
    assert 18_500 < together.nbytes <= 20_000


def test_packed_charges_shared_tables_once() -> None:
    """One header for all images; `file` charges each."""
    images = {0: [pixels(n) for n in range(10)], 1: [pixels(n) for n in range(10, 20)]}
    packed = ReplayMemory("1MB", "jpeg", 50)
    whole = ReplayMemory("1MB", "jpeg", 50, accounting="file")
    packed.add(images)
    whole.add(images)
    tables = len(CODECS["jpeg"].tables(50))
    assert whole.nbytes == sum(map(len, streams(whole)))
    assert packed.nbytes == whole.nbytes - 20 * (tables + 2 - 4) + tables
    assert streams(packed) == streams(whole)


def test_a_class_without_room_is_named() -> None:
    """A refused class or smaller budget leaves the memory unchanged."""
    memory = ReplayMemory(of_images(3_000), "original", class_names={1: "big"})
    memory.add({0: [jpeg(0)]})
    with pytest.raises(BudgetError, match=r"first images .* \(class 'big', 1/0: .* 2 classes need"):
        memory.add({1: [jpeg(1, 95, 100, 100)]})
    assert memory.targets.tolist() == [0]
    with pytest.raises(BudgetError, match="no image of class '0' fits"):
        memory.rebudget(700)
    assert (memory.targets.tolist(), memory.budget_bytes) == ([0], 3_000)


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_a_refusal_names_is_enough(
    sides: list[list[int]], whole_file: bool, apart: bool
) -> None:
    """With these bytes the classes fit, together or one by one, and with one less they do not."""
    images = {
        label: [CODECS["png"].encode(pixels(n, side, side)) for n, side in enumerate(of_class)]
        for label, of_class in enumerate(sides)
    }

    def attempt(budget: int) -> None:
        memory = ReplayMemory(budget if whole_file else of_images(budget), "original")
        for part in [{label: images[label]} for label in images] if apart else [images]:
            memory.add(part)
        assert set(memory.targets) == set(images)

    def refused(budget: int) -> tuple[int, int]:
        with pytest.raises(BudgetError) as refusal:
            attempt(budget)
        found = re.search(r"(\d+) classes need ([\d,]+) bytes", str(refusal.value))
        assert found is not None
        return int(found[1]), int(found[2].replace(",", ""))

    classes, needed = refused(1)
    while classes < len(images):  # each class that follows needs more
        classes, needed = refused(needed)
    assert refused(needed - 1) == (classes, needed)
    attempt(needed)


@given(st.lists(st.integers(13, 40), min_size=2, max_size=30), st.integers(2_000, 20_000))
@settings(max_examples=60, deadline=None)
def test_a_budget_in_bytes_is_used_up(sides: list[int], budget: int) -> None:
    """One more image would not fit into the file, apart from a few digits in its header."""
    images = [CODECS["png"].encode(pixels(n, side, side)) for n, side in enumerate(sides)]
    memory = ReplayMemory(budget, "original")
    with suppress(BudgetError):
        memory.add({0: images})
        left = budget - charged(memory)
        assert left >= 0
        for following in images[len(memory) : len(memory) + 1]:
            assert left < len(following) + IndexCost()(f"0/{len(memory)}") + 100


def test_a_file_without_images_may_be_too_large() -> None:
    """A budget that bounds the whole file bounds its metadata, too."""
    memory = filled("1MB")
    for label in list(memory.labels):
        memory.remove(label)
    with pytest.raises(BudgetError, match=r"the budget is [\d,]+ bytes less than a file without"):
        memory.rebudget(50)
    assert memory.budget_bytes == 1_000_000
