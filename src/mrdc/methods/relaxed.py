"""Relaxed: preserve the old network only as far as images are missing; wraps another method.

Distillation and ranking make up for images of old classes that are gone. A compressed memory may
hold nearly all of them: then these terms are not needed, and keep the network from learning new
classes. Here they are weighed by the share of the old classes' images that the memory lacks, or
by a power of it.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mrdc.methods.base import Method, Wrapper
from mrdc.methods.lesson import Lesson
from mrdc.nn.net import Net, Output


@dataclass
class Relaxed(Wrapper):
    """Preservation in proportion to what the memory lacks; nothing is changed while it is empty."""

    power: float = 1.0  # of the share that is missing; 2 preserves less
    missing = 1.0  # share of the images of old classes that are not in the memory; not a setting
    loss = Method.loss  # type: ignore[assignment]  # the sum of the two parts below

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_parts()

    def start_phase(self, lesson: Lesson) -> None:
        self.inner.start_phase(lesson)
        seen = sum(map(len, lesson.images.photos[: lesson.old]))
        self.missing = 1 - min(len(lesson.memory), seen) / max(seen, 1)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        weight: float = self.missing**self.power
        if not weight:
            return out.logits.new_zeros(())
        return weight * self.inner.preservation(model, old, out, x, y)

    def report(self) -> dict[str, Any]:
        return self.inner.report() | {"share of old images missing": self.missing}
