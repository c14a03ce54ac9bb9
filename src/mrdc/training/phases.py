"""The engine: learn a stream phase by phase, of classes or of scenes.

    for phase in stream:
        learner.start(phase)        prepare
        learner.train(...)          the main stage, resumable after every epoch
        learner.finish(...)         store images, and later stages of training
        learner.evaluate()          scores
        keeper.save(...)            checkpoint and memory

What differs between classes and scenes is a `Learner`.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mrdc._utils.clock import Clock
from mrdc._utils.errors import RanksError, TrainingError
from mrdc._utils.signals import undisturbed
from mrdc.distributed.group import world
from mrdc.nn.checkpoint import Checkpoint, state_errors
from mrdc.training.exemplars import Exemplars
from mrdc.training.fit import Epoch, Stop
from mrdc.training.results import MemorySummary, PhaseResult
from mrdc.training.resume import Keeper, Partial, Saved, everywhere

FIRST_PHASE = ("first_phase_seconds", "first_phase_images")  # metadata of a shared first phase


class Session:
    """One phase under way: its clock, counters and events."""

    def __init__(self, phase: int, keeper: Keeper):
        self.phase, self.keeper = phase, keeper
        self.clock = Clock()
        self.start = time.perf_counter()
        self.elapsed = 0.0  # seconds spent on this phase by earlier processes
        self.trained = 0  # images

    @property
    def seconds(self) -> float:
        """Time spent on this phase so far."""
        return time.perf_counter() - self.start + self.elapsed

    def on_epoch(self, epoch: Epoch, epochs: int, stage: int, lr: float) -> None:
        """Count and report an epoch."""
        if not math.isfinite(epoch.loss):
            raise TrainingError(
                f"the loss is {epoch.loss} in phase {self.phase}, epoch {epoch.number + 1}: lower "
                f"--train.lr (now {lr:g}) and use another --out"
            )
        self.trained += epoch.images
        place = {"phase": self.phase, "stage": stage, "epoch": epoch.number + 1, "epochs": epochs}
        speed = epoch.images / max(epoch.seconds, 1e-9)
        self.keeper.event("epoch", place | {"loss": epoch.loss, "images_per_second": speed})


class Learner(ABC):
    """A classifier or a detector."""

    phases: int  # in the stream
    exemplars: Exemplars | None = None
    parameter_bytes: int = 0  # of parameters that the method adds

    @abstractmethod
    def restore(self, phase: int, checkpoint: Checkpoint) -> None:
        """Load the state at the end of a phase."""

    @abstractmethod
    def start(self, session: Session) -> dict[str, Any]:
        """Prepare a phase; returns the fields of its first event."""

    @abstractmethod
    def train(self, resume: Stop | None, on_epoch: Callable[[Stop], None]) -> None:
        """Run the main stage, from where it was interrupted."""

    @abstractmethod
    def finish(self) -> None:
        """Store images, and run the later stages of training."""

    @abstractmethod
    def evaluate(self) -> dict[str, Any]:
        """Scores after the phase: fields of `PhaseResult`."""

    @abstractmethod
    def checkpoint(self) -> Checkpoint:
        """The state now."""

    @abstractmethod
    def load_partial(self, checkpoint: Checkpoint) -> None:
        """Load the state in the middle of a phase."""

    def first_phase_key(self) -> str | None:
        """Identifies everything the network of phase 0 depends on; None to share nothing."""
        return None

    @abstractmethod
    def load_first_phase(self, checkpoint: Checkpoint) -> None:
        """Load a first phase that another run has trained."""


class Phases:
    """Runs a learner over its stream."""

    def __init__(self, learner: Learner, keeper: Keeper | None = None):
        self.learner, self.keeper = learner, keeper or Keeper()
        self.results: list[PhaseResult] = []
        self.session = Session(0, self.keeper)
        self.first_phase: dict[str, Any] = {}
        self.last: Partial | None = None  # the last epoch, if it is not in a checkpoint

    def run(self) -> tuple[PhaseResult, ...]:
        """Learn every phase that is not finished yet; returns all results."""
        for phase in range(self._restore(), self.learner.phases):
            self._learn(phase)
        return tuple(self.results)

    def _restore(self) -> int:
        """Load the last finished phase; returns the phase to continue with."""
        saved = everywhere(self.keeper.load())
        if saved is None:
            return 0
        with state_errors(f"the checkpoint of phase {saved.phase}"):
            self.learner.restore(saved.phase, saved.checkpoint)
            self.results = [PhaseResult.from_json(one) for one in saved.checkpoint.about["results"]]
        if self.learner.exemplars is not None and saved.memory is not None:
            self.learner.exemplars.restore(saved.memory)
        return saved.phase + 1

    def _learn(self, phase: int) -> None:
        learner, exemplars = self.learner, self.learner.exemplars
        session = self.session = Session(phase, self.keeper)
        self.first_phase, clock = {}, session.clock
        with clock.part("prepare"):
            fields = learner.start(session)
        self.keeper.event("phase_start", {"phase": phase, **fields})
        with clock.part("train"):
            self._train(phase)
        with clock.part("finish"):
            learner.finish()
        with clock.part("evaluate"):
            scores = learner.evaluate()
        held: dict[str, Any] = {"quality": None, "memory": MemorySummary()}
        if exemplars is not None:
            held = exemplars.summary(learner.parameter_bytes)
        result = world().lead(
            lambda: PhaseResult(
                phase=phase,
                trained_images=session.trained,
                seconds=session.seconds,
                parts=clock.seconds,
                **held,
                **scores,
                **self.first_phase,
            )
        )
        self.results.append(result)
        self.keeper.event("phase", result.to_json())  # twice rather than never, if killed here
        memory = None if exemplars is None else exemplars.memory
        self.keeper.save(Saved(phase, self._checkpoint(), memory))

    def _train(self, phase: int) -> None:
        """The main stage; the first phase may have been trained by another run."""
        key = world().lead(self.learner.first_phase_key) if phase == 0 else None
        if key is None:
            self._fit(phase)
            return
        session, start = self.session, time.perf_counter()
        ranks = f"-{world().size}" if world().size > 1 else ""
        with self.keeper.shared(lambda: f"{key}{ranks}") as (there, share):
            found = world().lead(lambda: there)
            if found is not None:
                with state_errors("the shared first phase"):
                    self.learner.load_first_phase(found)
                self.first_phase = {name: found.about[name] for name in FIRST_PHASE}
                session.trained = found.about["first_phase_images"]
                waited = time.perf_counter() - start
                seconds = max(0.0, found.about["first_phase_seconds"] - waited)
                session.elapsed += seconds  # of the other run, beyond the time waited for it
                session.clock.add({"taken_over": seconds})
                return
            start = time.perf_counter()
            self._fit(phase)
            seconds = time.perf_counter() - start + session.elapsed
            self.first_phase = dict(zip(FIRST_PHASE, (seconds, session.trained), strict=True))
            made = self.learner.checkpoint()
            share(replace(made, about=made.about | self.first_phase))

    def _fit(self, phase: int) -> None:
        """Train, from the last checkpoint inside the phase if there is one.

        An interruption leaves a checkpoint of the last finished epoch.
        """
        session, partial = self.session, world().lead(lambda: self.keeper.load_partial(phase))
        resume = None
        if partial is not None:
            with state_errors(f"the last checkpoint of phase {phase}"):
                about, buffers = partial.checkpoint.about, partial.checkpoint.tensors["momentum"]
                self.learner.load_partial(partial.checkpoint)
                resume = Stop(partial.epoch, [buffers[str(index)] for index in range(len(buffers))])
                session.elapsed, session.trained = float(about["elapsed"]), int(about["trained"])
                session.clock.add(about["parts"])
            self.keeper.event("resume", {"phase": phase, "epoch": partial.epoch})
        self.last = None
        try:
            self.learner.train(resume, self._keep)
        except (KeyboardInterrupt, RanksError):
            if (last := self.last) is not None:
                with undisturbed():
                    self.keeper.save_partial(lambda: last, now=True)
            raise
        self.last = None

    def _keep(self, stop: Stop) -> None:
        if self.keeper.keeps:
            with self.session.clock.part("write"):
                partial = self._partial(stop)
                self.last = replace(partial, checkpoint=partial.checkpoint.copied())
                self.keeper.save_partial(lambda: partial)

    def _partial(self, stop: Stop) -> Partial:
        session, parts = self.session, dict(self.session.clock.seconds)
        checkpoint = self._checkpoint(elapsed=session.seconds, parts=parts, trained=session.trained)
        checkpoint.tensors["momentum"] = {str(i): m for i, m in enumerate(stop.momentum)}
        return Partial(session.phase, stop.epoch, checkpoint)

    def _checkpoint(self, **about: Any) -> Checkpoint:
        """The state now, with the results so far."""
        checkpoint = self.learner.checkpoint()
        results = [result.to_json() for result in self.results]
        checkpoint.about |= {"phase": self.session.phase, "results": results, **about}
        return checkpoint
