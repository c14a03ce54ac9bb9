"""The optimisation loop, compared with SGD by hand."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mrdc.methods.lesson import Loss
from mrdc.nn.modes import modes
from mrdc.training.fit import Epoch, Step, Stop, brightness, fit, jitter, learning_rate
from mrdc.training.settings import TrainSettings
from tests.helpers import changed, state_of

PLAIN = TrainSettings(epochs=3, lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4)


pytestmark = pytest.mark.usefixtures("seeded")


class Shuffled:
    """A feed of plain tensors, in an order given by (seed, epoch)."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self)))
        for index in torch.split(order, batch_size):
            yield tuple(part[index] for part in self.parts)


def greys(count: int = 10, *more: Tensor) -> Shuffled:
    """Small images from 0 to 255, and labels 0 and 1."""
    images = torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8)
    return Shuffled(images, torch.arange(count) % 2, *more)


class Small(nn.Module):
    """A convolution, a batch norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm(self.conv(images.float() / 255))
        out: Tensor = self.head(self.drop(x.relu().mean((2, 3))))
        return out


def cross_entropy(model: nn.Module) -> Loss:
    return lambda x, y: nn.functional.cross_entropy(model(x), y)


# The learning rate


def test_learning_rate_falls_at_milestones_or_along_a_cosine() -> None:
    """At 30 and 60 of 90 epochs, counted from 0; BiC's three drops; no milestones."""
    rates = [learning_rate(TrainSettings(), epoch) for epoch in range(90)]
    assert rates == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)
    three = TrainSettings(epochs=10, lr=1.0, milestones=(0.3, 0.6, 0.8), gamma=0.5)
    rates = [learning_rate(three, epoch) for epoch in (2, 3, 5, 6, 7, 8, 9)]
    assert rates == [1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert learning_rate(replace(three, milestones=()), 9) == 1.0
    cosine = TrainSettings(epochs=90, lr=0.2, schedule="cosine")
    rates = [learning_rate(cosine, epoch) for epoch in (0, 30, 45, 90)]
    assert rates == pytest.approx([0.2, 0.15, 0.1, 0.0])


# Training


@pytest.mark.parametrize("schedule", ["multistep", "cosine"])
def test_fit_is_sgd_with_momentum_and_weight_decay(schedule: str) -> None:
    """v <- 0.9 v + (gradient + 0.01 w); w <- w - rate * v, on a linear problem."""
    training = replace(PLAIN, epochs=6, schedule=schedule)  # type: ignore[arg-type]
    feed = Shuffled(torch.randn(10, 3), torch.randn(10))
    model = nn.Linear(3, 1)
    weights = torch.cat([model.weight.detach()[0], model.bias.detach()]).double()
    speed = torch.zeros(4).double()
    for epoch in range(6):
        cosine = 0.05 * (1 + math.cos(math.pi * epoch / 6))
        rate = cosine if schedule == "cosine" else 0.1 * 0.1 ** (epoch // 2)
        for x, y in feed.epoch(4, 7, epoch):
            rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
            error = rows @ weights - y.double()
            speed = 0.9 * speed + 2 * (error[:, None] * rows).mean(0) + 0.01 * weights
            weights = weights - rate * speed
    fit(model, lambda x, y: (model(x)[:, 0] - y).square().mean(), feed, training, seed=7)
    found = torch.cat([model.weight[0], model.bias]).double()
    torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-6)


def test_only_the_chosen_parameters_are_trained() -> None:
    """Others have no gradients meanwhile; frozen ones stay frozen even if chosen."""
    model, able = Small(), []
    model.conv.bias.requires_grad_(False)  # type: ignore[union-attr]
    before = state_of(model)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        able.append({name for name, p in model.named_parameters() if p.requires_grad})
        return cross_entropy(model)(x, y)

    fit(model, loss, greys(), PLAIN, seed=0, parameters=model.head.parameters(), norm="eval")
    assert changed(model, before) == {"head.weight", "head.bias"}
    assert all(names == {"head.weight", "head.bias"} for names in able)
    for chosen in (None, list(model.parameters())):
        fit(model, cross_entropy(model), greys(), PLAIN, seed=0, parameters=chosen)
        assert set(before) - changed(model, before) == {"conv.bias"}
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        assert frozen == ["conv.bias"]


def test_gradients_and_modes_are_restored() -> None:
    """After training in evaluation mode, after an error, and around nested modes."""
    model = Small().eval()
    fit(model, cross_entropy(model), greys(), replace(PLAIN, epochs=1), seed=0)
    assert not any(module.training for module in model.modules())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fit(model, loss, greys(), PLAIN, seed=0, parameters=model.head.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert not any(module.training for module in model.modules())
    with modes(model, "train"):
        with modes(model, "eval"):
            assert model.training and not model.norm.training
        assert all(module.training for module in model.modules())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_every_kind_of_batch_norm_has_its_mode(norm: type[nn.Module]) -> None:
    """Networks of users have others than ours."""
    model = nn.Sequential(norm(3), nn.Dropout())
    with modes(model, "eval"):
        assert [module.training for module in model] == [False, True]


@pytest.mark.parametrize("norm", ["train", "eval"])
def test_batch_norms_have_their_own_mode(norm: str) -> None:
    """In "eval" their statistics stay; others train either way, even if modes change in between."""
    model, seen = Small(), []
    before = state_of(model)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append((model.training, model.drop.training, model.norm.training))
        return cross_entropy(model)(x, y)

    def look(epoch: Epoch, stop: Stop) -> None:
        model.eval()

    fit(model, loss, greys(), PLAIN, seed=0, norm=norm, on_epoch=look)  # type: ignore[arg-type]
    assert len(seen) > 1 and set(seen) == {(True, True, norm == "train")}
    buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert changed(model, before) & buffers == (buffers if norm == "train" else set())


@pytest.mark.parametrize(("clamp", "step"), [(None, 100.0), (5.0, 5.0), (200.0, 100.0)])
def test_gradients_are_clamped_element_by_element(clamp: float | None, step: float) -> None:
    """A gradient of (100, -1) moves each weight by at most the bound."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    once = TrainSettings(epochs=1, lr=1.0, momentum=0, weight_decay=0, batch_size=1, milestones=())
    feed = Shuffled(torch.tensor([[100.0, -1.0]]), torch.zeros(1))
    fit(model, lambda x, y: model(x).sum(), feed, once, seed=0, clamp=clamp)
    assert model.weight.tolist() == [[-step, 1.0]]


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("stopped", [1, 2, 4, 5])
def test_resuming_changes_nothing(stopped: int, momentum: float) -> None:
    """Bit for bit, with brightness; a stop can be used twice, and needs its momentum."""
    training = replace(PLAIN, epochs=5, momentum=momentum, brightness=0.3, milestones=(0.6,))
    feed, whole = greys(), Small()
    start = state_of(whole)
    kept: dict[int, tuple[nn.Module, Stop]] = {}

    def keep(epoch: Epoch, stop: Stop) -> None:
        assert stop.epoch == epoch.number + 1
        kept[stop.epoch] = copy.deepcopy((whole, stop))

    fit(whole, cross_entropy(whole), feed, training, seed=3, on_epoch=keep)
    assert sorted(kept) == [1, 2, 3, 4, 5]
    assert changed(whole, start)
    stop = kept[stopped][1]
    none = Stop(stop.epoch, [torch.zeros_like(buffer) for buffer in stop.momentum])
    for start_at in (stop, stop, none):
        model, again = copy.deepcopy(kept[stopped][0]), list[int]()

        def note(epoch: Epoch, stop: Stop, again: list[int] = again) -> None:
            again.append(epoch.number)

        fit(model, cross_entropy(model), feed, training, seed=3, resume=start_at, on_epoch=note)
        assert again == list(range(stopped, 5))
        differs = start_at is none and momentum > 0 and stopped < 5
        assert bool(changed(model, state_of(whole))) == differs


def test_momentum_takes_the_layout_of_its_parameter() -> None:
    """Files do not record the layout, and fused steps need it."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    kept = [torch.randn(4, 3, 3, 3), torch.randn(4)]
    step = Step(lambda x, y: x, list(conv.parameters()), PLAIN, None, False, captures=False)
    step.set_momentum(kept)
    weight, bias = step.momentum()
    assert weight.stride() == conv.weight.stride() != kept[0].stride()
    assert torch.equal(weight, kept[0]) and torch.equal(bias, kept[1])


@pytest.mark.parametrize("bf16", [True, False])
def test_loss_sees_everything_that_a_feed_brings(bf16: bool) -> None:
    """Row by row, untouched; in bf16 under autocast. An epoch's loss is the mean over images."""
    model, batches, seen = Small(), list[tuple[Tensor, ...]](), list[Epoch]()
    feed = greys(10, *(torch.arange(10) + 100 * number for number in range(3)))

    def loss(*batch: Tensor) -> Tensor:
        batches.append(batch)
        out = model(batch[0])
        assert out.dtype == (torch.bfloat16 if bf16 else torch.float32)
        total: Tensor = batch[2].float().mean() + 0 * out.sum()
        return total

    def note(epoch: Epoch, stop: Stop) -> None:
        seen.append(epoch)

    fit(model, loss, feed, replace(PLAIN, epochs=2), seed=3, bf16=bf16, on_epoch=note)
    expected = [batch for epoch in (0, 1) for batch in feed.epoch(4, 3, epoch)]
    for batch, wanted in zip(batches, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, wanted, strict=True))
    assert [epoch.loss for epoch in seen] == pytest.approx([4.5] * 2)
    assert [(epoch.number, epoch.images) for epoch in seen] == [(0, 10), (1, 10)]
    assert all(epoch.seconds > 0 for epoch in seen)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# Brightness


@settings(max_examples=50, deadline=None)
@given(strength=st.floats(0.01, 0.9), seed=st.integers(0, 99))
def test_brightness_is_one_factor_per_image(strength: float, seed: int) -> None:
    """Between 1 - strength and 1 + strength, the same for all its pixels and channels."""
    images = torch.arange(8 * 3 * 4).reshape(8, 3, 2, 2).float() + 1
    training = replace(PLAIN, brightness=strength, batch_size=400)
    factors = jitter(images, next(brightness(training, 8, seed, 0))) / images
    assert (factors.amax((1, 2, 3)) - factors.amin((1, 2, 3))).max() < 1e-5
    assert 1 - strength - 1e-5 < factors.min() < factors.max() < 1 + strength + 1e-5
    assert len(set(factors[:, 0, 0, 0].tolist())) == 8
    white = torch.full((400, 3, 1, 1), 200, dtype=torch.uint8)  # bytes become floats up to 255
    out = jitter(white, next(brightness(training, 400, seed, 0)))
    assert out.dtype == torch.float32 and out.max() <= 255
    assert out.min() < 200 * (1 - 0.9 * strength)  # the range is used
    assert out.max() > min(255, 200 * (1 + 0.9 * strength)) - 1e-3


def test_fit_changes_the_brightness_every_epoch() -> None:
    model, seen = nn.Linear(1, 1), list[Tensor]()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x.clone())
        return 0 * model.weight.sum()

    feed = Shuffled(torch.full((4, 3, 1, 1), 100.0), torch.zeros(4))
    fit(model, loss, feed, replace(PLAIN, epochs=2, brightness=0.2), seed=0)
    assert all(80 <= x.min() < x.max() <= 120 for x in seen)
    assert not torch.equal(seen[0], seen[1])
