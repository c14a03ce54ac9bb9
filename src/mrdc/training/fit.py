"""The optimisation loop: every training stage of every method calls `fit`."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mrdc._utils.seeds import named_seed
from mrdc.distributed.group import world
from mrdc.methods.lesson import Loss
from mrdc.nn.modes import modes, without_gradients
from mrdc.nn.settings import TrainSettings
from mrdc.training.batches import Feed, in_batches

WARM_UP = 3  # plain steps before a step is recorded as a CUDA graph


@dataclass(frozen=True)
class Epoch:
    """Measurements of one epoch."""

    number: int
    loss: float
    images: int
    seconds: float


@dataclass(frozen=True)
class Stop:
    """Where to resume: the next epoch, and the momentum of each parameter."""

    epoch: int
    momentum: list[Tensor]


def learning_rate(training: TrainSettings, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0."""
    if training.schedule == "cosine":
        return 0.5 * training.lr * (1 + math.cos(math.pi * epoch / training.epochs))
    passed = sum(epoch >= max(1, round(part * training.epochs)) for part in training.milestones)
    return training.lr * training.gamma**passed


def fit(
    model: nn.Module,
    loss: Loss,
    feed: Feed,
    training: TrainSettings,
    *,
    seed: int,
    parameters: Iterable[nn.Parameter] | None = None,
    norm: Literal["train", "eval"] = "train",
    clamp: float | None = None,
    bf16: bool = False,
    resume: Stop | None = None,
    rate: Callable[[int], float] | None = None,
    graph: bool = True,
    first_step: AbstractContextManager[None] | None = None,
    on_epoch: Callable[[Epoch, Stop], None] = lambda epoch, stop: None,
) -> None:
    """Minimise `loss(images, labels, ...)` by SGD over a feed.

    Args:
        parameters: parameters to train; by default all that require gradients.
        norm: mode of the batch norms during training.
        clamp: bound on every element of the gradients.
        rate: learning rate of an epoch; by default the schedule of the training.
        graph: whether steps on a GPU may be recorded.
        first_step: entered for the first step only.
    """
    able = [p for p in model.parameters() if p.requires_grad]
    chosen = {id(p) for p in (able if parameters is None else parameters)}
    trained = [p for p in able if id(p) in chosen]
    others = [p for p in able if id(p) not in chosen]
    captures = graph and next(model.parameters()).is_cuda and world().size == 1
    step = Step(loss, trained, training, clamp, bf16, captures)
    stop = resume or Stop(0, [])
    if stop.momentum:
        step.set_momentum(stop.momentum)
    shown = max(2, len(feed))  # a single image is shown twice
    for number in range(stop.epoch, training.epochs):
        start = time.perf_counter()
        step.set_rate(rate(number) if rate else learning_rate(training, number))
        total = torch.zeros((), device=trained[0].device)
        factors = brightness(training, len(feed), seed, number)
        with modes(model, norm), without_gradients(others), seeded(total.device, seed, number):
            for images, labels, *more in feed.epoch(training.batch_size, seed, number):
                if training.brightness:
                    images = jitter(images, next(factors))
                with first_step or nullcontext():
                    total += step(images, labels, *more) * len(labels)
                first_step = None
        mean = float(world().sum(total)) / shown  # the one wait for the device
        epoch = Epoch(number, mean, len(feed), time.perf_counter() - start)
        on_epoch(epoch, Stop(number + 1, step.momentum()))


@contextmanager
def seeded(device: torch.device, seed: int, epoch: int) -> Iterator[None]:
    """Seed what networks and methods draw from torch in an epoch, such as dropout."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(named_seed(seed, f"torch {epoch} {world().rank}"))
        yield


def brightness(
    training: TrainSettings, count: int, seed: int, epoch: int
) -> Iterator[NDArray[np.float64]]:
    """Random factors in 1 +- brightness for the images of each batch (of this rank's part)."""
    rng, spread = np.random.default_rng((seed, epoch, 1)), training.brightness
    for batch in in_batches(np.arange(count), training.batch_size):
        yield world().part(rng.uniform(1 - spread, 1 + spread, len(batch)))


def jitter(images: Tensor, factors: NDArray[np.float64]) -> Tensor:
    """Multiply the brightness of each image by a factor."""
    there = torch.from_numpy(factors.astype(np.float32)).to(images.device, non_blocking=True)
    return (images * there[:, None, None, None]).clamp(0, 255)


class Step:
    """One step of SGD; on a GPU recorded once as a CUDA graph and replayed.

    A graph has one batch size; other batches, such as the last of an epoch, run without it.
    """

    def __init__(
        self,
        loss: Loss,
        trained: list[nn.Parameter],
        training: TrainSettings,
        clamp: float | None,
        bf16: bool,
        captures: bool,
    ):
        self.loss, self.trained, self.clamp, self.bf16 = loss, trained, clamp, bf16
        self.device = trained[0].device
        self.optimiser = torch.optim.SGD(
            trained,
            lr=torch.tensor(training.lr, device=self.device) if captures else training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            fused=True if captures else None,
        )
        self.size = training.batch_size  # batch size to record
        self.waiting = WARM_UP if captures else -1  # plain steps before recording; -1: never record
        self.stream = torch.cuda.Stream() if captures else None  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None

    def set_rate(self, rate: float) -> None:
        """Set the learning rate; a graph reads it from the same tensor."""
        group = self.optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def momentum(self) -> list[Tensor]:
        """Momentum of each trained parameter (not a copy)."""
        state = self.optimiser.state
        return [state[p].get("momentum_buffer", torch.zeros_like(p)) for p in self.trained]

    def set_momentum(self, momentum: list[Tensor]) -> None:
        for p, buffer in zip(self.trained, momentum, strict=True):
            same_layout = torch.empty_like(p, requires_grad=False).copy_(buffer)
            self.optimiser.state[p]["momentum_buffer"] = same_layout

    def __call__(self, *batch: Tensor) -> Tensor:
        """Take a step; returns the loss, still on the device."""
        if self.waiting < 0:
            return self._plain(*batch)
        if len(batch[1]) != self.size:
            with torch.backends.cudnn.flags(enabled=True, benchmark=False):
                return self._plain(*batch)  # too rare to be worth a kernel search
        assert self.stream is not None
        if self.waiting > 0:
            self.waiting -= 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                value = self._plain(*batch)
            torch.cuda.current_stream().wait_stream(self.stream)
            return value
        if self.graph is None:
            self._record(batch)
        for here, given in zip(self.batch, batch, strict=True):
            here.copy_(given)
        assert self.graph is not None
        self.graph.replay()
        return self.value

    def _record(self, batch: tuple[Tensor, ...]) -> None:
        """Record a step, without taking it."""
        self.batch = [tensor.clone() for tensor in batch]
        self.graph = torch.cuda.CUDAGraph()
        mode = "thread_local"  # a feed may decode in another thread meanwhile
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode=mode):
            self.value = self._plain(*self.batch)

    def _plain(self, *batch: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            value = self.loss(*batch)
        world().backward(value, len(batch[1]), self.trained)
        if self.clamp is not None:
            nn.utils.clip_grad_value_(self.trained, self.clamp)
        self.optimiser.step()
        return value.detach()
