"""What a method is: five hooks around one network and one memory.

    start_phase   grow the head, prepare the training set
    loss          of a batch: of its labels, and of what is to be kept from the old network
    end_epoch     what is learned beside the network
    end_phase     later stages of training; fills the memory (`lesson.store()`)
    predict       scores of what the network says

Fields are settings; what a method learns in a phase ends in `_` and is a
tensor, an int or None, so that a checkpoint can keep it. Compression belongs to
the memory: no method knows of it. Add-ons wrap a method: `DDE(LUCIR())`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrdc.codec.image import Pixels
from mrdc.data.examples import Companions, Examples
from mrdc.data.images import ImageSet
from mrdc.nn.branches import Body
from mrdc.nn.heads import Head, Linear, SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import Variant
from mrdc.training.fit import Loss, Stop
from mrdc.training.settings import TrainSettings


class Fit(Protocol):
    """`loop.fit` over examples, with what is the same for the whole run filled in."""

    def __call__(
        self,
        examples: Examples,
        training: TrainSettings,
        loss: Loss,
        **options: Any,
    ) -> Stop: ...


Instead = Mapping[tuple[int, str], Pixels]


class Store(Protocol):
    """Ranks and encodes the new classes into the memory."""

    def __call__(self, instead: Instead = ...) -> None: ...


class Preview(Protocol):
    """Exemplars of the new classes that would be stored now."""

    def __call__(self, instead: Instead = ...) -> Examples: ...


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
        loss: of a batch, by the whole method (add-ons too), model and teacher.
        fit: trains on examples; with `until`, to be called again, later in the phase.
        features: of examples, by `model`, evaluation views, fp32, (n, d) on the CPU.
        store: ranks and encodes the new classes into the memory; once a phase. Where it is
            given pixels, by label and name, it stores these and no other image.
        preview: exemplars that `store` would choose now, of the new classes.
        build: a new network, as the first phase starts with.
        size: side of the images that the network sees.
        quota: originals of a class that the memory has room for, once it holds all classes.
        seed: from a name, for draws of the method's own; the same in every phase.
        companions: further images that `loss` wants with every batch of `train`.
        threads: for work on images; by default one for each core, up to eight.
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
    loss: Loss
    fit: Fit
    features: Callable[[Examples], Tensor]
    store: Store
    preview: Preview
    build: Callable[[], Net]
    size: int
    quota: int
    seed: Callable[[str], int]
    companions: Companions | None = None
    threads: int | None = None


@dataclass(kw_only=True)
class Method:
    """Cross-entropy on whatever there is; the others override what differs."""

    variant: ClassVar[Variant] = "plain"
    head: ClassVar[type[Head]] = Linear
    body: ClassVar[Body] = "plain"  # what the network becomes after the first phase
    replays: ClassVar[bool] = True
    clamp: ClassVar[float | None] = None  # of gradients, element by element

    def start_phase(self, lesson: Lesson) -> None:
        """Get ready: at least, grow the head."""
        lesson.model.head.grow(lesson.new)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        """Of images x (n, 3, h, w) and labels y (n,); companions would follow these."""
        out = model(x)
        loss = self.classification(model, out, y)
        return loss if old is None else loss + self.preservation(model, old, out, x, y)

    def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
        """The loss of the labels."""
        return F.cross_entropy(out.logits, y)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        """The loss of what should stay as the old network has it."""
        return out.logits.new_zeros(())

    def end_epoch(self, lesson: Lesson, epoch: int) -> None:
        """Called after every epoch of the main stage, counted from 0."""

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

    def report(self) -> dict[str, Any]:
        """What people should know of the phase, as JSON."""
        return {}

    def state(self) -> dict[str, Tensor | int]:
        """What was learned in the phases so far, outside the network."""
        values = vars(self).items()
        return {name: value for name, value in values if name.endswith("_") and value is not None}

    def load_state(self, state: Mapping[str, Tensor | int]) -> None:
        """Take up where `state` was taken."""
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class Wrapper(Method):
    """A method around another, which answers for all that the wrapper does not override."""

    inner: Method

    def state(self) -> dict[str, Tensor | int]:
        return super().state() | self.inner.state()

    def load_state(self, state: Mapping[str, Tensor | int]) -> None:
        own = {field.name for field in fields(self)}
        super().load_state({name: value for name, value in state.items() if name in own})
        self.inner.load_state({name: value for name, value in state.items() if name not in own})


def names_first_phase(method: Method) -> bool:
    """Whether `first_phase` says all that the network of phase 0 depends on.

    Ours do. A class of somebody else may train otherwise than what it is derived from, so it
    must say it itself.
    """
    kind = type(method)
    said = kind.__module__.startswith("mrdc.") or "first_phase" in vars(kind)
    return said and (not isinstance(method, Wrapper) or names_first_phase(method.inner))


class _Inside:
    """An attribute of a wrapper that is its inner method's."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, wrapper: Wrapper, owner: type) -> Any:
        return getattr(wrapper.inner, self.name)


for _name in (
    "variant", "head", "body", "replays", "clamp", "first_phase", "start_phase", "loss",
    "classification", "preservation", "end_epoch", "end_phase", "predict", "arrange", "report",
):  # fmt: skip
    setattr(Wrapper, _name, _Inside(_name))


def grow_imprinted(lesson: Lesson) -> None:
    """New rows of a cosine head: directions of mean features, as long as old rows on average."""
    head = lesson.model.head
    assert isinstance(head, SplitCosine)
    if lesson.phase == 0:
        head.grow(lesson.new)
        return
    labels = torch.tensor(lesson.fresh.labels)
    rows = imprint(lesson.features(lesson.fresh), labels, lesson.old, lesson.new)
    head.grow(lesson.new, rows * head.mean_norm().cpu())


def imprint(features: Tensor, labels: Tensor, first: int, count: int) -> Tensor:
    """Unit rows (count, d): for each class the direction of its mean unit feature."""
    rows = F.normalize(features, dim=1)
    means = torch.stack([rows[labels == first + c].mean(0) for c in range(count)])
    return F.normalize(means, dim=1)


def balanced(examples: Examples) -> Examples:
    """The same number of every class: as many as a class has on average, in their order.

    Bytes, not numbers, are shared among classes: one with fewer images shows some of them
    again, one with more leaves its last ones out.
    """
    places: dict[int, list[int]] = {}
    for place, label in enumerate(examples.labels):
        places.setdefault(label, []).append(place)
    count = round(len(examples) / len(places))
    chosen = [np.resize(of_class, count) for of_class in places.values()]
    return examples.pick(np.sort(np.concatenate(chosen)).tolist())
