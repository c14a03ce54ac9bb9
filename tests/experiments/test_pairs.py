"""Differences over pairs of runs with the same seed."""

import random
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc.experiments.pairs import Arm, baseline, difference, score
from tests.experiments.results import result

NUMBERS = st.floats(-100, 100)
BY_SEED = st.dictionaries(st.integers(0, 9), NUMBERS, min_size=1)


def arm(**changes: Any) -> Arm:
    settings = {"method": "lucir", "memory.quality": "auto", "memory.budget": "8/class"}
    return Arm(settings | {k.replace("_", "."): v for k, v in changes.items()}, {})


def test_a_worked_case() -> None:
    """Differences of 1 and 3: mean 2, deviation sqrt(2), error 1. Other seeds do not count."""
    found = difference({0: 11.0, 1: 23.0, 2: 99.0, 4: None}, {0: 10.0, 1: 20.0, 3: 0.0, 4: 1.0})
    assert found is not None and str(found) == "+2.00 ± 1.00 (2 pairs)"
    assert str(difference({0: 1.0}, {0: 2.5})) == "-1.50 (1 pair)"
    assert difference({0: 1.0}, {1: 1.0}) is None


@given(BY_SEED, NUMBERS)
def test_what_a_seed_adds_to_both_cancels(numbers: dict[int, float], shift: float) -> None:
    """Seeds differ far more than arms of one seed; the error covers only the difference."""
    rng = random.Random(0)
    level = {seed: rng.uniform(-1000, 1000) for seed in numbers}
    found = difference({s: level[s] + shift for s in numbers}, level)
    assert found is not None and found.pairs == len(numbers)
    assert found.mean == pytest.approx(shift, abs=1e-6)
    assert (found.error or 0.0) == pytest.approx(0.0, abs=1e-6)


@given(BY_SEED)
def test_the_other_way_round_has_the_other_sign(numbers: dict[int, float]) -> None:
    base = dict.fromkeys(numbers, 0.0)
    ours, theirs = difference(numbers, base), difference(base, numbers)
    assert ours is not None and theirs is not None
    assert ours.mean == -theirs.mean == pytest.approx(mean(numbers.values()))
    assert ours.error == pytest.approx(theirs.error)


def test_the_baseline_replays_originals_and_is_otherwise_equal() -> None:
    ours, base = arm(), arm(memory_quality="original")
    other = arm(memory_quality="original", method="podnet")
    assert baseline(ours, [other, ours, base]) is base
    assert baseline(base, [other, ours, base]) is None
    assert baseline(ours, [other, ours]) is None


def test_originals_of_one_other_budget_are_a_baseline() -> None:
    """As in the study of fewer images; with two other budgets, neither is."""
    ours = arm(memory_budget="4/class")
    eight = arm(memory_quality="original")
    sixteen = arm(memory_quality="original", memory_budget="16/class")
    same = arm(memory_quality="original", memory_budget="4/class")
    assert baseline(ours, [eight]) is eight
    assert baseline(ours, [eight, sixteen]) is None
    assert baseline(ours, [eight, sixteen, same]) is same


def test_detectors_without_a_memory_are_compared_with_replay() -> None:
    replay = arm(memory_quality="original", replay="memory")
    for replays, quality in (("none", "original"), ("joint", "original"), ("memory", "50")):
        assert baseline(arm(memory_quality=quality, replay=replays), [replay]) is replay
    assert score(result(ap=[1.0, 7.0])) == 7.0 and score(result(50.0)) == 50.0
