"""What tests of methods share: lessons without a run, and a small stream."""

from functools import partial
from typing import Any

from mrdc.data.images import ImageSet
from mrdc.data.protocol import Stream
from mrdc.feed import Examples
from mrdc.image import Photo
from mrdc.methods.base import Lesson
from mrdc.settings import TrainSettings
from tests.conftest import jpeg


def nothing(*_: Any, **__: Any) -> Any:
    """For what a test does not expect to be called."""
    raise AssertionError


def lesson(**given: Any) -> Lesson:
    """The second phase, of a class more than the two before, with only what is given."""
    fields: dict[str, Any] = {
        "phase": 1, "old": 2, "new": 1, "model": nothing, "teacher": None, "train": Examples(),
        "fresh": Examples(), "memory": Examples(), "images": ImageSet((), (), ()),
        "training": TrainSettings(epochs=3, batch_size=4), "loss": nothing, "fit": nothing,
        "features": nothing, "store": lambda: None, "preview": nothing, "build": nothing,
        "size": 8, "seed": len,
    }  # fmt: skip
    return Lesson(**fields | given)


def small_stream(*sizes: int) -> Stream:
    """Four classes of six small photos in phases of these sizes; two more of each to test."""
    train, test = (
        ImageSet(
            tuple("abcd"),
            tuple(
                [Photo(f"{c}/{n}", partial(jpeg, 100 * c + n, 95, 8, 8)) for n in numbers]
                for c in range(4)
            ),
            tuple([len(jpeg(100 * c + n, 95, 8, 8)) for n in numbers] for c in range(4)),
        )
        for numbers in (range(6), range(90, 92))
    )
    return Stream(train, test, sizes)
