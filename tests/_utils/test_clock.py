"""Where the time goes."""

import pytest

from mrdc._utils.clock import Clock


def test_every_second_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the innermost part; time spent before is added."""
    times = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr("mrdc._utils.clock.time.perf_counter", lambda: next(times))
    clock = Clock()
    with clock.part("train"), clock.part("write"):
        pass
    clock.add({"train": 100.0, "decode": 5.0})
    assert clock.seconds == {"train": 2.0 + 8.0 + 100.0, "write": 4.0, "decode": 5.0}
