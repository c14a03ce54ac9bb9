"""Mnemonics: what a phase learns and reports, and what small runs store."""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mrdc.methods.mnemonics
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.data.crops import centre_crop, tensor
from mrdc.data.examples import Examples
from mrdc.data.photo import Photo
from mrdc.methods import Lesson, TrainSettings
from mrdc.methods.lesson import Substitutes
from mrdc.methods.mnemonics import Mnemonics, squares
from mrdc.nn.heads import SplitCosine
from mrdc.nn.net import Net
from mrdc.nn.resnet import ScaledConv
from tests import helpers
from tests.helpers import Run, lesson, photo, small_stream, tiny

pytestmark = pytest.mark.usefixtures("quick")


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
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(7)))
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
