"""Mnemonics: exemplars whose pixels are learned, by hand and in small runs."""

import copy
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mrdc.methods.mnemonics
import mrdc.training.prepare
from mrdc._utils.errors import UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.data.crops import centre_crop, tensor
from mrdc.data.examples import Examples
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.replay import ReplayMemory
from mrdc.methods.base import Lesson
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
from mrdc.nn.net import MEAN, STD, Net, normalised
from mrdc.nn.resnet import ResNet, ScaledConv
from mrdc.training.classes import Run
from mrdc.training.exemplars import Instead
from mrdc.training.prepare import make_method
from mrdc.training.resume import Keeper
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests import helpers
from tests.conftest import jpeg, pixels

MODES = pytest.mark.parametrize("pixels_by", ["prototype", "bilevel"])


pytestmark = pytest.mark.usefixtures("quick")


def photo(name: str, seed: int, height: int = 8, width: int = 8) -> Photo:
    return Photo(name, partial(pixels, seed, height, width))


def of_labels(*labels: int) -> Examples:
    """Small images with these labels; a name is a place."""
    return Examples(tuple(photo(str(n), n) for n in range(len(labels))), labels)


# Formulas


def test_cosines_by_hand() -> None:
    """Of (3, 4) with (1, 0) and (0, -2): 0.6 and -0.8."""
    got = cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, -2.0]]))
    torch.testing.assert_close(got, torch.tensor([[0.6, -0.8]]))


def test_prototypes_by_hand() -> None:
    """Means of the features there are, and the rows of labels that have none."""
    rows = torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]])
    features = torch.tensor([[1.0, 0.0], [5.0, 6.0], [2.0, 4.0]])
    got = as_prototypes(rows, features, torch.tensor([2, 0, 2]))
    assert got.tolist() == [[5.0, 6.0], [8.0, 8.0], [1.5, 2.0]]


def test_prototypes_pass_gradients_to_their_features() -> None:
    """A half to each of two, all to one alone; none to a row that is replaced."""
    rows = torch.ones(3, 2, requires_grad=True)
    features = torch.randn(3, 2, requires_grad=True)
    as_prototypes(rows, features, torch.tensor([2, 0, 2])).sum().backward()  # type: ignore[no-untyped-call]
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


STEP = {
    "rows": torch.randn(3, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1)),
    "labels": torch.tensor([0, 2, 1, 2, 0]),
    "scale": torch.tensor(3.0).double(),
}


def test_a_step_of_the_head_is_sgd() -> None:
    """On the mean cross-entropy of scaled cosines; the rows that were given stay."""
    features = torch.randn(5, 4).double()
    before = STEP["rows"].clone()
    got = after_a_step(features=features, lr=0.7, **STEP)
    torch.testing.assert_close(got, by_sgd(features=features, lr=0.7, **STEP))
    assert torch.equal(STEP["rows"], before) and not STEP["rows"].requires_grad
    assert (got - before).abs().max() > 0.05


def test_the_slope_through_a_step_is_that_of_differences() -> None:
    """How the loss of queries changes when a feature does, each by a millionth."""
    features, queries = torch.randn(5, 4).double(), torch.randn(6, 4).double()
    answers = torch.tensor([0, 1, 2, 0, 1, 2])

    def outer(step: Callable[..., Tensor], features: Tensor) -> Tensor:
        rows = step(features=features, lr=0.7, **STEP)
        return F.cross_entropy(3.0 * cosines(queries, rows), answers)

    features.requires_grad_()
    (slope,) = torch.autograd.grad(outer(after_a_step, features), features)
    nudge = 1e-6 * torch.eye(20).double().view(20, 5, 4)
    differences = [outer(by_sgd, features + d) - outer(by_sgd, features - d) for d in nudge]
    expected = torch.stack(differences).view(5, 4) / 2e-6
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-8)


def test_grey_levels_undo_the_normalisation() -> None:
    """Of every pixel, channel by channel."""
    images = torch.randint(0, 256, (2, 3, 5, 4)).float()
    torch.testing.assert_close(to_pixels(normalised(images)), images, rtol=0, atol=1e-3)
    assert to_pixels(torch.zeros(1, 3, 1, 1)).flatten().tolist() == pytest.approx(MEAN)
    assert to_pixels(torch.ones(1, 3, 1, 1)).flatten().tolist() == pytest.approx(
        [mean + std for mean, std in zip(MEAN, STD, strict=True)]
    )


def test_grey_levels_end_at_0_and_255() -> None:
    """However far the values go."""
    values = torch.linspace(-99, 99, 3 * 16).view(1, 3, 4, 4)
    got = to_pixels(values)
    assert got.min() == 0 and got.max() == 255
    assert to_pixels(values.double()).dtype == torch.double


@pytest.mark.parametrize(("side", "size", "start"), [(9, 8, 0), (18, 16, 1), (256, 224, 16)])
def test_the_middle_of_a_square(side: int, size: int, start: int) -> None:
    """As the evaluation view of the same square has it."""
    image = torch.randint(0, 256, (1, 3, side, side), dtype=torch.uint8)
    got = centre(image, size)
    assert torch.equal(got, image[:, :, start : start + size, start : start + size])
    assert torch.equal(got[0], centre_crop(image[0], size))


def test_squares_are_the_middles_of_images() -> None:
    """The short side scaled to the square's, and what sticks out cut off."""
    sides = [(20, 30), (40, 18), (7, 7), (18, 18)]
    source = Examples(tuple(photo(str(n), n, *side) for n, side in enumerate(sides)), (0,) * 4)
    got = squares(source, 18, 1)
    assert (got.shape, got.dtype) == ((4, 3, 18, 18), torch.uint8)
    for place in range(4):
        assert torch.equal(got[place], centre_crop(source[place][0], 18, 18))
    assert torch.equal(got[3], source[3][0])


@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=40), together=st.integers(1, 12))
def test_parts_have_whole_classes(labels: list[int], together: int) -> None:
    """Every example once; over the limit only where it is one class; as few as can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mrdc.methods.mnemonics, "TOGETHER", together)
        parts = list(in_classes(of_labels(*labels)))
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


def test_published_numbers() -> None:
    """As the released code has them, and as many at once as memory allows."""
    method = Mnemonics()
    settings = (method.pixels, method.pixel_lr, method.pixel_epochs, method.pixel_decay)
    assert settings == ("prototype", 1e-5, 1, 5e-4)
    assert mrdc.methods.mnemonics.TOGETHER == 128


def test_refuses_another_way_to_learn_pixels() -> None:
    """The message says what there is."""
    with pytest.raises(
        UsageError, match=r"pixels must be 'prototype', 'bilevel' or 'none', got 'magic'"
    ):
        make_method(RunSettings("x", method="mnemonics", options=("pixels=magic",)))
    with pytest.raises(UsageError, match=r"balance must be 'none', 'new' or 'all', got 'some'"):
        Mnemonics(balance="some")  # type: ignore[arg-type]


# Learning pixels


def tiny(classes: int) -> Net:
    backbone = ResNet("lucir", 2, "3x3")
    net = Net(backbone, SplitCosine(backbone.features)).eval()
    net.head.grow(classes)
    return net


def lesson(**given: Any) -> Lesson:
    usual: dict[str, Any] = {"phase": 0, "old": 0, "new": 2, "size": 16}
    usual |= {"training": TrainSettings(), "store": helpers.nothing}
    return helpers.lesson(**usual | given)


@dataclass
class Case:
    """Four exemplars of two classes in a network of three, and queries that want them changed."""

    net: Net
    now: Lesson
    images: Tensor
    labels: tuple[int, ...]
    rows: Tensor
    queries: Tensor
    answers: Tensor

    def learned(self, method: Mnemonics) -> Tensor:
        return method._optimised(
            self.now, self.images, self.labels, self.rows, self.queries, self.answers
        )

    def loss(self, images: Tensor, pixels_by: str, head_lr: float) -> float:
        """Of the queries, from the formulas."""
        features, labels = self.net.features(centre(images, 16)), torch.tensor(self.labels)
        if pixels_by == "prototype":
            scores = cosines(self.queries, as_prototypes(self.rows, features, labels))
        else:
            assert isinstance(self.net.head, SplitCosine)
            scale = self.net.head.scale.detach()
            rows = after_a_step(self.rows, features, labels, scale, head_lr)
            scores = scale * cosines(self.queries, rows)
        return F.cross_entropy(scores, self.answers).item()


def case(queries: int = 40) -> Case:
    net = tiny(3)
    assert isinstance(net.head, SplitCosine)
    net.head.scale.data.fill_(4.0)
    seeds = range(100, 100 + queries)
    with torch.no_grad():
        seen = net.features(torch.stack([tensor(pixels(seed, 16, 16)) for seed in seeds]))
    return Case(
        net,
        lesson(model=net),
        torch.stack([tensor(pixels(seed, 18, 18)) for seed in range(4)]).float(),
        (0, 0, 2, 2),
        net.head.rows.detach(),
        seen,
        torch.arange(queries) % 3,
    )


@MODES
def test_learned_pixels_answer_better(pixels_by: Any) -> None:
    """The queries' loss is lower than with the pixels as they were, pass after pass."""
    given = case()
    losses = [given.loss(given.images, pixels_by, 5.0)]
    for epochs in (1, 6):
        method = Mnemonics(pixels=pixels_by, pixel_lr=300.0, pixel_epochs=epochs, head_lr=5.0)
        images = given.learned(method)
        assert images.shape == given.images.shape
        assert images.min() >= 0 and images.max() <= 255
        losses.append(given.loss(images, pixels_by, 5.0))
    assert losses[2] < losses[1] < losses[0]
    assert (images - given.images).abs().mean() > 0.5


@MODES
def test_only_what_the_network_sees_is_learned(pixels_by: Any) -> None:
    """Without decay the margin stays as it is; the middle changes, in every exemplar."""
    given = case()
    images = given.learned(
        Mnemonics(pixels=pixels_by, pixel_lr=300.0, pixel_decay=0.0, head_lr=5.0)
    )
    change = (images - given.images).abs()
    assert (centre(change, 16).amax((1, 2, 3)) > 0.1).all()
    change[:, :, 1:17, 1:17] = 0
    assert change.max() < 1e-3


@MODES
def test_the_network_is_left_alone(pixels_by: Any) -> None:
    """No weight, statistic or gradient; what could learn can, and what could not cannot."""
    given = case()
    assert isinstance(given.net.backbone, ResNet)
    given.net.backbone.conv1.requires_grad_(False)
    given.net.backbone.stages[1].requires_grad_(False)
    before = copy.deepcopy(given.net.state_dict())
    able = [p.requires_grad for p in given.net.parameters()]
    given.learned(Mnemonics(pixels=pixels_by, pixel_lr=300.0))
    assert all(torch.equal(value, before[n]) for n, value in given.net.state_dict().items())
    assert [p.requires_grad for p in given.net.parameters()] == able
    assert all(p.grad is None for p in given.net.parameters())
    assert not given.net.training


def test_two_steps_by_hand() -> None:
    """Of SGD on normalised pixels, with momentum, decay and half the rate in the second pass."""
    given = case()
    values = (given.images - given.net.mean) / given.net.std
    speed = torch.zeros_like(values)
    for rate in (50.0, 25.0):
        values.requires_grad_()
        features = given.net.features(centre(to_pixels(values), 16))
        rows = as_prototypes(given.rows, features, torch.tensor(given.labels))
        loss = F.cross_entropy(cosines(given.queries, rows), given.answers)
        (slope,) = torch.autograd.grad(loss, values)
        values = values.detach()
        speed = 0.9 * speed + slope + 0.01 * values
        values = values - rate * speed
    got = given.learned(Mnemonics(pixel_lr=50.0, pixel_decay=0.01, pixel_epochs=2))
    torch.testing.assert_close(got, to_pixels(values), rtol=0, atol=5e-3)
    assert (got - given.images).abs().max() > 1


def test_weight_decay_pulls_towards_the_mean_colour() -> None:
    """Queries that say nothing leave decay alone: three steps a pass for 300 of them.

    v <- 0.9 v + decay * x; x <- x - rate * v, the rate halved in the second pass.
    """
    given = case()
    given.queries, given.answers = torch.zeros(300, 16), torch.zeros(300, dtype=torch.long)
    got = given.learned(Mnemonics(pixel_lr=0.5, pixel_epochs=2, pixel_decay=0.1))
    left, speed = 1.0, 0.0
    for rate in (0.5, 0.5, 0.5, 0.25, 0.25, 0.25):
        speed = 0.9 * speed + 0.1 * left
        left -= rate * speed
    mean = torch.tensor(MEAN).view(3, 1, 1)
    torch.testing.assert_close(got, mean + left * (given.images - mean), rtol=0, atol=1e-2)
    assert 0 < left < 0.7
    same = given.learned(Mnemonics(pixel_lr=0.5, pixel_decay=0.0))
    torch.testing.assert_close(same, given.images, rtol=0, atol=1e-3)


def test_every_query_is_asked_once_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of 128, in another order in another pass or phase; in the same for the same."""
    given = case()
    given.queries, given.answers = (
        torch.arange(300.0)[:, None].expand(300, 16),
        torch.arange(300) % 3,
    )
    asked: list[list[int]] = []
    real = Mnemonics._answers

    def answers(self: Mnemonics, *rest: Any) -> Tensor:
        asked.append(rest[-1][:, 0].int().tolist())
        return real(self, *rest)

    monkeypatch.setattr(Mnemonics, "_answers", answers)
    given.learned(Mnemonics(pixel_epochs=2))
    assert [len(batch) for batch in asked] == [128, 128, 44] * 2
    first, second = (list(chain(*asked[start : start + 3])) for start in (0, 3))
    assert sorted(first) == sorted(second) == list(range(300))
    assert first != second
    given.learned(Mnemonics())
    given.now.phase = 1
    given.learned(Mnemonics())
    again, other = asked[6:9], asked[9:12]
    assert again == asked[:3] != other


@MODES
def test_answers_by_the_formulas(pixels_by: Any) -> None:
    """Cosines with prototypes, without a scale; or scaled cosines with the head after its step."""
    given, features = case(), torch.randn(4, 16)
    labels = torch.tensor(given.labels)
    method = Mnemonics(pixels=pixels_by, head_lr=3.0)
    got = method._answers(given.net, given.rows, features, labels, given.queries)
    if pixels_by == "prototype":
        rows, scale = torch.stack([features[:2].mean(0), given.rows[1], features[2:].mean(0)]), 1.0
    else:
        rows, scale = by_sgd(given.rows, features, labels, torch.tensor(4.0), 3.0), 4.0
    expected = scale * F.cosine_similarity(given.queries[:, None], rows[None], dim=2)
    torch.testing.assert_close(got, expected)


# A phase


def test_a_phase_learns_from_all_it_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries are new images and old exemplars; prototypes are means of old and new exemplars.

    New exemplars start as squares with a margin, of the files and not of what preview encoded;
    what is stored is rounded, by label and name, and what the report says is what changed.
    """
    net = tiny(3)
    fresh = Examples(tuple(photo(name, n, 20, 24) for n, name in enumerate("abcd")), (2, 2, 2, 2))
    memory = Examples(tuple(photo(name, 50 + n) for n, name in enumerate("abc")), (0, 0, 1))
    train = fresh + memory
    chosen = Examples((photo("d", 99), photo("b", 98)), (2, 2))  # encoded, so other pixels
    rows = {photo: torch.randn(16) for photo in train.photos}
    stored: list[Any] = []
    calls: list[tuple[Any, ...]] = []

    def features(part: Examples) -> Tensor:
        return torch.stack([rows[photo] for photo in part.photos])

    def optimised(self: Mnemonics, *given: Any) -> Tensor:
        calls.append(given)
        images: Tensor = given[1].clone()
        images[0] = (images[0] + 3.6).clamp(0, 255)
        return images

    monkeypatch.setattr(Mnemonics, "_optimised", optimised)
    now = lesson(
        model=net, fresh=fresh, memory=memory, train=train, features=features, phase=1, old=2,
        new=1, preview=lambda squares: chosen, store=stored.append,
    )  # fmt: skip
    method = Mnemonics()
    assert method.report() == {}
    method.end_phase(now)
    ((_, before, labels, prototypes, queries, answers),) = calls
    assert torch.equal(before, squares(fresh.pick([3, 1]), 18, 1).float())
    assert labels == (2, 2)
    own = [features(memory)[:2].mean(0), rows[memory.photos[2]],
           features(fresh.pick([3, 1])).mean(0)]  # fmt: skip
    torch.testing.assert_close(prototypes, torch.stack(own))
    assert torch.equal(queries, features(train)) and answers.tolist() == list(train.labels)
    (instead,) = stored
    assert list(instead) == [(2, "d"), (2, "b")]
    expected = (before[0] + 3.6).clamp(0, 255)
    assert instead[2, "d"].dtype == np.uint8
    assert torch.equal(tensor(instead[2, "d"]), expected.round().byte())
    assert torch.equal(tensor(instead[2, "b"]), before[1].byte())
    learned = (expected - before[0]).abs().mean().item() / 2
    rounded = (expected.round() - before[0]).abs().mean().item() / 2
    assert rounded > learned > 1
    assert method.report() == {
        "grey_levels": pytest.approx(learned, rel=1e-5),
        "grey_levels_rounded": pytest.approx(rounded, rel=1e-5),
    }


def test_the_head_is_what_bilevel_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows instead of prototypes."""
    net, seen = tiny(2), list[Tensor]()

    def optimised(self: Mnemonics, *given: Any) -> Tensor:
        seen.append(given[3])
        images: Tensor = given[1]
        return images

    monkeypatch.setattr(Mnemonics, "_optimised", optimised)
    fresh = of_labels(0, 1)
    now = lesson(
        model=net, fresh=fresh, train=fresh, features=lambda part: torch.zeros(len(part), 16),
        preview=lambda squares: fresh, store=lambda instead: None,
    )  # fmt: skip
    Mnemonics(pixels="bilevel").end_phase(now)
    assert isinstance(net.head, SplitCosine)
    assert len(seen) == 1 and torch.equal(seen[0], net.head.rows)
    assert not seen[0].requires_grad


def test_a_mean_change_counts_every_exemplar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three by 1 grey level and one by 5, in two parts: 2 on average."""
    monkeypatch.setattr(mrdc.methods.mnemonics, "TOGETHER", 3)
    levels = {0: 1.0, 1: 5.0}
    images = [Photo(str(n), lambda: np.full((8, 8, 3), 100, np.uint8)) for n in range(4)]
    fresh = Examples(tuple(images), (0, 0, 0, 1))
    monkeypatch.setattr(
        Mnemonics, "_optimised", lambda self, now, images, labels, *_: images + levels[labels[0]]
    )
    now = lesson(
        model=tiny(2), fresh=fresh, train=fresh, preview=lambda squares: fresh,
        store=lambda instead: None, features=lambda part: torch.zeros(len(part), 16),
    )  # fmt: skip
    method = Mnemonics()
    method.end_phase(now)
    assert method.report() == {"grey_levels": 2.0, "grey_levels_rounded": 2.0}


@pytest.mark.parametrize(("learned", "warned"), [(0.49, True), (0.51, False), (3.0, False)])
def test_changes_that_rounding_undoes_are_warned_of(learned: float, warned: bool) -> None:
    """Below half a grey level, with what to do."""
    method = Mnemonics(pixel_lr=2e-5)
    method.change = (learned, 0.01)
    report = method.report()
    assert (report["grey_levels"], report["grey_levels_rounded"]) == (learned, 0.01)
    expected = (
        "exemplars changed by 0.49 grey levels on average, of which rounding leaves 0.01: "
        "raise pixel_lr (now 2e-05) to see an effect"
    )
    assert report.get("warning") == (expected if warned else None)


def test_pixels_stay_where_none_are_to_be_learned() -> None:
    """The memory is filled as LUCIR fills it, and there is nothing to report."""
    stored: list[tuple[Any, ...]] = []
    method = Mnemonics(pixels="none")
    method.end_phase(lesson(store=lambda *given: stored.append(given)))
    assert stored == [()]
    assert method.report() == {}


# Runs


def stream(images: int = 14) -> Stream:
    """Six classes in three phases, of JPEG files larger than the views."""
    made = []
    for first in (0, 50):
        data = [[jpeg(100 * c + first + n, 95, 24, 28) for n in range(images)] for c in range(6)]
        photos = tuple(
            [Photo(f"{c}/{n}", partial(bytes, d)) for n, d in enumerate(of_class)]
            for c, of_class in enumerate(data)
        )
        made.append(ImageSet(tuple("abcdef"), photos, tuple([len(d) for d in of] for of in data)))
    return Stream(made[0], made[1], (2, 2, 2))


def small_run(*options: str, quality: str = "original", budget: str = "2/class") -> Run:
    memory = MemorySettings(budget=budget, quality=quality, candidates=(50,))
    chosen = RunSettings(
        "photos", method="mnemonics", options=options, network="resnet18-narrow", size=16,
        device="cpu", threads=2, memory=memory,
        train=TrainSettings(epochs=1, lr=0.05, batch_size=16),
    )  # fmt: skip
    return Run(chosen, stream(), Keeper())


def held(run: Run) -> dict[int, dict[str, bytes]]:
    """Stored files by label and name, in their order."""
    assert run.exemplars is not None
    memory: ReplayMemory = run.exemplars.memory
    files = iter(range(len(memory)))
    return {
        label: {name: memory.encoded(next(files)) for name in memory.sources(label)}
        for label in memory.labels
    }


@dataclass
class After:
    """A run after a phase."""

    body: str
    kernels: list[Tensor]
    scales: list[Tensor]
    held: dict[int, dict[str, bytes]]
    able: tuple[dict[str, bool], dict[str, bool]]  # before and after the pixels
    report: dict[str, Any]
    previews: list[Examples]


@cache
def phases(quality: str) -> tuple[Run, list[After]]:
    """Three phases with a large rate, and what was left after each."""
    with pytest.MonkeyPatch.context() as patch:
        run, after = small_run("pixel_lr=2000", "pixel_decay=0", quality=quality), []
        real, real_preview = run.method.end_phase, Run._preview
        able: list[dict[str, bool]] = []
        previews: list[Examples] = []

        def end_phase(now: Lesson) -> None:
            able.append({name: p.requires_grad for name, p in now.model.named_parameters()})
            real(now)
            able.append({name: p.requires_grad for name, p in now.model.named_parameters()})

        def preview(self: Run, instead: Instead) -> Examples:
            previews.append(real_preview(self, instead))
            return previews[-1]

        patch.setattr(run.method, "end_phase", end_phase)
        patch.setattr(Run, "_preview", preview)
        for phase in range(3):
            run.learn(phase)
            modules = list(run.model.modules())
            convolutions = [m for m in modules if isinstance(m, nn.Conv2d)]
            scaled = [m.scale.detach().clone() for m in modules if isinstance(m, ScaledConv)]
            after.append(
                After(
                    run.model.body,
                    [m.weight.detach().clone() for m in convolutions],
                    scaled,
                    held(run),
                    (able[-2], able[-1]),
                    run.results[-1]["report"],
                    list(previews),
                )
            )
        return run, after


def test_kernels_stay_from_the_second_phase_on() -> None:
    """Bit for bit; their multipliers move in each phase, and are what the network has more."""
    run, (first, second, third) = phases("original")
    assert (first.body, second.body, third.body) == ("plain", "scaled", "scaled")
    assert len(first.kernels) == len(third.kernels) == len(third.scales) == 20
    for kernels in zip(first.kernels, second.kernels, third.kernels, strict=True):
        assert torch.equal(kernels[0], kernels[1]) and torch.equal(kernels[0], kernels[2])
    assert not first.scales
    assert run.extra_bytes == sum(scale.nbytes for scale in third.scales)
    assert all(bool((scale != 1).any()) for scale in second.scales)
    assert all(bool((a != b).any()) for a, b in zip(second.scales, third.scales, strict=True))


def test_what_can_learn_is_the_same_after_the_pixels() -> None:
    """Kernels and old rows cannot, multipliers, batch norms and new rows can."""
    for number, after in enumerate(phases("original")[1]):
        before, now = after.able
        assert before == now
        frozen = {name for name, able in now.items() if not able}
        expected = {name for name in now if number and name.endswith("conv.weight")}
        assert frozen == expected | {"head.old"}


@pytest.mark.parametrize("quality", ["original", "75"])
def test_old_exemplars_stay_as_they_were_stored(quality: str) -> None:
    """Bit for bit, in the order of their ranks; the budget may drop the last."""
    _, after = phases(quality)
    for earlier, later in pairwise(after):
        assert list(later.held)[: len(earlier.held)] == list(earlier.held)
        for label, before in earlier.held.items():
            now = later.held[label]
            assert 0 < len(now) <= len(before)
            assert list(now.items()) == list(before.items())[: len(now)]


def difference(first: Tensor, second: Tensor) -> float:
    """Grey levels on average."""
    return (first.float() - second.float()).abs().mean().item()


@pytest.mark.parametrize(("quality", "coded"), [("original", 95), ("75", 75)])
def test_new_exemplars_are_learned(quality: str, coded: int) -> None:
    """What was chosen is stored as squares of 18 for views of 16, with other pixels."""
    run, after = phases(quality)
    files = {p.id: p for photos in run.stream.train.photos for p in photos}
    changes: list[float] = []
    for part in after[-1].previews:
        for label, shown in zip(part.labels, part.photos, strict=True):
            stored = after[-1].held[label].get(shown.id)
            if stored is None:
                continue  # dropped for room
            image = tensor(decode(stored))
            assert image.shape == (3, 18, 18)
            file = files[shown.id].load()
            assert isinstance(file, bytes)
            plain = centre_crop(tensor(decode(file)), 18, 18)
            plain_file = CODECS["jpeg"].encode(plain.permute(1, 2, 0).numpy(), coded)
            changes.append(difference(image, tensor(decode(plain_file))))
    assert 0.5 < np.mean(changes) < 60
    assert np.mean(np.array(changes) > 0) > (0.9 if quality == "75" else 0.999)  # JPEG undoes some
    assert all(a.report["grey_levels"] > 0.5 and "warning" not in a.report for a in after)


@pytest.mark.parametrize(("quality", "budget"), [("original", "6/class"), ("75", "2/class")])
def test_all_that_is_stored_is_learned(quality: str, budget: str) -> None:
    """Squares of 18 and nothing else, of files of 24 x 28."""
    run = small_run(quality=quality, budget=budget)
    run.learn(0)
    shapes = [decode(data).shape for files in held(run).values() for data in files.values()]
    assert Counter(shapes) == {(18, 18, 3): len(shapes)}


def test_without_pixels_a_run_stores_files_and_reports_nothing() -> None:
    """The files themselves; the published rate reports, and warns."""
    plain, published = small_run("pixels=none"), small_run()
    for run in (plain, published):
        run.learn(0)
    files = {p.id: p.load() for photos in plain.stream.train.photos for p in photos}
    for stored in held(plain).values():
        assert stored == {name: files[name] for name in stored}
    assert "report" not in plain.results[0]
    report = published.results[0]["report"]
    assert report["grey_levels"] < 0.5
    assert "raise pixel_lr (now 1e-05)" in report["warning"]


def test_learned_pixels_count_for_the_budget() -> None:
    """After every phase."""
    for quality in ("original", "75"):
        run, _ = phases(quality)
        for number, result in enumerate(run.results):
            memory = result["memory"]
            assert memory["bytes"] <= memory["budget_bytes"]
            assert memory["budget_bytes"] == int(2 * 2 * (number + 1) * run.stream.original_bytes)


def test_all_work_keeps_to_the_threads_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, whatever the number of cores."""
    asked: list[int] = []

    def pool(threads: int) -> ThreadPoolExecutor:
        asked.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr("mrdc._utils.threads.ThreadPoolExecutor", pool)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    small_run().learn(0)
    assert set(asked) == {2}
