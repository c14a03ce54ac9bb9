"""Budgets: parsing and sharing."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc._utils.errors import UsageError
from mrdc.memory.budget import Budget, level, parse_budget, quantity, share
from mrdc.memory.replay import ReplayMemory

FORMS = {
    "20/class": 60_000, "0.5/class": 1500, "2000 originals": 2_000_000, "1 original": 1000,
    "2000originals": 2_000_000, "200MB": 200_000_000, "200 mb": 200_000_000, "1.5kB": 1500,
    "200MiB": 200 * 2**20, "1KiB": 1024, "123456": 123456, 123456: 123456, "7B": 7,
}  # fmt: skip


@pytest.mark.parametrize(("text", "total"), FORMS.items())
def test_the_three_forms(text: str | int, total: int) -> None:
    """Bytes for three classes and originals of 1,000 bytes; only budgets per class grow."""
    budget = parse_budget(text, original_bytes=1000)
    assert budget.total_bytes(3) == total
    assert budget.total_bytes(6) == total * (2 if "class" in str(text) else 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, r": write 20/class \(100/phase for scenes\), '2000 originals', or bytes")
            for text in ("", "lots", "-5MB", "0", "0/class", "20/clas", "5 XB", "1e6", "nan", "5ib")
        ),
        ("0.4B", ", less than a byte: write"),
    ],
)
def test_invalid_budgets_are_refused(text: str, message: str) -> None:
    """The message shows what was given and what is allowed."""
    with pytest.raises(UsageError, match=f"invalid budget {text!r}{message}"):
        parse_budget(text, original_bytes=10)


def test_originals_need_their_size() -> None:
    """The message names the argument, however the budget is made."""
    message = "budget '20/class' counts originals: pass original_bytes, their mean size"
    for make in (
        lambda: parse_budget("20/class"),
        lambda: Budget(20, "class"),
        lambda: parse_budget("20/class", 0),
        lambda: ReplayMemory("20/class"),
    ):
        with pytest.raises(UsageError, match=message):
            make()


WRITTEN = "20/class, 2.5/class, 4/phase, 1234567 originals, 5MB, 3MiB, 1500kB, 1234567B"


@pytest.mark.parametrize("text", WRITTEN.split(", "))
def test_budgets_print_as_they_are_written(text: str) -> None:
    """Parsing undoes printing; a fraction of a byte, as shares of phases may have, is dropped."""
    budget = parse_budget(text, original_bytes=10)
    assert str(budget) == text
    assert parse_budget(str(budget), original_bytes=10) == budget
    assert str(Budget(1500.5, "bytes")) == "1500B"


def test_quantity_is_the_longest_prefix() -> None:
    """A large image stops it even if a later one would fit."""
    assert quantity([5, 5, 100, 1], 12) == 2
    assert quantity([5, 5], 10) == 2
    assert quantity([5], 4) == 0
    assert quantity([], 4) == 0


def test_level_hands_bytes_back() -> None:
    """A class that needs little leaves the rest to others; a first image always fits."""
    assert level(100, [10, 90], [1, 1]) >= 90
    assert level(100, [10, inf], [1, 1]) == 90
    assert level(100, [60, 60], [1, 1]) == 50
    assert level(100, [inf, inf, inf], [1, 1, 1]) == 33
    assert level(100, [10, 20, inf, inf], [1, 1, 1, 1]) == 35
    assert level(100, [inf, inf, 90], [1, 1, 70]) == 15
    assert level(100, [inf, 5, inf], [1, 1, 70]) == 25


SIZES = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=12), min_size=1, max_size=6)


@given(SIZES, st.integers(0, 800))
def test_level_never_overspends(sizes: list[list[int]], total: int) -> None:
    """Classes cut at the level fit, and at one byte more they would not (or all fit)."""
    needs = [sum(of_class) for of_class in sizes]
    limit = level(total, needs, [0] * len(needs))
    assert sum(min(need, limit) for need in needs) <= total
    taken = sum(min(need, limit + 1) for need in needs)
    assert taken > total - len(needs) or taken == sum(needs)


@given(SIZES, st.integers(0, 800))
def test_share_fits_and_uses_the_bytes(sizes: list[list[int]], total: int) -> None:
    """Every class has an image if possible, and no image below the level is left out."""
    assert share(Budget(20, "class", 100.0).total_bytes(2), [[100] * 50, [100] * 50]) == [20, 20]
    counts = share(total, sizes)
    held = [sum(of_class[:count]) for of_class, count in zip(sizes, counts, strict=True)]
    assert sum(held) <= total
    if sum(map(sum, sizes)) <= total:
        assert counts == [len(of_class) for of_class in sizes]
    firsts = [of_class[0] for of_class in sizes]
    assert (min(counts) > 0) == (sum(firsts) <= total)
    if sum(firsts) > total:
        firsts = [0] * len(sizes)
    limit = level(total, [sum(of_class) for of_class in sizes], firsts)
    for of_class, count, taken in zip(sizes, counts, held, strict=True):
        if count < len(of_class) and taken <= limit:
            assert taken + of_class[count] > limit
