"""The one optimisation loop: every training stage of every method is a call of `fit`."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from mrdc.training.feed import Feed
from mrdc.training.settings import TrainSettings

Loss = Callable[..., Tensor]  # of a batch: images, labels, and what else a feed brings
WARM_UP = 3  # plain steps before a step is recorded as a CUDA graph


@dataclass(frozen=True)
class Epoch:
    """What an epoch was like."""

    number: int
    loss: float
    images: int
    seconds: float


@dataclass(frozen=True)
class Stop:
    """Where an interrupted `fit` goes on: the epoch, and the momentum of each parameter."""

    epoch: int
    momentum: list[Tensor]


def learning_rate(training: TrainSettings, epoch: int) -> float:
    """Of an epoch, counted from 0; the schedule moves at the end of an epoch."""
    if training.schedule == "cosine":
        return 0.5 * training.lr * (1 + math.cos(math.pi * epoch / training.epochs))
    drops = (max(1, round(part * training.epochs)) for part in training.milestones)
    passed = sum(epoch >= drop for drop in drops)
    return training.lr * training.gamma**passed


@contextmanager
def modes(model: nn.Module, norm: Literal["train", "eval"]) -> Iterator[None]:
    """Training mode, with batch norm in a mode of its own; afterwards as it was before."""
    before = {module: module.training for module in model.modules()}
    model.train()
    for module in before:
        if isinstance(module, nn.BatchNorm2d):
            module.train(norm == "train")
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def without_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Spare the work of gradients that nobody uses."""
    able = [p for p in parameters if p.requires_grad]
    for p in able:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in able:
            p.requires_grad_(True)


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
    until: int | None = None,
    rate: Callable[[int], float] | None = None,
    graph: bool = True,
    on_epoch: Callable[[Epoch, Stop], None] = lambda epoch, stop: None,
) -> Stop:
    """Minimise `loss(images, labels, ...)` by SGD over a feed; returns how to go on from there.

    Args:
        parameters: those to train; by default all that require gradients.
        norm: mode of the batch norms; this is the only place that sets it.
        clamp: bound on every element of the gradients.
        resume: where an earlier call stopped.
        until: the epoch to stop before; by default the end of the training.
        rate: learning rate of an epoch; by default the schedule of the training.
        graph: whether steps on a GPU may be recorded.
        on_epoch: told after every epoch how it went and how to go on from there.
    """
    able = [p for p in model.parameters() if p.requires_grad]
    chosen = {id(p) for p in (able if parameters is None else parameters)}
    trained = [p for p in able if id(p) in chosen]
    others = [p for p in able if id(p) not in chosen]
    captures = graph and next(model.parameters()).is_cuda
    step = Step(loss, trained, training, clamp, bf16, captures)
    stop = resume or Stop(0, [])
    if stop.momentum:
        step.set_momentum(stop.momentum)
    for number in range(stop.epoch, training.epochs if until is None else until):
        start = time.perf_counter()
        step.set_rate(rate(number) if rate else learning_rate(training, number))
        total = torch.zeros((), device=trained[0].device)
        brightness = np.random.default_rng((seed, number, 1))
        with modes(model, norm), without_gradients(others):
            for images, labels, *more in feed.epoch(training.batch_size, seed, number):
                if training.brightness:
                    images = jitter(images, training.brightness, brightness)
                total += step(images, labels, *more) * len(labels)
        mean = float(total) / len(feed)  # the one wait for the device
        epoch = Epoch(number, mean, len(feed), time.perf_counter() - start)
        stop = Stop(number + 1, step.momentum())
        on_epoch(epoch, stop)
    return stop


def jitter(images: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    """Brightness of each image times a random factor in 1 +- strength."""
    factors = rng.uniform(1 - strength, 1 + strength, len(images)).astype(np.float32)
    there = torch.from_numpy(factors).to(images.device, non_blocking=True)
    return (images * there[:, None, None, None]).clamp(0, 255)


class Step:
    """One step of SGD; on a GPU recorded once as a CUDA graph and replayed.

    A graph has one batch size: other batches, such as the last of an epoch, are
    run plainly.
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
        self.size = training.batch_size  # of the steps worth recording
        self.waiting = WARM_UP if captures else -1  # plain steps until the recording; -1: never
        self.stream = torch.cuda.Stream() if captures else None  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on; a graph reads it from where it lies."""
        group = self.optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def momentum(self) -> list[Tensor]:
        """Momentum of each trained parameter, not a copy."""
        state = self.optimiser.state
        return [state[p].get("momentum_buffer", torch.zeros_like(p)) for p in self.trained]

    def set_momentum(self, momentum: list[Tensor]) -> None:
        for p, buffer in zip(self.trained, momentum, strict=True):
            same_layout = torch.empty_like(p, requires_grad=False).copy_(buffer)
            self.optimiser.state[p]["momentum_buffer"] = same_layout

    def __call__(self, *batch: Tensor) -> Tensor:
        """Learn from a batch; its loss, still on the device."""
        if self.waiting < 0:
            return self._plain(*batch)
        if len(batch[1]) != self.size:
            with torch.backends.cudnn.flags(enabled=True, benchmark=False):
                return self._plain(*batch)  # not worth a search for fast kernels
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
        """Record a step; recording changes nothing."""
        self.batch = [tensor.clone() for tensor in batch]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.value = self._plain(*self.batch)

    def _plain(self, *batch: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            value = self.loss(*batch)
        value.backward()  # type: ignore[no-untyped-call]
        if self.clamp is not None:
            nn.utils.clip_grad_value_(self.trained, self.clamp)
        self.optimiser.step()
        return value.detach()
