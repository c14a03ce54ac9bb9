"""The two ends of the scale: no memory at all, and all images for ever."""

from dataclasses import dataclass
from typing import ClassVar

from mrdc.data.examples import from_images
from mrdc.methods.base import Lesson, Method


@dataclass(kw_only=True)
class Finetune(Method):
    """Train on the new classes alone; forgets (lower bound)."""

    replays: ClassVar[bool] = False

    def end_phase(self, lesson: Lesson) -> None:
        pass


@dataclass(kw_only=True)
class Joint(Finetune):
    """Train anew on all classes seen, with all their images (upper bound)."""

    def start_phase(self, lesson: Lesson) -> None:
        lesson.model = lesson.build()
        lesson.model.head.grow(lesson.old + lesson.new)
        lesson.train = from_images(lesson.images)
