"""The clock counts every second once."""

import time

import pytest

from mrdc._utils.clock import Clock


class Hands:
    """A clock set by the test."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def test_inner_part_stops_the_outer_clock(hands: Hands) -> None:
    """1 + 4 seconds of training around 2 of writing; the 8 outside count nowhere."""
    clock = Clock()
    hands.now += 8
    with clock.part("train"):
        hands.now += 1
        with clock.part("write"):
            hands.now += 2
        hands.now += 4
    hands.now += 8
    assert clock.seconds == {"train": 5.0, "write": 2.0}
    clock.add({"train": 100.0, "decode": 3.0})
    assert clock.seconds == {"train": 105.0, "write": 2.0, "decode": 3.0}


def test_parts_add_up(hands: Hands) -> None:
    """A part may be entered again, inside itself or inside another."""
    clock = Clock()
    with clock.part("a"):
        hands.now += 1
        with clock.part("a"):
            hands.now += 2
    with clock.part("b"), clock.part("a"):
        hands.now += 4
    assert clock.seconds == {"a": 7.0, "b": 0.0}


def test_failing_part_is_counted(hands: Hands) -> None:
    """The clock also keeps working afterwards."""
    clock = Clock()
    with pytest.raises(RuntimeError), clock.part("a"):
        hands.now += 1
        raise RuntimeError
    hands.now += 2
    with clock.part("b"):
        hands.now += 4
    assert clock.seconds == {"a": 1.0, "b": 4.0}
