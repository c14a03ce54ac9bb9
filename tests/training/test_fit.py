"""The optimisation loop, against SGD written out by hand."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mrdc.methods.lesson import Loss
from mrdc.nn.modes import modes
from mrdc.training.fit import Epoch, Step, Stop, fit, jitter, learning_rate
from mrdc.training.settings import TrainSettings

PLAIN = TrainSettings(epochs=3, lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4)


pytestmark = pytest.mark.usefixtures("seeded")


@dataclass
class Shuffled:
    """A feed of tensors as they are, in an order of (seed, epoch)."""

    parts: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self)))
        for index in torch.split(order, batch_size):
            yield tuple(part[index] for part in self.parts)


def shuffled(*parts: Tensor) -> Shuffled:
    return Shuffled(parts)


def greys(count: int = 10, *more: Tensor) -> Shuffled:
    """Small images from 0 to 255, and labels 0 and 1."""
    images = torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8)
    return shuffled(images, torch.arange(count) % 2, *more)


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


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


# The learning rate


def test_multistep_drops_at_milestones() -> None:
    """At 30 and 60 of 90 epochs, counted from 0; BiC's three drops; none at all."""
    rates = [learning_rate(TrainSettings(), epoch) for epoch in range(90)]
    assert rates == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)
    three = TrainSettings(epochs=10, lr=1.0, milestones=(0.3, 0.6, 0.8), gamma=0.5)
    rates = [learning_rate(three, epoch) for epoch in (2, 3, 5, 6, 7, 8, 9)]
    assert rates == [1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    none = replace(three, milestones=())
    assert {learning_rate(none, epoch) for epoch in range(10)} == {1.0}


def test_cosine_falls_to_zero() -> None:
    """Whole at first, half in the middle, and 0 where the next epoch would be."""
    training = TrainSettings(epochs=90, lr=0.2, schedule="cosine")
    assert learning_rate(training, 0) == 0.2
    assert learning_rate(training, 45) == pytest.approx(0.1)
    assert learning_rate(training, 30) == pytest.approx(0.15)
    assert learning_rate(training, 90) == pytest.approx(0.0)
    rates = [learning_rate(training, epoch) for epoch in range(90)]
    assert rates == sorted(rates, reverse=True)


# Training


@pytest.mark.parametrize("schedule", ["multistep", "cosine"])
def test_fit_is_sgd_with_momentum_and_weight_decay(schedule: str) -> None:
    """v <- 0.9 v + (gradient + 0.01 w); w <- w - rate * v, on a linear problem."""
    training = replace(PLAIN, epochs=6, schedule=schedule)  # type: ignore[arg-type]
    feed = shuffled(torch.randn(10, 3), torch.randn(10))
    model = nn.Linear(3, 1)
    weight, bias = model.weight.detach().double()[0], model.bias.detach().double()[0]
    speed, bias_speed = torch.zeros(3).double(), torch.zeros(()).double()
    for epoch in range(6):
        if schedule == "cosine":
            rate = 0.05 * (1 + math.cos(math.pi * epoch / 6))
        else:
            rate = 0.1 * 0.1 ** (epoch // 2)
        for x, y in feed.epoch(4, 7, epoch):
            error = x.double() @ weight + bias - y.double()
            speed = 0.9 * speed + 2 * (error[:, None] * x.double()).mean(0) + 0.01 * weight
            bias_speed = 0.9 * bias_speed + 2 * error.mean() + 0.01 * bias
            weight, bias = weight - rate * speed, bias - rate * bias_speed
    fit(model, lambda x, y: (model(x)[:, 0] - y).square().mean(), feed, training, seed=7)
    torch.testing.assert_close(model.weight[0].double(), weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.bias[0].double(), bias, rtol=1e-5, atol=1e-6)


def test_only_the_chosen_parameters_are_trained() -> None:
    """Others stay bit for bit, have no gradients meanwhile, and can learn again afterwards."""
    model, able = Small(), []
    model.conv.bias.requires_grad_(False)  # type: ignore[union-attr]
    before = state(model)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        able.append({name for name, p in model.named_parameters() if p.requires_grad})
        return cross_entropy(model)(x, y)

    fit(model, loss, greys(), PLAIN, seed=0, parameters=model.head.parameters(), norm="eval")
    changed = {name for name, value in model.state_dict().items() if (value != before[name]).any()}
    assert changed == {"head.weight", "head.bias"}
    assert all(names == {"head.weight", "head.bias"} for names in able)
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen == ["conv.bias"]


def test_everything_that_can_learn_does_by_default() -> None:
    """Frozen parameters stay frozen even if they are chosen, weight decay or not."""
    model = Small()
    model.head.weight.requires_grad_(False)
    before = state(model)
    fit(model, cross_entropy(model), greys(), PLAIN, seed=0)
    fit(model, cross_entropy(model), greys(), PLAIN, seed=0, parameters=list(model.parameters()))
    same_as_before = [n for n, p in model.named_parameters() if torch.equal(p, before[n])]
    assert same_as_before == ["head.weight"]
    assert not model.head.weight.requires_grad


def test_error_leaves_gradients_and_modes_as_they_were() -> None:
    """No parameter is frozen, and the model is in evaluation mode."""
    model = Small().eval()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fit(model, loss, greys(), PLAIN, seed=0, parameters=model.head.parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert not model.training


@pytest.mark.parametrize("norm", ["train", "eval"])
def test_batch_norms_have_their_own_mode(norm: str) -> None:
    """In "eval" their statistics stay, in "train" they move; other modules train either way.

    Changing modes between two epochs makes no difference.
    """
    model, seen = Small(), []
    before = state(model)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append((model.training, model.drop.training, model.norm.training))
        return cross_entropy(model)(x, y)

    def look(epoch: Epoch, stop: Stop) -> None:
        model.eval()

    fit(model, loss, greys(), PLAIN, seed=0, norm=norm, on_epoch=look)  # type: ignore[arg-type]
    assert len(seen) > 1 and set(seen) == {(True, True, norm == "train")}
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        moved = bool((model.norm.state_dict()[name] != before[f"norm.{name}"]).any())
        assert moved == (norm == "train")


def test_model_ends_in_the_mode_it_was_in() -> None:
    """Evaluation after a stage of training; training inside another stage."""
    model = Small().eval()
    fit(model, cross_entropy(model), greys(), replace(PLAIN, epochs=1), seed=0)
    assert not any(module.training for module in model.modules())
    with modes(model, "train"):
        with modes(model, "eval"):
            assert model.training and not model.norm.training
        assert all(module.training for module in model.modules())
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(("clamp", "step"), [(None, 100.0), (5.0, 5.0), (200.0, 100.0)])
def test_gradients_are_clamped_element_by_element(clamp: float | None, step: float) -> None:
    """A gradient of (100, -1) moves each weight by at most the bound."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    once = TrainSettings(epochs=1, lr=1.0, momentum=0, weight_decay=0, batch_size=1, milestones=())
    feed = shuffled(torch.tensor([[100.0, -1.0]]), torch.zeros(1))
    fit(model, lambda x, y: model(x).sum(), feed, once, seed=0, clamp=clamp)
    assert model.weight.tolist() == [[-step, 1.0]]


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("stopped", [1, 2, 4, 5])
def test_resuming_changes_nothing(stopped: int, momentum: float) -> None:
    """Bit for bit, with momentum, a schedule and random brightness; a stop can be used twice."""
    training = replace(PLAIN, epochs=5, momentum=momentum, brightness=0.3, milestones=(0.6,))
    feed, whole = greys(), Small()
    start = state(whole)
    kept: dict[int, tuple[nn.Module, Stop]] = {}

    def keep(epoch: Epoch, stop: Stop) -> None:
        assert stop.epoch == epoch.number + 1
        kept[stop.epoch] = copy.deepcopy((whole, stop))

    fit(whole, cross_entropy(whole), feed, training, seed=3, on_epoch=keep)
    assert sorted(kept) == [1, 2, 3, 4, 5]
    assert not same(start, state(whole))
    stop = kept[stopped][1]
    for _ in range(2):
        model, again = copy.deepcopy(kept[stopped][0]), list[int]()

        def note(epoch: Epoch, stop: Stop, again: list[int] = again) -> None:
            again.append(epoch.number)

        fit(model, cross_entropy(model), feed, training, seed=3, resume=stop, on_epoch=note)
        assert again == list(range(stopped, 5))
        assert same(state(model), state(whole))


def test_momentum_is_part_of_a_stop() -> None:
    """Resuming without it ends elsewhere."""
    feed, whole, kept = greys(), Small(), []

    def keep(epoch: Epoch, stop: Stop) -> None:
        kept.append(copy.deepcopy((whole, stop)))

    fit(whole, cross_entropy(whole), feed, PLAIN, seed=0, on_epoch=keep)
    model, stop = kept[0]
    none = Stop(stop.epoch, [torch.zeros_like(buffer) for buffer in stop.momentum])
    fit(model, cross_entropy(model), feed, PLAIN, seed=0, resume=none)
    assert not same(state(model), state(whole))


def test_momentum_takes_the_layout_of_its_parameter() -> None:
    """Files do not record the layout, and fused steps need it."""
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    kept = [torch.randn(4, 3, 3, 3), torch.randn(4)]
    step = Step(lambda x, y: x, list(conv.parameters()), PLAIN, None, False, captures=False)
    step.set_momentum(kept)
    weight, bias = step.momentum()
    assert weight.stride() == conv.weight.stride() != kept[0].stride()
    assert torch.equal(weight, kept[0]) and torch.equal(bias, kept[1])


def test_loss_of_an_epoch_is_the_mean_over_images() -> None:
    """The last batch is smaller and counts for less: losses 0 to 9 have the mean 4.5."""
    feed = shuffled(torch.arange(10.0)[:, None], torch.zeros(10))
    model, seen = nn.Linear(1, 1), list[Epoch]()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return x.mean() + 0 * model.weight.sum()

    fit(model, loss, feed, PLAIN, seed=0, on_epoch=lambda epoch, stop: seen.append(epoch))
    assert [epoch.loss for epoch in seen] == pytest.approx([4.5] * 3)
    assert [(epoch.number, epoch.images) for epoch in seen] == [(0, 10), (1, 10), (2, 10)]
    assert all(epoch.seconds > 0 for epoch in seen)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_loss_sees_everything_that_a_feed_brings(count: int) -> None:
    """Images, labels, and any number of further tensors, row by row, untouched."""
    model, seen = nn.Linear(1, 1), list[tuple[Tensor, ...]]()
    feed = greys(10, *(torch.arange(10) + 100 * number for number in range(count)))

    def loss(*batch: Tensor) -> Tensor:
        seen.append(batch)
        return model.weight.sum()

    fit(model, loss, feed, replace(PLAIN, epochs=1), seed=3)
    assert [len(batch) for batch in seen] == [2 + count] * 3
    for batch, expected in zip(seen, feed.epoch(4, 3, 0), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_step_takes_tuples_of_any_length(length: int) -> None:
    """The weight falls by the rate times the sum of all tensors, which is its gradient."""
    weight = nn.Parameter(torch.zeros(()))
    training = replace(PLAIN, lr=0.5, momentum=0.0, weight_decay=0.0)

    def loss(*batch: Tensor) -> Tensor:
        return weight * torch.stack(batch).sum()

    step = Step(loss, [weight], training, None, False, captures=False)
    step(*(torch.ones(2) * n for n in range(length)))
    assert weight.item() == -0.5 * 2 * sum(range(length))


def test_bf16_computes_the_loss_under_autocast() -> None:
    """The network runs in bf16, its weights stay in fp32."""
    model, kinds = Small(), []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        kinds.append(out.dtype)
        return nn.functional.cross_entropy(out.float(), y)

    for bf16 in (True, False):
        fit(model, loss, greys(4), replace(PLAIN, epochs=1), seed=0, bf16=bf16)
    assert kinds == [torch.bfloat16, torch.float32]
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# Brightness


@settings(max_examples=50, deadline=None)
@given(strength=st.floats(0.01, 0.9), seed=st.integers(0, 99))
def test_brightness_is_one_factor_per_image(strength: float, seed: int) -> None:
    """Between 1 - strength and 1 + strength, the same for all its pixels and channels."""
    images = torch.arange(8 * 3 * 4).reshape(8, 3, 2, 2).float() + 1
    factors = jitter(images, strength, np.random.default_rng(seed)) / images
    assert (factors.amax((1, 2, 3)) - factors.amin((1, 2, 3))).max() < 1e-5
    assert 1 - strength - 1e-5 < factors.min() < factors.max() < 1 + strength + 1e-5
    assert len(set(factors[:, 0, 0, 0].tolist())) == 8


def test_brightness_fills_its_range() -> None:
    """Evenly, between both bounds; bytes become floats from 0 to 255."""
    images = torch.full((4000, 1, 1, 1), 100, dtype=torch.uint8)
    out = jitter(images, 0.5, np.random.default_rng(0))
    assert out.dtype == torch.float32
    assert 50 <= out.min() < 51 and 149 < out.max() <= 150
    assert out.mean().item() == pytest.approx(100, abs=5 * 50 / math.sqrt(3 * 4000))
    assert jitter(images * 2, 0.9, np.random.default_rng(0)).max() == 255


def test_fit_changes_brightness_only_if_set() -> None:
    """Without it the loss sees the images of the feed; with it, others every epoch."""
    model, feed = nn.Linear(1, 1), shuffled(torch.full((4, 3, 1, 1), 100.0), torch.zeros(4))
    seen: list[Tensor] = []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x.clone())
        return 0 * model.weight.sum()

    fit(model, loss, feed, replace(PLAIN, epochs=2), seed=0)
    assert all(torch.equal(x, feed.parts[0]) for x in seen)
    seen.clear()
    fit(model, loss, feed, replace(PLAIN, epochs=2, brightness=0.2), seed=0)
    assert all(80 <= x.min() < x.max() <= 120 for x in seen)
    assert not torch.equal(seen[0], seen[1])
