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
    """A phase, as a method sees it."""

    phase: int  # its number, from 0
    old: int  # number of classes seen before; the new labels start here
    new: int  # number of classes in this phase
    model: Net  # the network to train
    teacher: Net | None  # the network as the last phase left it; None in the first
    train: Examples  # images to train on: new ones and the memory. A method may change it
    fresh: Examples  # the new images alone
    memory: Examples  # the images held of old classes; of all classes once they are stored
    images: ImageSet  # all training images of classes seen, for names; only `joint` trains on them
    training: TrainSettings  # training settings of the phase
    trainer: Trainer  # the run
    size: int  # side of the images that the network sees
    quota: int  # originals per class that the memory has room for once it holds all classes
    companions: Companions | None = None  # further images to load with every batch of `train`
    threads: int | None = None  # threads for work on images

    def fit(
        self, examples: Examples, training: TrainSettings, loss: Loss | None = None, **options: Any
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
