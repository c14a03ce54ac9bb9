"""Mnemonics: exemplars whose pixels are learned, by hand and in small runs."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import mrdc.methods.mnemonics
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.data.crops import centre_crop, tensor
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.methods import Lesson, TrainSettings
from mrdc.methods.lesson import Substitutes
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
from mrdc.nn.net import Net, normalised
from mrdc.nn.resnet import ResNet, ScaledConv
from tests import helpers
from tests.conftest import pixels
from tests.helpers import Run, changed, examples, lesson, photo, small_stream, state_of, tiny

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


# A phase


def test_a_phase_learns_from_all_it_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """New images and old exemplars; squares of the files are learned, rounded and reported."""
    fresh = Examples(tuple(photo(name, n, 20, 24) for n, name in enumerate("abcd")), (2, 2, 2, 2))
    memory = Examples(tuple(photo(name, 50 + n) for n, name in enumerate("abc")), (0, 0, 1))
    train, best = fresh + memory, fresh.pick([3, 1])
    # encoded, so other pixels
    preview = Mock(return_value=Examples((photo("d", 99), photo("b", 98)), (2, 2)))
    rows = {photo: torch.randn(16) for photo in train.photos}
    calls: list[tuple[Any, ...]] = []

    def features(part: Examples) -> Tensor:
        return torch.stack([rows[photo] for photo in part.photos])

    def optimised(self: Mnemonics, *given: Any) -> Tensor:
        calls.append(given)
        images: Tensor = given[1].clone()
        images[0] = (images[0] + 3.6).clamp(0, 255)
        return images

    monkeypatch.setattr(Mnemonics, "_optimised", optimised)
    services = {"features": features, "preview": preview}
    method, net = Mnemonics(), tiny(classes=3)
    now = lesson(model=net, size=16, fresh=fresh, memory=memory, train=train, **services)
    assert method.report() == {}
    instead = method.substitutes(now)
    assert isinstance(instead, Mapping)
    ((_, before, labels, prototypes, queries, answers),) = calls
    assert torch.equal(before, squares(best, 18, 1).float()) and labels == (2, 2)
    (previewed,) = preview.call_args.args
    assert list(previewed) == [(2, name) for name in "abcd"]
    assert torch.equal(tensor(previewed[2, "d"]).float(), before[0])
    means = [features(part).mean(0) for part in (memory.pick([0, 1]), memory.pick([2]), best)]
    torch.testing.assert_close(prototypes, torch.stack(means))
    assert torch.equal(queries, features(train)) and answers.tolist() == list(train.labels)
    assert list(instead) == [(2, "d"), (2, "b")]
    shown = (before[0] + 3.6).clamp(0, 255)
    assert instead[2, "d"].dtype == np.uint8
    assert torch.equal(tensor(instead[2, "d"]), shown.round().byte())
    assert torch.equal(tensor(instead[2, "b"]), before[1].byte())
    kept = [(image - before[0]).abs().mean().item() / 2 for image in (shown, shown.round())]
    assert kept[1] > kept[0] > 1
    assert list(method.report()) == ["grey_levels", "grey_levels_rounded"]
    assert list(method.report().values()) == pytest.approx(kept, rel=1e-5)


def test_bilevel_starts_from_the_head_and_changes_are_averaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three exemplars by 1 grey level and one by 5, in two parts: 2 on average."""
    monkeypatch.setattr(mrdc.methods.mnemonics, "TOGETHER", 3)
    rows: list[Tensor] = []

    def optimised(self: Mnemonics, _: Lesson, images: Tensor, *given: Any) -> Tensor:
        rows.append(given[1])
        return images + (1.0 if given[0][0] == 0 else 5.0)

    monkeypatch.setattr(Mnemonics, "_optimised", optimised)
    grey = [Photo(str(n), lambda: np.full((8, 8, 3), 100, np.uint8)) for n in range(4)]
    net, fresh = tiny(classes=2), Examples(tuple(grey), (0, 0, 0, 1))
    services = {"features": lambda part: torch.zeros(len(part), 16), "preview": lambda _: fresh}
    now = lesson(phase=0, old=0, new=2, model=net, size=16, fresh=fresh, train=fresh, **services)
    method = Mnemonics(pixels="bilevel")
    method.substitutes(now)
    assert isinstance(net.head, SplitCosine)
    assert len(rows) == 2 and torch.equal(rows[0], net.head.rows) and not rows[0].requires_grad
    assert method.report() == {"grey_levels": 2.0, "grey_levels_rounded": 2.0}


@pytest.mark.parametrize(("learned", "warned"), [(0.49, True), (0.51, False)])
def test_warns_if_rounding_undoes_the_changes(learned: float, warned: bool) -> None:
    """A change below half a grey level, as with the published settings, gets a warning."""
    method = Mnemonics()
    settings = (method.pixels, method.pixel_lr, method.pixel_epochs, method.pixel_decay)
    assert settings == ("prototype", 1e-5, 1, 5e-4)
    method.change = (learned, 0.01)
    warning = (
        "exemplars changed by 0.49 grey levels on average, of which rounding leaves 0.01: "
        "raise pixel_lr (now 1e-05) to see an effect"
    )
    expected = {"grey_levels": learned, "grey_levels_rounded": 0.01}
    assert method.report() == expected | ({"warning": warning} if warned else {})


# Runs


def small_run(*options: str, quality: str = "original", budget: str = "2/class") -> Run:
    """Views of 16 pixels of files of 24 x 28."""
    return helpers.small_run(
        "mnemonics",
        *options,
        stream=small_stream(2, 2, 2, images=14, height=24, width=28),
        memory={"budget": budget, "quality": quality},
        size=16,
        train=TrainSettings(epochs=1, lr=0.05, batch_size=16),
    )


def held(run: Run) -> dict[int, dict[str, bytes]]:
    """Stored files by label and name, in order."""
    files = iter(range(len(run.memory)))
    return {
        label: {name: run.memory.encoded(next(files)) for name in run.memory.sources(label)}
        for label in run.memory.labels
    }


@cache
def phases(quality: str) -> tuple[Run, list[SimpleNamespace]]:
    """Three phases with a large rate, and the state after each."""
    run = small_run("pixel_lr=2000", "pixel_decay=0", quality=quality)
    method, after, frozen = run.learner.method, list[SimpleNamespace](), list[set[str]]()
    real = method.substitutes

    def fixed(net: Net) -> set[str]:
        return {name for name, p in net.named_parameters() if not p.requires_grad}

    def substitutes(now: Lesson) -> Substitutes | None:
        frozen.append(fixed(now.model))
        found = real(now)
        assert fixed(now.model) == frozen[-1]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "substitutes", substitutes)
        for phase in range(3):
            run.learn(phase)
            modules = list(run.learner.model.modules())
            after.append(
                SimpleNamespace(
                    body=run.learner.model.body,
                    kernels=[m.weight.clone() for m in modules if isinstance(m, nn.Conv2d)],
                    scales=[m.scale.clone() for m in modules if isinstance(m, ScaledConv)],
                    held=held(run),
                    frozen=frozen[-1],
                    report=run.results[-1].report,
                )
            )
    return run, after


def test_kernels_are_fixed_from_the_second_phase_on() -> None:
    """Bit for bit; their multipliers, the added parameters, change in every phase."""
    run, (first, second, third) = phases("original")
    assert (first.body, second.body, third.body) == ("plain", "scaled", "scaled")
    assert len(first.kernels) == len(third.kernels) == len(third.scales) == 20
    for kernels in zip(first.kernels, second.kernels, third.kernels, strict=True):
        assert torch.equal(kernels[0], kernels[1]) and torch.equal(kernels[0], kernels[2])
    assert not first.scales
    assert run.learner.parameter_bytes == sum(scale.nbytes for scale in third.scales)
    assert all(bool((scale != 1).any()) for scale in second.scales)
    assert all(bool((a != b).any()) for a, b in zip(second.scales, third.scales, strict=True))
    for number, one in enumerate((first, second, third)):
        fixed = {name for name in one.frozen if name.endswith("conv.weight")}
        assert one.frozen == fixed | {"head.old"}
        assert len(fixed) == (20 if number else 0)


@pytest.mark.parametrize(("quality", "coded"), [("original", 95), ("75", 75)])
def test_exemplars_are_learned_once_and_stay_as_they_were_stored(quality: str, coded: int) -> None:
    """Squares of 18 for views of 16, with other pixels; later the last may be dropped for room."""
    run, after = phases(quality)
    for earlier, later in pairwise(after):
        assert list(later.held)[: len(earlier.held)] == list(earlier.held)
        for label, before in earlier.held.items():
            now = later.held[label]
            assert 0 < len(now) <= len(before)
            assert list(now.items()) == list(before.items())[: len(now)]
    for number, result in enumerate(run.results, 1):
        assert result.memory.bytes <= result.memory.budget_bytes
        assert result.memory.budget_bytes == int(4 * number * run.learner.stream.original_bytes)
    files = {p.id: p for photos in run.learner.stream.train.photos for p in photos}
    changes: list[float] = []
    for name, stored in chain(*(of_class.items() for of_class in after[-1].held.values())):
        image = tensor(decode(stored))
        assert image.shape == (3, 18, 18)
        plain = centre_crop(tensor(files[name].pixels()), 18, 18)
        plain_file = CODECS["jpeg"].encode(plain.permute(1, 2, 0).numpy(), coded)
        change = image.float() - tensor(decode(plain_file)).float()
        changes.append(change.abs().mean().item())
    assert 0.5 < np.mean(changes) < 60
    assert np.mean(np.array(changes) > 0) > (0.9 if quality == "75" else 0.999)  # JPEG undoes some
    assert all(a.report["grey_levels"] > 0.5 and "warning" not in a.report for a in after)


@pytest.mark.parametrize(("quality", "budget"), [("original", "6/class"), ("75", "2/class")])
def test_everything_stored_is_learned(
    quality: str, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Squares of 18 and nothing else; all work keeps to the two threads asked for."""
    pool = Mock(wraps=ThreadPoolExecutor)
    monkeypatch.setattr("mrdc._utils.threads.ThreadPoolExecutor", pool)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    run = small_run(quality=quality, budget=budget).learn(0)
    shapes = [decode(data).shape for files in held(run).values() for data in files.values()]
    assert Counter(shapes) == {(18, 18, 3): len(shapes)}
    assert {call.args for call in pool.call_args_list} == {(2,)}
    assert "raise pixel_lr (now 1e-05)" in run.results[0].report["warning"]  # the published rate


def test_without_learned_pixels_the_files_are_stored() -> None:
    run = small_run("pixels=none").learn(0)
    files = {p.id: p.load() for photos in run.learner.stream.train.photos for p in photos}
    for stored in held(run).values():
        assert stored == {name: files[name] for name in stored}
    assert run.results[0].report == {}
