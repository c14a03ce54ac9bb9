"""A phase, as a method sees it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from mrdc.codec.image import Pixels
from mrdc.data.examples import Companions, Examples
from mrdc.data.images import ImageSet
from mrdc.nn.net import Net
from mrdc.nn.settings import TrainSettings

Loss = Callable[..., Tensor]  # of a batch: images, labels, and companions if there are any
Substitutes = Mapping[tuple[int, str], Pixels]  # pixels to store, by label and photo id


class Trainer(Protocol):
    """Services of the run that a lesson offers to a method."""

    def fit(
        self, examples: Examples, training: TrainSettings, loss: Loss | None, **options: Any
    ) -> None: ...

    def features(self, examples: Examples) -> Tensor: ...

    def preview(self, substitutes: Substitutes | None) -> Examples: ...

    def build(self) -> Net: ...

    def seed(self, name: str) -> int: ...


@dataclass
class Lesson:
    """A phase, as a method sees it.

    Attributes:
        phase: its number, from 0.
        old: number of classes seen before; the new labels start here.
        new: number of classes in this phase.
        model: the network to train.
        teacher: the network as the last phase left it; None in the first.
        train: images to train on: new ones and the memory. A method may change it.
        fresh: the new images alone.
        memory: the images held of old classes; of all classes once they are stored.
        images: all training images of the classes seen, by label, for their names; only
            `joint` may train on them.
        training: training settings of the phase.
        trainer: the run.
        size: side of the images that the network sees.
        quota: originals per class that the memory has room for once it holds all classes.
        companions: further images to load with every batch of `train`.
        threads: threads for work on images.
    """

    phase: int
    old: int
    new: int
    model: Net
    teacher: Net | None
    train: Examples
    fresh: Examples
    memory: Examples
    images: ImageSet
    training: TrainSettings
    trainer: Trainer
    size: int
    quota: int
    companions: Companions | None = None
    threads: int | None = None

    def fit(
        self,
        examples: Examples,
        training: TrainSettings,
        loss: Loss | None = None,
        **options: Any,
    ) -> None:
        """Train on examples; without a loss, by the loss of the whole method, add-ons included."""
        self.trainer.fit(examples, training, loss, **options)

    def features(self, examples: Examples) -> Tensor:
        """Features (n, d) of evaluation views, in fp32, on the CPU."""
        return self.trainer.features(examples)

    def preview(self, substitutes: Substitutes | None = None) -> Examples:
        """Exemplars of the new classes that would be stored now."""
        return self.trainer.preview(substitutes)

    def build(self) -> Net:
        """A new network, as at the start of the first phase."""
        return self.trainer.build()

    def seed(self, name: str) -> int:
        """A seed for draws under this name; the same in every phase."""
        return self.trainer.seed(name)
