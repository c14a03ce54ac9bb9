"""Bytes that originals need for the accuracy of a compressed memory."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc.experiments.worth import Point, bytes_needed, sentence, worth

CURVE = [(100.0, 30.0), (400.0, 40.0), (1600.0, 44.0)]


def test_half_way_in_accuracy_is_half_way_in_log_bytes() -> None:
    """35 % lies between 100 and 400 bytes, whose geometric mean is 200."""
    assert bytes_needed(CURVE, 35.0) == pytest.approx(200.0)


def test_measured_points_need_their_own_bytes() -> None:
    assert [bytes_needed(CURVE, score) for _, score in CURVE] == pytest.approx([100, 400, 1600])


def test_score_below_the_curve_needs_the_smallest_budget() -> None:
    assert bytes_needed(CURVE, 5.0) == 100.0


def test_score_above_the_curve_is_not_reached() -> None:
    assert bytes_needed(CURVE, 44.1) is None


@given(st.floats(0, 44), st.floats(0, 44))
def test_more_accuracy_never_needs_fewer_bytes(one: float, other: float) -> None:
    low, high = (bytes_needed(CURVE, score) for score in sorted((one, other)))
    assert low is not None and high is not None and low <= high * (1 + 1e-12)


def test_a_dip_of_the_curve_does_not_matter() -> None:
    """The first budget that reaches a score counts, even if a larger one falls below it."""
    dipping = [(100.0, 30.0), (200.0, 36.0), (400.0, 33.0)]
    assert bytes_needed(dipping, 36.0) == pytest.approx(200.0)


def originals(seed: int, shift: float = 0.0) -> list[Point]:
    return [
        Point("original", f"{size:.0f}", seed, int(size), score + shift, original=True)
        for size, score in CURVE
    ]


def test_factor_compares_with_originals_of_the_same_seed() -> None:
    """100 bytes reach 35 %: seed 0 needs 200 bytes of originals, seed 1 (10 points better) 100."""
    compressed = [Point("jpeg", "100", seed, 100, 35.0) for seed in (0, 1)]
    found = worth([*originals(0), *originals(1, shift=10.0), *compressed])[-1]
    assert found.factors == pytest.approx([2.0, 1.0])
    assert found.factor == pytest.approx(2.0**0.5)
    assert found.text == "1.4 (1.0 to 2.0)"


def test_score_that_originals_never_reach_is_said() -> None:
    found = worth([*originals(0), Point("jpeg", "100", 0, 100, 50.0)])
    assert found[-1].text == "more than tried"
    assert "jpeg, 100: 50.00 %, for which originals need more bytes than were tried" in sentence(
        found
    )


def test_originals_have_no_factor_and_no_sentence() -> None:
    found = worth(originals(0))
    assert [one.text for one in found] == ["", "", ""]
    assert sentence(found) == ""


def test_one_budget_of_originals_is_no_curve() -> None:
    assert worth([originals(0)[0], Point("jpeg", "100", 0, 100, 35.0)])[-1].factors == []


def test_budgets_stay_in_order() -> None:
    points = [replace(point, networks=7) for point in originals(0)]
    found = worth(points)
    assert all(one.bytes < other.bytes for one, other in pairwise(found))
    assert {one.networks for one in found} == {7}
