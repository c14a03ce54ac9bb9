"""Relaxed: the weight of preservation follows what the memory lacks."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mrdc._utils.errors import UsageError
from mrdc.data.images import ImageSet
from mrdc.methods import DDE, LUCIR, TPCIL, BiC, Relaxed
from mrdc.nn.net import Net
from tests.helpers import examples, lesson, photo, says, tiny

pytestmark = pytest.mark.usefixtures("quick")


def prepared(held: int, counts: tuple[int, ...] = (6, 4, 9)) -> Relaxed:
    """After the start of a phase: two old classes of six and four images, and a new one of nine."""
    photos = tuple([photo(f"{label} {n}", n) for n in range(c)] for label, c in enumerate(counts))
    images = ImageSet(("a", "b", "c"), photos, tuple([1] * c for c in counts))
    method = Relaxed(LUCIR())
    one = torch.ones(1, 16)
    now = lesson(
        model=tiny(classes=2),
        images=images,
        memory=examples([0] * held),
        fresh=examples([2]),
        features=lambda _: one,
    )
    method.start_phase(now)
    return method


@pytest.mark.parametrize(("held", "missing"), [(0, 1.0), (4, 0.6), (9, 0.1), (10, 0.0), (12, 0.0)])
def test_the_share_of_old_images_that_are_missing(held: int, missing: float) -> None:
    """New images do not count, nor do more images than there were."""
    method = prepared(held)
    assert method.missing == pytest.approx(missing)
    assert method.report() == {"share of old images missing": method.missing}
    assert method.state() == {}


def parts() -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """A network of three classes, its teacher, images and labels."""
    net = says(torch.eye(3), torch.tensor([[1.0, 0], [2, 0], [0, 3]]))
    old = says(torch.eye(3)[:, :2], torch.tensor([[0.0, 5], [1, 1], [1, 0]]))
    return net, old, torch.zeros(3, 3, 4, 4), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(("held", "power"), [(0, 1.0), (4, 1.0), (4, 2.0), (10, 0.0)])
def test_preservation_is_weighed_by_it(held: int, power: float) -> None:
    """By a power of it, to be exact; with 0, the method is the one inside."""
    net, old, x, y = parts()
    method, inner = prepared(held), LUCIR()
    method.power = power
    labels = inner.loss(net, None, x, y)
    kept = inner.loss(net, old, x, y) - labels
    assert kept > 0
    expected = labels + (1 - held / 10) ** power * kept
    assert method.loss(net, old, x, y) == pytest.approx(float(expected))


def test_a_full_memory_does_not_ask_the_teacher() -> None:
    net, _, x, y = parts()
    nobody = cast(Net, SimpleNamespace(classes=2))
    assert prepared(10).loss(net, nobody, x, y) == LUCIR().loss(net, None, x, y)


def test_it_wraps_sums_of_parts_and_can_be_wrapped() -> None:
    DDE(Relaxed(LUCIR()))
    Relaxed(Relaxed(LUCIR()))
    for inner in (BiC(), TPCIL(), DDE(LUCIR())):
        with pytest.raises(UsageError, match=f"Relaxed cannot wrap {type(inner).__name__}"):
            Relaxed(inner)
