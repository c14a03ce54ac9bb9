"""LUCIR: its losses, imprinted rows and balanced finetuning, by hand and against a loop."""

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mrdc.data.examples import Examples
from mrdc.methods import LUCIR, TrainSettings
from mrdc.methods.lucir import less_forget, margin_ranking
from mrdc.methods.shared import balanced
from mrdc.nn.heads import Split, SplitCosine
from tests.helpers import (
    Says,
    after_a_phase,
    changed,
    examples,
    lesson,
    says,
    state_of,
    tiny,
    training,
)

Seen = list[tuple[Examples, TrainSettings]]

pytestmark = pytest.mark.usefixtures("quick")


def test_less_forget_by_hand() -> None:
    """1 - 0.6 and 1 - (-1), whatever the lengths: 1.2 on average; 0 without rotation."""
    old = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    assert less_forget(torch.tensor([[3.0, 4.0], [0.0, -7.0]]), old).item() == pytest.approx(1.2)
    new = (3 * old).requires_grad_()
    assert torch.autograd.grad(less_forget(new, old), new)[0].abs().max() < 1e-6


@settings(max_examples=60)
@given(seed=st.integers(0, 999), old=st.integers(0, 6), rivals=st.integers(1, 4))
def test_margin_ranking_against_a_loop(seed: int, old: int, rivals: int) -> None:
    """Image by image and rival by rival; without old images it is 0, as are its gradients."""
    rng = torch.Generator().manual_seed(seed)
    scores = (torch.rand(6, 7, generator=rng) * 2 - 1).requires_grad_()
    labels = torch.randint(0, 7, (6,), generator=rng)
    terms = [
        max(0.0, 0.3 - row[label] + rival)
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
        if label < old
        for rival in sorted(row[old:], reverse=True)[:rivals]
    ]
    found = margin_ranking(scores, labels, old, 0.3, rivals)
    assert found.item() == pytest.approx(sum(terms) / max(len(terms), 1), abs=1e-6)
    assert terms or (torch.autograd.grad(found, scores)[0] == 0).all()


@pytest.mark.parametrize(("old", "new", "expected"), [(50, 10, 22.36), (90, 10, 30), (50, 2, 50)])
def test_lambda_by_hand(old: int, new: int, expected: float) -> None:
    """Features at a right angle forget by 1; beyond cross-entropy that is the whole loss."""
    logits, labels = torch.zeros(1, old + new), torch.tensor([old])
    teacher = says(torch.zeros(1, old), torch.tensor([[0.0, 1.0]]))
    loss = LUCIR().loss(says(logits, torch.tensor([[1.0, 0.0]])), teacher, torch.empty(1), labels)
    assert loss.item() - math.log(old + new) == pytest.approx(expected, abs=0.01)


def test_lucir_ranks_old_images_by_cosines() -> None:
    """Cross-entropy of logits plus the ranking of scores, which the first phase lacks."""
    scores, labels = torch.rand(4, 5), torch.tensor([0, 1, 3, 4])
    net, teacher, x = says(scores), says(torch.zeros(4, 3)), torch.empty(4)
    cast(Says, net).scale = 4.0
    plain = F.cross_entropy(4 * scores, labels)
    assert torch.equal(LUCIR().loss(net, None, x, labels), plain)
    ranked = margin_ranking(scores, labels, 3, 0.4, 1)
    assert ranked > 0
    loss = LUCIR(margin=0.4, rivals=1).loss(net, teacher, x, labels)
    assert loss.item() == pytest.approx((plain + ranked).item())


def test_new_rows_are_directions_of_mean_unit_features() -> None:
    """As long as the old rows on average: 1 and 3 give 2, whatever the features' lengths."""
    net, old = tiny(), torch.zeros(2, 16)
    old[0, 0], old[1, 1] = 1.0, 3.0
    net.head.grow(2, old)
    fresh, features = examples([2, 2, 3]), torch.zeros(3, 16)
    features[0, 0], features[1, 1], features[2, 1] = 3.0, 1.0, -5.0
    LUCIR().start_phase(lesson(model=net, new=2, fresh=fresh, features={fresh: features}.get))
    assert isinstance(net.head, SplitCosine)
    expected = torch.zeros(2, 16)
    expected[0, :2], expected[1, 1] = math.sqrt(2), -2.0
    torch.testing.assert_close(net.head.new.detach(), expected)
    assert torch.equal(net.head.old, old)


@pytest.mark.parametrize(("balance", "old_too"), [("new", False), ("all", True)])
def test_balanced_finetuning_trains_rows_alone(balance: Any, old_too: bool) -> None:
    """New rows, or all rows, on the balanced memory; no other weight, scale or statistic.

    Neither by default nor in the first phase.
    """
    net, teacher = after_a_phase("lucir", SplitCosine)
    before, seen, memory = state_of(net), Seen(), examples([0, 0, 0, 1, 1, 2, 2, 2])
    method = LUCIR(balance=balance, balance_epochs=2, balance_lr=0.5)
    loss = lambda x, y: method.loss(net, teacher, x, y)  # noqa: E731
    now = lesson(model=net, teacher=teacher, memory=memory, fit=training(net, loss, seen))
    method.end_phase(now)
    assert changed(net, before) == {"head.new", *(["head.old"] if old_too else [])}
    assert not cast(Split, net.head).old.requires_grad
    expected = replace(now.training, epochs=2, lr=0.5, milestones=(0.5,), gamma=0.1)
    assert seen == [(balanced(memory), expected)]
    LUCIR().end_phase(lesson(model=net, teacher=teacher))  # `fit` would raise
    LUCIR(balance=balance).end_phase(lesson(phase=0, model=net))
