"""Fidelity: pairs of images and their copies, and the penalty on their distance."""

import numpy as np
import pytest
import torch

from mrdc._utils.errors import UsageError
from mrdc.data.examples import Companions
from mrdc.methods import DDE, LUCIR, TPCIL, AANets, BiC, Fidelity, Method, PODNet
from mrdc.methods.fidelity import apart
from mrdc.training.feed import Resident, open_feed
from mrdc.training.match import Copies
from tests.helpers import changed, examples, lesson, says, small_run, small_stream, state_of, tiny
from tests.training.feeds import CPU, PLACES, ramp
from tests.training.feeds import examples as images

pytestmark = pytest.mark.usefixtures("quick")

FEATURES = torch.tensor([[1.0, 0], [2, 0], [0, 3]])
COPIES = torch.tensor([[0.0, 5], [1, 1], [1, 0]])


def test_distance_of_pairs_by_hand() -> None:
    """1 - cos: 1, 1 - 1 / sqrt(2), 1; images without a pair do not count."""
    found = [apart(FEATURES, COPIES, torch.tensor(paired)) for paired in ([1, 1, 0], [0, 0, 0])]
    assert found[0] == pytest.approx(1 - 0.5**0.5 / 2)
    assert found[1] == 0


def test_the_penalty_is_added_to_the_loss_of_the_inner_method() -> None:
    """Half of a mean distance of 1; nothing in the first phase and in later stages."""
    net, old = (says(torch.eye(3)[:, :n], FEATURES) for n in (3, 2))
    x, y = torch.zeros(3, 3, 4, 4), torch.tensor([0, 1, 2])
    inner, outer = LUCIR(), Fidelity(LUCIR(), fidelity=0.5)
    alone = inner.loss(net, old, x, y)
    assert outer.loss(net, old, x, y) == alone
    assert outer.loss(net, None, x, y) == inner.loss(net, None, x, y)
    net.features = lambda images: COPIES  # type: ignore[method-assign]
    paired = torch.tensor([1, 0, 1])
    expected = inner.loss(net, says(torch.eye(3)[:, :2], FEATURES), x, y) + 0.5
    assert outer.loss(net, old, x, y, x, paired) == pytest.approx(float(expected))


def test_new_images_are_paired() -> None:
    made = lesson(
        model=tiny(classes=2),
        train=examples([2, 2, 0, 1]),
        fresh=examples([2, 2]),
        features=lambda some: torch.ones(len(some), 16),
    )
    Fidelity(LUCIR()).start_phase(made)
    assert made.companions is not None and made.companions.copies
    places, paired = made.companions.choose(np.array([3, 1, 0]), np.random.default_rng(0))
    assert places.tolist() == [3, 1, 0] and paired.tolist() == [0, 1, 1]


@pytest.mark.parametrize("probability", [0.0, 0.5])
@pytest.mark.parametrize("resident", PLACES)
def test_a_pair_is_cropped_alike(resident: Resident, probability: float) -> None:
    """Original and copy in every batch, also if the copy is a pixel larger; others twice."""
    sides = [(21, 30), (30, 21), (17, 17), (25, 40)] * 2
    originals = images([ramp(*side) for side in sides])
    bright = [255 - ramp(height + 1, width) for height, width in sides[:5]]
    copies = Copies(probability, np.arange(5), images(bright))
    pairs = Companions(lambda batch, rng: (batch, batch), 0, cropped=True, copies=True)
    feed = open_feed(originals, 8, CPU, resident, 1, companions=pairs, copies=copies)
    shown = copies.shown(8, 0, 0) >= 8
    for x, y, more, _ in feed.epoch(4, 0, 0):
        for image, copy, place in zip(x.float(), more.float(), y.tolist(), strict=True):
            both = image[:2] if place >= 5 or shown[place] else 255 - image[:2]
            assert (copy[:2] - both).abs().max() < 27  # a pixel of the shortest side, 11


@pytest.mark.parametrize(
    ("inner", "name"),
    [(BiC(), "BiC"), (TPCIL(), "TPCIL"), (DDE(LUCIR()), "DDE"), (AANets(DDE(PODNet())), "DDE")],
)
def test_refuses_methods_with_a_loss_of_their_own(inner: Method, name: str) -> None:
    """So does DDE, which also needs the classification part alone."""
    for outer in (Fidelity, DDE):
        with pytest.raises(UsageError, match=f"cannot wrap {name}, which has a loss of its own"):
            outer(inner)


def test_refuses_companions_of_another_method() -> None:
    outer = Fidelity(LUCIR())
    made = lesson(
        model=tiny(classes=2),
        teacher=tiny(classes=2),
        train=examples([2, 2, 0]),
        fresh=examples([2, 2]),
        features=lambda some: torch.ones(len(some), 16),
    )
    made.companions = DDE(LUCIR())._companions(made)
    with pytest.raises(UsageError, match="cannot be combined with a method that has companions"):
        outer.start_phase(made)


def test_runs_without_compressed_images_are_those_of_the_inner_method() -> None:
    """Nothing is paired then; with compression the network changes."""
    stream = small_stream(2, 2)
    for quality, same in (("original", True), ("10", False)):
        runs = [
            small_run(method, stream=stream, memory={"quality": quality}).learn(0, 1)
            for method in ("lucir", "lucir-fidelity")
        ]
        first, second = (run.learner.model for run in runs)
        assert (changed(first, state_of(second)) == set()) is same
