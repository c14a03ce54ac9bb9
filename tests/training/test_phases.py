"""The engine: interruptions, resuming, stages and their events."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrdc._utils.errors import TrainingError
from mrdc.data.examples import Examples
from mrdc.methods.base import Method
from mrdc.methods.lesson import Lesson
from mrdc.nn.net import Net
from mrdc.training.feed import open_feed
from mrdc.training.resume import Partial
from mrdc.training.settings import TrainSettings
from tests.helpers import (
    Remembers,
    Run,
    changed,
    numbers,
    small_run,
    small_stream,
    state_of,
    stored,
)
from tests.training.feeds import CPU, equal, varied

pytestmark = pytest.mark.usefixtures("quick")


@dataclass
class Patient(Remembers):
    """Writes no checkpoint inside a phase unless it must; may interrupt at an event."""

    interrupt: tuple[int, int] | None = None  # phase and epoch
    written: int = 0
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def save_partial(self, partial: Callable[[], Partial], now: bool = False) -> None:
        if now:
            super().save_partial(partial)
            self.written += 1

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "epoch" and (fields["phase"], fields["epoch"]) == self.interrupt:
            self.interrupt = None
            raise KeyboardInterrupt
        self.events.append((kind, fields))

    def epochs(self) -> list[tuple[int, int, int]]:
        """Phase, stage and number of every epoch."""
        keys = ("phase", "stage", "epoch")
        return [tuple(f[key] for key in keys) for kind, f in self.events if kind == "epoch"]


@dataclass(kw_only=True)
class Interrupted(Method):
    """Cross-entropy that is interrupted at a step."""

    step: int = -1

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor) -> Tensor:
        self.step -= 1
        if self.step == 0:
            raise KeyboardInterrupt
        return super().loss(model, old, x, y)


def running(keeper: Patient, step: int = -1) -> Run:
    """Two phases of four epochs; an epoch of the first has two steps."""
    training = TrainSettings(epochs=4, lr=0.05, batch_size=8, brightness=0.1)
    stream = small_stream(2, 2, images=8)
    return small_run(Interrupted(step=step), stream=stream, keeper=keeper, train=training)


@cache
def unbroken() -> Run:
    run = running(Patient())
    run.run()
    return run


@pytest.mark.parametrize(
    ("step", "interrupt", "phase"),
    [
        (6, None, 0),  # the second step of the third epoch
        (-1, (0, 3), 0),
        (-1, (1, 3), 1),
    ],
)
def test_interruption_keeps_the_last_finished_epoch(
    step: int, interrupt: tuple[int, int] | None, phase: int
) -> None:
    """Inside the third epoch or at its end; resuming gives the same bits as an unbroken run."""
    nothing = Patient(interrupt=interrupt and (0, 1))
    with pytest.raises(KeyboardInterrupt):
        running(nothing, min(step, 1)).run()  # in the first epoch: nothing to resume from yet
    assert (nothing.partial, nothing.written, nothing.saved) == (None, 0, [])
    keeper = Patient(interrupt=interrupt)
    with pytest.raises(KeyboardInterrupt):
        running(keeper, step).run()
    assert keeper.partial is not None and keeper.written == 1
    assert (keeper.partial.phase, keeper.partial.epoch) == (phase, 2)
    before = len(keeper.epochs())
    again = running(keeper)
    again.run()
    assert keeper.epochs()[before:][:2] == [(phase, 0, 3), (phase, 0, 4)]
    assert ("resume", {"phase": phase, "epoch": 2}) in keeper.events
    assert changed(again.learner.model, state_of(unbroken().learner.model)) == set()
    assert stored(again.memory) == stored(unbroken().memory)
    assert numbers(again.results) == numbers(unbroken().results)


class Dropping(nn.Module):
    """A network that draws numbers in training."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.convolution(x).relu(), 0.5, self.training)


def test_networks_that_draw_numbers_repeat_and_resume() -> None:
    """Dropout, for example: whatever was drawn before, and in the middle of a phase."""

    def run(keeper: Patient) -> Run:
        torch.manual_seed(0)
        network, training = Dropping(), TrainSettings(epochs=4, lr=0.05, batch_size=8)
        torch.manual_seed(id(keeper))
        stream = small_stream(2, 2, images=8)
        made = small_run("lwf", stream=stream, keeper=keeper, train=training, network=network)
        made.run()
        return made

    whole, keeper = run(Patient()), Patient(interrupt=(1, 3))
    with pytest.raises(KeyboardInterrupt):
        run(keeper)
    for again in (run(Patient()), run(keeper)):
        assert changed(again.learner.model, state_of(whole.learner.model)) == set()
        assert numbers(again.results) == numbers(whole.results)


def test_finished_run_is_not_trained_again() -> None:
    keeper = cast(Patient, unbroken().keeper)
    before = len(keeper.events)
    again = running(keeper)
    again.run()
    assert len(keeper.events) == before
    assert numbers(again.results) == numbers(unbroken().results)


def test_events_and_results_describe_every_phase() -> None:
    """A start, a feed, four epochs and a result each; all trained images are counted."""
    keeper = cast(Patient, unbroken().keeper)
    each = ["phase_start", "feed", *["epoch"] * 4, "phase"]
    assert [kind for kind, _ in keeper.events] == 2 * each
    feeds = [fields for kind, fields in keeper.events if kind == "feed"]
    assert feeds == [{"phase": phase, "stage": 0, "resident": "ram"} for phase in (0, 1)]
    starts = [fields for kind, fields in keeper.events if kind == "phase_start"]
    images = [fields["train_images"] for fields in starts]
    assert images[0] == 16 < images[1]
    assert [result.trained_images for result in unbroken().results] == [4 * n for n in images]
    assert all({"train", "decode", "evaluate"} <= set(one.parts) for one in unbroken().results)


def test_loss_that_is_not_finite_ends_the_run() -> None:
    run = running(Patient())
    run.learner.settings = replace(
        run.learner.settings, train=TrainSettings(epochs=1, lr=1e30, batch_size=8)
    )
    with pytest.raises(TrainingError, match=r"in phase 0.*lower --train\.lr \(now 1e\+30\)"):
        run.run()


@dataclass(kw_only=True)
class Staged(Method):
    """Trains twice more before storing and once after."""

    side: Examples = field(default_factory=lambda: varied(6))
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def watched(self, lesson: Lesson) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            self.seen.append((x, y))
            total: Tensor = lesson.model(x).scores.sum()
            return 0 * total

        lesson.fit(self.side, replace(lesson.training, epochs=1), loss)

    def before_store(self, lesson: Lesson) -> None:
        self.watched(lesson)
        self.watched(lesson)

    def end_phase(self, lesson: Lesson) -> None:
        assert set(lesson.memory.labels) == {0, 1}  # stored by now
        self.watched(lesson)


def test_every_stage_has_its_own_number_and_draws() -> None:
    """The main stage has number 0."""
    keeper, method = Patient(), Staged()
    run = small_run(method, stream=small_stream(2, images=8), keeper=keeper)
    run.run()
    assert keeper.epochs() == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)]
    feed = open_feed(method.side, 8, CPU, "ram")
    for stage, batch in enumerate(method.seen, 1):
        (expected,) = feed.epoch(16, run.learner.seed(f"loader 0 {stage}"), 0)
        assert equal(batch, expected)
    assert len({tuple(y.tolist()) for _, y in method.seen}) > 1
