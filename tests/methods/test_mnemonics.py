"""Mnemonics: its formulas by hand, and how it learns the pixels of exemplars."""

from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mrdc.methods.mnemonics
from mrdc.data.crops import centre_crop, tensor
from mrdc.data.examples import Examples
from mrdc.methods.mnemonics import (
    Mnemonics,
    after_a_step,
    as_prototypes,
    centre,
    cosines,
    in_classes,
    squares,
    to_pixels,
)
from mrdc.nn.heads import SplitCosine
from mrdc.nn.net import normalised
from mrdc.nn.resnet import ResNet
from tests.conftest import pixels
from tests.helpers import changed, examples, lesson, photo, state_of, tiny

MODES = pytest.mark.parametrize("pixels_by", ["prototype", "bilevel"])

pytestmark = pytest.mark.usefixtures("quick")


# Formulas


def test_prototypes_by_hand() -> None:
    """Mean features, or head rows for labels without any; gradients reach the features."""
    rows = torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]], requires_grad=True)
    features = torch.tensor([[1.0, 0.0], [5.0, 6.0], [2.0, 4.0]], requires_grad=True)
    got = as_prototypes(rows, features, torch.tensor([2, 0, 2]))
    assert got.tolist() == [[5.0, 6.0], [8.0, 8.0], [1.5, 2.0]]
    got.sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None and rows.grad is not None
    assert features.grad.tolist() == [[0.5, 0.5], [1.0, 1.0], [0.5, 0.5]]
    assert rows.grad.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


def by_sgd(rows: Tensor, features: Tensor, labels: Tensor, scale: Tensor, lr: float) -> Tensor:
    """Rows after one step of torch's own SGD."""
    learned = nn.Parameter(rows.clone())
    optimiser = torch.optim.SGD([learned], lr=lr)
    similar = F.cosine_similarity(features.detach()[:, None], learned[None], dim=2)
    F.cross_entropy(scale * similar, labels).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return learned.detach()


def test_a_step_of_the_head_is_sgd() -> None:
    """On the mean cross-entropy of scaled cosines. The given rows stay as they are; the gradient
    through the step agrees with differences of the loss of queries, in steps of a millionth."""
    rows, features, queries = (torch.randn(n, 4).double() for n in (3, 5, 6))
    before, labels, scale = rows.clone(), torch.tensor([0, 2, 1, 2, 0]), torch.tensor(3.0).double()

    def outer(step: Callable[..., Tensor], features: Tensor) -> Tensor:
        stepped = step(rows, features, labels, scale, 0.7)
        return F.cross_entropy(3.0 * cosines(queries, stepped), torch.arange(6) % 3)

    got = after_a_step(rows, features.requires_grad_(), labels, scale, 0.7)
    torch.testing.assert_close(got, by_sgd(rows, features, labels, scale, 0.7))
    assert torch.equal(rows, before) and not rows.requires_grad
    assert (got - before).abs().max() > 0.05
    (slope,) = torch.autograd.grad(outer(after_a_step, features), features)
    nudge = 1e-6 * torch.eye(20).double().view(20, 5, 4)
    differences = [outer(by_sgd, features + d) - outer(by_sgd, features - d) for d in nudge]
    expected = torch.stack(differences).view(5, 4) / 2e-6
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-8)


def test_grey_levels_undo_the_normalisation() -> None:
    """For every channel, clamped to 0 and 255."""
    images = torch.randint(0, 256, (2, 3, 5, 4)).float()
    torch.testing.assert_close(to_pixels(normalised(images)), images, rtol=0, atol=1e-3)
    far = to_pixels(torch.linspace(-99, 99, 3 * 16).view(1, 3, 4, 4).double())
    assert far.min() == 0 and far.max() == 255 and far.dtype == torch.double


def test_squares_and_their_centres_are_crops() -> None:
    """The short side is scaled to that of the square; the centre is the evaluation view."""
    sides = [(20, 30), (40, 18), (7, 7), (18, 18)]
    source = Examples(tuple(photo(str(n), n, *side) for n, side in enumerate(sides)), (0,) * 4)
    got = squares(source, 18, 1)
    assert (got.shape, got.dtype) == ((4, 3, 18, 18), torch.uint8)
    for place in range(4):
        assert torch.equal(got[place], centre_crop(source[place][0], 18, 18))
        assert torch.equal(centre(got, 16)[place], centre_crop(got[place], 16))
    assert torch.equal(got[3], source[3][0])
    assert torch.equal(centre(got, 16), got[:, :, 1:17, 1:17])


@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=40), together=st.integers(1, 12))
def test_parts_have_whole_classes(labels: list[int], together: int) -> None:
    """Every example once, in as few parts as possible; only one class alone may be larger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mrdc.methods.mnemonics, "TOGETHER", together)
        parts = list(in_classes(examples(labels)))
    names = [photo.id for part in parts for photo in part.photos]
    assert sorted(map(int, names)) == list(range(len(labels)))
    for part in parts:
        assert [labels[int(photo.id)] for photo in part.photos] == list(part.labels)
        assert len(part) <= together or len(set(part.labels)) == 1
    for label in set(labels):
        assert sum(label in part.labels for part in parts) == 1
    counts = Counter(labels)
    for part, after in pairwise(parts):
        assert len(part) + counts[after.labels[0]] > together


# Learning pixels


class Case:
    """Four exemplars of two classes in a network of three, and queries that want them changed."""

    def __init__(self) -> None:
        self.net = tiny(classes=3)
        assert isinstance(self.net.head, SplitCosine)
        self.net.head.scale.data.fill_(4.0)
        self.now = lesson(phase=0, size=16, model=self.net)
        self.images = torch.stack([tensor(pixels(n, 18, 18)) for n in range(4)]).float()
        self.labels = (0, 0, 2, 2)
        self.rows = self.net.head.rows.detach()
        views = torch.stack([tensor(pixels(100 + n, 16, 16)) for n in range(40)])
        self.queries, self.answers = self.net.features(views).detach(), torch.arange(40) % 3

    def learned(self, method: Mnemonics) -> Tensor:
        return method._optimised(
            self.now, self.images, self.labels, self.rows, self.queries, self.answers
        )

    def scores(self, features: Tensor, pixels_by: str) -> Tensor:
        """Scores of the queries, computed by other formulas."""
        if pixels_by == "prototype":
            rows = torch.stack([features[:2].mean(0), self.rows[1], features[2:].mean(0)])
            return F.cosine_similarity(self.queries[:, None], rows[None], dim=2)
        rows = by_sgd(self.rows, features, torch.tensor(self.labels), torch.tensor(4.0), 5.0)
        return 4.0 * F.cosine_similarity(self.queries[:, None], rows[None], dim=2)


@MODES
def test_learned_pixels_lower_the_loss_of_queries(pixels_by: Any) -> None:
    """Of plain cosines with prototypes, or scaled cosines with the head after its step.

    More with every pass; the network, its gradients and what it may learn stay the same.
    """
    given = Case()
    assert isinstance(given.net.backbone, ResNet)
    given.net.backbone.conv1.requires_grad_(False)
    before, able = state_of(given.net), [p.requires_grad for p in given.net.parameters()]

    def loss(images: Tensor) -> float:
        features = given.net.features(centre(images, 16)).detach()
        scores = given.scores(features, pixels_by)
        found = method._answers(
            given.net, given.rows, features, torch.tensor(given.labels), given.queries
        )
        torch.testing.assert_close(found, scores)
        return F.cross_entropy(scores, given.answers).item()

    method = Mnemonics(pixels=pixels_by, pixel_lr=300.0, pixel_decay=0.0, head_lr=5.0)
    losses = [loss(given.images)]
    for epochs in (1, 6):
        method.pixel_epochs = epochs
        images = given.learned(method)
        margin = (images - given.images).abs()
        assert (centre(margin, 16).amax((1, 2, 3)) > 0.1).all()
        margin[:, :, 1:17, 1:17] = 0
        assert margin.max() < 1e-3  # only what the network sees is learned
        assert images.min() >= 0 and images.max() <= 255
        losses.append(loss(images))
    assert losses[2] < losses[1] < losses[0]
    assert (images - given.images).abs().mean() > 0.5
    assert changed(given.net, before) == set() and not given.net.training
    assert [p.requires_grad for p in given.net.parameters()] == able
    assert all(p.grad is None for p in given.net.parameters())


def test_two_steps_by_hand() -> None:
    """SGD on normalised pixels with momentum and decay, at half the rate in the second pass."""
    given = Case()
    values = (given.images - given.net.mean) / given.net.std
    speed = torch.zeros_like(values)
    for rate in (50.0, 25.0):
        values.requires_grad_()
        features = given.net.features(centre(to_pixels(values), 16))
        loss = F.cross_entropy(given.scores(features, "prototype"), given.answers)
        (slope,) = torch.autograd.grad(loss, values)
        values = values.detach()
        speed = 0.9 * speed + slope + 0.01 * values
        values = values - rate * speed
    got = given.learned(Mnemonics(pixel_lr=50.0, pixel_decay=0.01, pixel_epochs=2))
    torch.testing.assert_close(got, to_pixels(values), rtol=0, atol=5e-3)
    assert (got - given.images).abs().max() > 1


def test_every_query_is_used_once_per_pass() -> None:
    """In batches of 128; the order depends on the pass and the phase."""
    given = Case()
    given.queries, given.answers = (
        torch.arange(300.0)[:, None].expand(300, 16),
        torch.arange(300) % 3,
    )
    with patch.object(Mnemonics, "_answers", autospec=True, side_effect=Mnemonics._answers) as real:
        for phase, epochs in ((0, 2), (0, 1), (1, 1)):
            given.now.phase = phase
            given.learned(Mnemonics(pixel_epochs=epochs))
    asked = [call.args[-1][:, 0].int().tolist() for call in real.call_args_list]
    assert [len(batch) for batch in asked] == [128, 128, 44] * 4
    first, second, again, other = (list(chain(*asked[n : n + 3])) for n in range(0, 12, 3))
    assert sorted(first) == sorted(second) == list(range(300))
    assert first == again and first != second and first != other
