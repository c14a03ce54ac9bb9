"""What a method is: four hooks around one network and one memory.

    start_phase   grow the head, prepare the training set
    loss          of a batch
    end_phase     later stages of training; fills the memory (`lesson.store()`)
    predict       scores of what the network says

Fields are settings; what a method learns in a phase ends in `_` and is a
tensor, an int or None, so that a checkpoint can keep it. Compression belongs to
the memory: no method knows of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.data.images import ImageSet
from mrdc.feed import Examples
from mrdc.nn.heads import Head, Linear
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import Variant
from mrdc.settings import TrainSettings


class Fit(Protocol):
    """`loop.fit` over examples, with what is the same for the whole run filled in."""

    def __call__(
        self,
        examples: Examples,
        training: TrainSettings,
        loss: Callable[[Tensor, Tensor], Tensor],
        **options: Any,
    ) -> None: ...


@dataclass
class Lesson:
    """What a method sees of one phase.

    Attributes:
        phase: its number, from 0.
        old: classes seen before; the new labels start here.
        new: classes of this phase.
        model: the network that learns.
        teacher: the network as the last phase left it; None in the first.
        train: what will be trained on: new images and the memory. A method may change it.
        fresh: the new images alone.
        memory: what is held of old classes; of all classes after `store`.
        images: all training images of the classes seen, by label, for names only;
            `joint` alone may train on them.
        training: settings of the phase.
        fit: trains on examples.
        features: of examples, by `model`, evaluation views, fp32, (n, d) on the CPU.
        store: ranks and encodes the new classes into the memory; once a phase.
        preview: exemplars that `store` would choose now, of the new classes.
        build: a new network, as the first phase starts with.
        seed: from a name, for draws of the method's own; the same in every phase.
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
    fit: Fit
    features: Callable[[Examples], Tensor]
    store: Callable[[], None]
    preview: Callable[[], Examples]
    build: Callable[[], Net]
    seed: Callable[[str], int]


@dataclass(kw_only=True)
class Method:
    """Cross-entropy on whatever there is; the others override what differs."""

    variant: ClassVar[Variant] = "plain"
    head: ClassVar[type[Head]] = Linear
    replays: ClassVar[bool] = True
    clamp: ClassVar[float | None] = None  # of gradients, element by element

    def start_phase(self, lesson: Lesson) -> None:
        """Get ready: at least, grow the head."""
        lesson.model.head.grow(lesson.new)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        """Of images x (n, 3, h, w) and labels y (n,)."""
        return F.cross_entropy(model(x).logits, y)

    def end_phase(self, lesson: Lesson) -> None:
        """Finish: at least, fill the memory."""
        lesson.store()

    def predict(self, out: Output) -> Tensor:
        """What is compared between classes, (n, classes)."""
        return out.scores

    def arrange(self, ids: list[str], ranking: list[int], label: int) -> list[int]:
        """The order in which a class's images are stored, from the selector's ranking."""
        return ranking

    @property
    def first_phase(self) -> str:
        """Names what phase 0 depends on: methods of the same name can share its network."""
        return f"{self.variant}-{self.head.__name__}-cross-entropy"

    def state(self) -> dict[str, Tensor | int]:
        """What was learned in the phases so far, outside the network."""
        values = vars(self).items()
        return {name: value for name, value in values if name.endswith("_") and value is not None}

    def load_state(self, state: Mapping[str, Tensor | int]) -> None:
        """Take up where `state` was taken."""
        for name, value in state.items():
            setattr(self, name, value)


def imprint(features: Tensor, labels: Tensor, first: int, count: int) -> Tensor:
    """Unit rows (count, d): for each class the direction of its mean unit feature."""
    rows = F.normalize(features, dim=1)
    means = torch.stack([rows[labels == first + c].mean(0) for c in range(count)])
    return F.normalize(means, dim=1)


def balanced(examples: Examples) -> Examples:
    """The same number of every class: as many as the smallest has, in their order."""
    places: dict[int, list[int]] = {}
    for place, label in enumerate(examples.labels):
        places.setdefault(label, []).append(place)
    fewest = min(map(len, places.values()))
    return examples.pick(
        sorted(place for of_class in places.values() for place in of_class[:fewest])
    )
