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


def small_stream(*sizes: int, images: int = 6) -> Stream:
    """Phases of so many classes of small photos; two more of each to test."""
    classes = range(sum(sizes))
    train, test = (
        ImageSet(
            tuple(chr(ord("a") + c) for c in classes),
            tuple(
                [Photo(f"{c}/{n}", partial(jpeg, 100 * c + n, 95, 8, 8)) for n in numbers]
                for c in classes
            ),
            tuple([len(jpeg(100 * c + n, 95, 8, 8)) for n in numbers] for c in classes),
        )
        for numbers in (range(images), range(90, 92))
    )
    return Stream(train, test, sizes)
