"""The interface of a method: hooks around one network and one memory.

    for phase in stream:
        method.start_phase(lesson)          grow the head, prepare the training set
        for batch in epochs:
            method.loss(model, old, x, y)   labels, and distillation from the old network
        method.before_store(lesson)         later stages of training on what will be stored
        memory.add(...)                     the engine stores, in the order of `arrange`
        method.end_phase(lesson)            later stages of training on the memory
        method.predict(output)              scores to compare between classes

Fields are settings. State learned in a phase ends in `_` and is a tensor, an int or None, so
that a checkpoint can hold it. Compression belongs to the memory: no method knows about it.
Add-ons wrap a method: `DDE(LUCIR())`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import torch.nn.functional as F
from torch import Tensor

from mrdc._utils.errors import UsageError
from mrdc.methods.lesson import Lesson, Substitutes
from mrdc.nn.branches import Body
from mrdc.nn.heads import Head, Linear
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import Variant


@dataclass(frozen=True)
class Needs:
    """Requirements of a method."""

    variant: Variant = "plain"  # variant of our ResNet
    head: type[Head] = Linear  # classifier
    body: Body = "plain"  # what the backbone becomes after the first phase
    replays: bool = True  # whether there is a memory
    clamp: float | None = None  # bound on every element of the gradients
    maps: bool = False  # whether the loss reads the maps of all stages


@dataclass(kw_only=True)
class Method:
    """Cross-entropy on whatever there is; the other methods override what differs."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            allowed = get_args(setting.type) if get_origin(setting.type) is Literal else ()
            value = getattr(self, setting.name)
            if allowed and value not in allowed:
                *others, last = map(repr, allowed)
                choices = f"{', '.join(others)} or {last}"
                raise UsageError(f"{setting.name} must be {choices}, got {value!r}")

    @property
    def needs(self) -> Needs:
        return Needs()

    def start_phase(self, lesson: Lesson) -> None:
        """Prepare a phase: at least, grow the head."""
        lesson.model.head.grow(lesson.new)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        """Loss of images x (n, 3, h, w) and labels y (n,); companions, if any, follow."""
        out = model(x)
        loss = self.classification(model, out, y)
        return loss if old is None else loss + self.preservation(model, old, out, x, y)

    def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
        """Loss against the labels."""
        return F.cross_entropy(out.logits, y)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        """Distillation loss against the old network."""
        return out.logits.new_zeros(())

    def before_store(self, lesson: Lesson) -> None:
        """Train or measure before the new classes are stored."""

    def substitutes(self, lesson: Lesson) -> Substitutes | None:
        """Pixels to store instead of the images; images without any are left out."""
        return None

    def arrange(self, ids: list[str], ranking: Sequence[int], label: int) -> Sequence[int]:
        """Order in which the images of a class are stored, from the selector's ranking."""
        return ranking

    def end_phase(self, lesson: Lesson) -> None:
        """Train or measure after the new classes are stored."""

    def predict(self, out: Output) -> Tensor:
        """Scores to compare between classes, (n, classes)."""
        return out.scores

    @property
    def first_phase(self) -> str:
        """Identifies the training of phase 0: methods with the same string share its network."""
        return f"{self.needs.variant}-{self.needs.head.__name__}-cross-entropy"

    def report(self) -> dict[str, Any]:
        """JSON values about the phase for people to read."""
        return {}

    def state(self) -> dict[str, Tensor | int]:
        """State learned so far outside the network."""
        values = vars(self).items()
        return {name: value for name, value in values if name.endswith("_") and value is not None}

    def load_state(self, state: Mapping[str, Tensor | int]) -> None:
        """Restore a state."""
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class Wrapper(Method):
    """An add-on to another method, which handles everything the add-on does not override."""

    inner: Method

    def need_parts(self) -> None:
        """Refuse a method whose loss is not the sum of classification and preservation."""
        inner = self.inner
        while isinstance(inner, Wrapper) and type(inner).loss is Wrapper.loss:
            inner = inner.inner
        if isinstance(inner, Method) and type(inner).loss is not Method.loss:
            outer, name = type(self).__name__, type(inner).__name__
            raise UsageError(f"{outer} cannot wrap {name}, which has a loss of its own")

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def start_phase(self, lesson: Lesson) -> None:
        self.inner.start_phase(lesson)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
        return self.inner.loss(model, old, x, y, *more)

    def classification(self, model: Net, out: Output, y: Tensor) -> Tensor:
        return self.inner.classification(model, out, y)

    def preservation(self, model: Net, old: Net, out: Output, x: Tensor, y: Tensor) -> Tensor:
        return self.inner.preservation(model, old, out, x, y)

    def before_store(self, lesson: Lesson) -> None:
        self.inner.before_store(lesson)

    def substitutes(self, lesson: Lesson) -> Substitutes | None:
        return self.inner.substitutes(lesson)

    def arrange(self, ids: list[str], ranking: Sequence[int], label: int) -> Sequence[int]:
        return self.inner.arrange(ids, ranking, label)

    def end_phase(self, lesson: Lesson) -> None:
        self.inner.end_phase(lesson)

    def predict(self, out: Output) -> Tensor:
        return self.inner.predict(out)

    @property
    def first_phase(self) -> str:
        return self.inner.first_phase

    def report(self) -> dict[str, Any]:
        return self.inner.report()

    def state(self) -> dict[str, Tensor | int]:
        return super().state() | self.inner.state()

    def load_state(self, state: Mapping[str, Tensor | int]) -> None:
        own = {field.name for field in fields(self)} & state.keys()
        super().load_state({name: state[name] for name in own})
        self.inner.load_state({name: state[name] for name in state.keys() - own})


def learned_names(method: Method) -> set[str]:
    """Names of everything that a method, or the one it wraps, may learn outside the network."""
    inner = learned_names(method.inner) if isinstance(method, Wrapper) else set()
    return inner | {field.name for field in fields(method) if field.name.endswith("_")}


def reads_maps(method: Method) -> bool:
    """Whether the loss may read the maps of all stages, as any loss from another package may."""
    if isinstance(method, Wrapper) and reads_maps(method.inner):
        return True
    return method.needs.maps or not type(method).__module__.startswith("mrdc.")


def names_first_phase(method: Method) -> bool:
    """Whether `first_phase` identifies all that the network of phase 0 depends on.

    Our methods do. A class from another package may train differently from the class it
    derives from, so it has to define `first_phase` itself.
    """
    kind = type(method)
    said = kind.__module__.startswith("mrdc.") or "first_phase" in vars(kind)
    return said and (not isinstance(method, Wrapper) or names_first_phase(method.inner))
