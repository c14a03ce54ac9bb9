"""Cross-entropy and nothing else: on new images, on new and stored ones, or on all of them."""

from dataclasses import dataclass

from mrdc.data.examples import from_images
from mrdc.methods.base import Method, Needs
from mrdc.methods.lesson import Lesson
from mrdc.methods.shared import grow_imprinted
from mrdc.nn.heads import SplitCosine


@dataclass(kw_only=True)
class Finetune(Method):
    """Train on the new classes alone (lower bound)."""

    @property
    def needs(self) -> Needs:
        return Needs(replays=False)


@dataclass(kw_only=True)
class PlainReplay(Method):
    """Train on the new classes and the memory; nothing preserves the old network."""


@dataclass(kw_only=True)
class CosineReplay(PlainReplay):
    """Plain replay with LUCIR's head: cosines, imprinted new rows, fixed old rows."""

    @property
    def needs(self) -> Needs:
        return Needs(variant="lucir", head=SplitCosine)

    def start_phase(self, lesson: Lesson) -> None:
        grow_imprinted(lesson)


@dataclass(kw_only=True)
class Joint(Finetune):
    """Train from scratch on all images of all classes seen (upper bound)."""

    def start_phase(self, lesson: Lesson) -> None:
        lesson.model = lesson.build()
        lesson.model.head.grow(lesson.old + lesson.new)
        lesson.train = from_images(lesson.images)
