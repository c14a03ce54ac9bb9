"""The engine: learn a stream phase by phase, of classes or of scenes.

    for phase in stream:
        learner.start(phase)        prepare
        learner.train(...)          the main stage, resumable after every epoch
        learner.finish(...)         store images, and later stages of training
        learner.evaluate()          scores
        keeper.save(...)            checkpoint and memory

What differs between classes and scenes is a `Learner`.
"""

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mrdc._utils.clock import Clock
from mrdc._utils.errors import TrainingError
from mrdc.nn.checkpoint import Checkpoint
from mrdc.training.exemplars import Exemplars
from mrdc.training.fit import Epoch, Stop
from mrdc.training.results import MemorySummary, PhaseResult
from mrdc.training.resume import Keeper, Partial, Saved


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
        """Count and report an epoch.

        Raises:
            TrainingError: the loss is not finite.
        """
        if not math.isfinite(epoch.loss):
            raise TrainingError(
                f"the loss is {epoch.loss} in phase {self.phase}, epoch {epoch.number + 1}: lower "
                f"--train.lr (now {lr:g}) and use another --out"
            )
        self.trained += epoch.images
        fields = {
            "phase": self.phase,
            "stage": stage,
            "epoch": epoch.number + 1,
            "epochs": epochs,
            "loss": epoch.loss,
            "images_per_second": epoch.images / max(epoch.seconds, 1e-9),
        }
        self.keeper.event("epoch", fields)

    def take_over(self, seconds: float) -> None:
        """Count work done by another run, beyond the time waited for it."""
        self.elapsed += max(0.0, seconds)
        self.clock.add({"taken_over": max(0.0, seconds)})


class Learner(ABC):
    """What learns: a classifier or a detector.

    Attributes:
        phases: number of phases in the stream.
        exemplars: the memory, if there is one.
        parameter_bytes: bytes of parameters that the method adds.
    """

    phases: int
    exemplars: Exemplars | None = None
    parameter_bytes: int = 0

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

    def load_first_phase(self, checkpoint: Checkpoint) -> None:
        """Load a first phase that another run has trained."""
        raise NotImplementedError


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
        saved = self.keeper.load()
        if saved is None:
            return 0
        self.learner.restore(saved.phase, saved.checkpoint)
        self.results = [PhaseResult.from_json(one) for one in saved.checkpoint.about["results"]]
        if self.learner.exemplars is not None and saved.memory is not None:
            self.learner.exemplars.restore(saved.memory)
        return saved.phase + 1

    def _learn(self, phase: int) -> None:
        learner, exemplars = self.learner, self.learner.exemplars
        session = self.session = Session(phase, self.keeper)
        self.first_phase = {}
        clock = session.clock
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
        result = PhaseResult(
            phase=phase,
            trained_images=session.trained,
            seconds=session.seconds,
            parts=clock.seconds,
            **held,
            **scores,
            **self.first_phase,
        )
        self.results.append(result)
        self.keeper.event("phase", result.to_json())  # twice rather than never, if killed here
        memory = None if exemplars is None else exemplars.memory
        self.keeper.save(Saved(phase, self._with_results(learner.checkpoint()), memory))

    def _train(self, phase: int) -> None:
        """The main stage; the first phase may have been trained by another run."""
        key = self.learner.first_phase_key() if phase == 0 else None
        if key is None:
            self._fit(phase)
            return
        session, start = self.session, time.perf_counter()
        with self.keeper.shared(lambda: key) as (found, share):
            if found is not None:
                self.learner.load_first_phase(found)
                self.first_phase = found.about
                session.trained = found.about["first_phase_images"]
                waited = time.perf_counter() - start
                session.take_over(found.about["first_phase_seconds"] - waited)
                return
            start = time.perf_counter()
            self._fit(phase)
            seconds = time.perf_counter() - start + session.elapsed
            self.first_phase = {
                "first_phase_seconds": seconds,
                "first_phase_images": session.trained,
            }
            share(replace(self.learner.checkpoint(), about=self.first_phase))

    def _fit(self, phase: int) -> None:
        """Train, from the last checkpoint inside the phase if there is one.

        An interruption leaves a checkpoint of the last finished epoch.
        """
        session, partial = self.session, self.keeper.load_partial(phase)
        resume = None
        if partial is not None:
            about = partial.checkpoint.about
            self.learner.load_partial(partial.checkpoint)
            resume = Stop(partial.epoch, partial.momentum)
            session.elapsed, session.trained = about["elapsed"], about["trained"]
            session.clock.add(about["parts"])
            self.keeper.event("resume", {"phase": phase, "epoch": partial.epoch})
        self.last = None
        try:
            self.learner.train(resume, self._keep)
        except KeyboardInterrupt:
            last = self.last
            if last is not None:
                self.keeper.save_partial(lambda: last, now=True)
            raise
        self.last = None

    def _keep(self, stop: Stop) -> None:
        if self.keeper.keeps:
            with self.session.clock.part("write"):
                self.last = copy.deepcopy(self._partial(stop))
                self.keeper.save_partial(lambda: self._partial(stop))

    def _partial(self, stop: Stop) -> Partial:
        checkpoint = self._with_results(self.learner.checkpoint())
        checkpoint.about |= {
            "elapsed": self.session.seconds,
            "parts": dict(self.session.clock.seconds),
            "trained": self.session.trained,
        }
        checkpoint.tensors["momentum"] = {str(i): m for i, m in enumerate(stop.momentum)}
        return Partial(self.session.phase, stop.epoch, checkpoint)

    def _with_results(self, checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.about["phase"] = self.session.phase
        checkpoint.about["results"] = [result.to_json() for result in self.results]
        return checkpoint
