"""Advice after a run, by the shares of old and new test images that are taken for old and new."""

from typing import Any

import pytest

from mrdc.training.advice import advice
from mrdc.training.results import MemorySummary
from tests.experiments.results import result

NEW = (
    "only 4 % of the test images of new classes were assigned to a new class: lucir preserves too "
    "much beside a memory of 30 images; try lucir-relaxed"
)
OLD = (
    "only 43 % of the test images of old classes were assigned to an old class, but 87 % of new "
    "ones to a new class: the network may tell old from new by their compression; try a higher "
    "--memory.quality, or --train.match 1"
)


@pytest.mark.parametrize(
    ("old", "new", "more", "said"),
    [
        (99.0, [8.0, 0.0], {}, [NEW]),
        (99.0, [8.0, 0.0], {"method": "lucir-relaxed"}, []),
        (99.0, [8.0, 0.0], {"method": "replay"}, []),  # preserves nothing
        (99.0, [8.0, 0.0], {"method": "replay-cosine"}, []),
        (99.0, [8.0, 0.0], {"memory": MemorySummary(0, 0, 0)}, []),  # nothing is replayed
        (99.0, [20.0, 12.0], {}, []),  # one poor phase
        (43.0, [80.0, 87.0], {}, [OLD]),
        (43.0, [80.0, 87.0], {"quality": [None, 10]}, [OLD]),
        (43.0, [80.0, 87.0], {"quality": None}, []),  # forgetting, but no compression
        (43.0, [80.0, 87.0], {"match": 1.0}, []),  # nothing to tell them apart by
        (43.0, [80.0, 87.0], {"match": 0.5}, [OLD]),
        (69.0, [80.0, 60.0], {}, []),
        (88.0, [80.0, 89.0], {}, []),
    ],
)
def test_advice(old: float, new: list[float], more: dict[str, Any], said: list[str]) -> None:
    """A method that learns no new class, and a network that has learned the compression."""
    assert advice(result(old_as_old=[None, 90.0, old], new_as_new=[None, *new], **more)) == said


def test_without_shares() -> None:
    """One phase, or a detector."""
    assert advice(result()) == []
    assert advice(result(old_as_old=[None], new_as_new=[None])) == []
