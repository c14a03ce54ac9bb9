"""One stream of phases: train, store, evaluate; again and again."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mrdc._utils.clock import Clock
from mrdc._utils.errors import TrainingError
from mrdc.data.examples import Companions, Examples, from_images
from mrdc.data.stream import Stream
from mrdc.methods import Lesson
from mrdc.nn.checkpoint import Checkpoint
from mrdc.nn.embed import Embedder, embed, network_embedder
from mrdc.nn.net import Maps, Net, compiled
from mrdc.training.evaluate import evaluate
from mrdc.training.exemplars import NOTHING, Exemplars, Instead, memory_json
from mrdc.training.feed import Feed, Views, from_memory, open_feed
from mrdc.training.fit import Epoch, Loss, Stop, fit
from mrdc.training.prepare import (
    architecture,
    charged_bytes,
    content_digest,
    extra_bytes,
    make_method,
    named_seed,
    pick_device,
)
from mrdc.training.resume import Keeper, Partial, Saved
from mrdc.training.settings import RunSettings, TrainSettings

WORTH_COMPILING = 1_500_000  # images to train on that repay it


def run_phases(
    settings: RunSettings, stream: Stream, keeper: Keeper | None = None
) -> list[dict[str, Any]]:
    """Learn a stream phase by phase; what was measured after each.

    Goes on after the last phase that `keeper` has, and tells it of every event.

    Raises:
        MrdcError: settings that cannot be used, or a budget without room.
    """
    run = Run(settings, stream, keeper or Keeper())
    for phase in range(run.restore(), len(stream.sizes)):
        run.learn(phase)
    return run.results


@dataclass
class Run:
    """A run under way."""

    settings: RunSettings
    stream: Stream
    keeper: Keeper
    results: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.device = pick_device(settings.device)
        self.bf16 = settings.precision == "bf16" or (
            settings.precision == "auto" and self.device.type == "cuda"
        )
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        self.method = make_method(settings)
        self.architecture = architecture(settings, self.method)
        self.model = self.build()
        self.exemplars: Exemplars | None = None
        self.extra_bytes = extra_bytes(self.architecture, self.method)
        if self.method.replays:
            charge = charged_bytes(settings, self.method)
            self.exemplars = Exemplars(settings, self.stream, self.method.arrange, charge)
        size = self.architecture.size
        self.views = Views(size, self.device, settings.resident, settings.threads)
        self.clock = Clock()
        self.teacher: Net | None = None
        self.compiled: dict[Net, Maps] = {}

    def seed(self, name: str) -> int:
        """For everything that is drawn under this name."""
        return named_seed(self.settings.seed, name)

    def build(self) -> Net:
        """The network that a run starts with."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("init"))
            net = self.architecture.build()
        return net.to(self.device).to(memory_format=torch.channels_last).eval()

    @property
    def embedder(self) -> Embedder:
        """The features of the network as it is now."""
        size = self.architecture.size
        return network_embedder(self.model, self.model.features, size=size, device=self.device)

    def restore(self) -> int:
        """Take up what the keeper has; the phase to go on with."""
        saved = self.keeper.load()
        if saved is None:
            return 0
        self.model = saved.checkpoint.network().to(self.device)
        self.model = self.model.to(memory_format=torch.channels_last)
        self._load_method(saved.checkpoint)
        self.results = saved.checkpoint.about["results"]
        if self.exemplars is not None and saved.memory is not None:
            self.exemplars.restore(saved.memory)
        for phase in range(saved.phase + 1):
            self._add_tests(phase)
        return saved.phase + 1

    def learn(self, phase: int) -> None:
        """Train, store, evaluate, and keep what came of it."""
        clock = self.clock = Clock()
        self.stages = 0  # of the phase so far, one after another
        self.beside: list[tuple[Examples, Feed]] = []  # stages that go on after every epoch
        self.trained = 0
        self.first_phase: dict[str, Any] = {}
        start = self.start = time.perf_counter()
        lesson = self._lesson(phase)
        self.phase = phase
        self.elapsed = 0.0
        with clock.part("prepare"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed(f"rows {phase}"))
            self.method.start_phase(lesson)
            self.model = lesson.model
        self.keeper.event(
            "phase_start",
            {"phase": phase, "classes": lesson.new, "train_images": len(lesson.train)},
        )
        with clock.part("train"):
            self._train(lesson)
        self.beside.clear()
        with clock.part("finish"):
            self.method.end_phase(lesson)
        with clock.part("evaluate"):
            self._add_tests(phase)
            seen = self.stream.phases[: phase + 1]
            scores = evaluate(self.model, self.method.predict, self.views, seen)
        result = {
            "phase": phase,
            "classes": self.stream.seen(phase),
            **scores,
            **memory_json(self.exemplars, self.extra_bytes),
            **({"report": report} if (report := self.method.report()) else {}),
            "trained_images": self.trained,
            **self.first_phase,
            "seconds": time.perf_counter() - start + self.elapsed,
            "parts": clock.seconds,
        }
        self.results = [*self.results, result]
        self.keeper.event("phase", result)  # twice rather than never, if killed in between
        self.keeper.save(Saved(phase, self._checkpoint(), self._memory))

    def _lesson(self, phase: int) -> Lesson:
        labels = self.stream.phases[phase]
        fresh = from_images(self.stream.fresh(phase), labels.start)
        held = Examples() if self._memory is None else from_memory(self._memory)
        if phase:
            frozen = self.model.frozen()
            if self.teacher is not None and self.teacher.body == frozen.body:
                self.teacher.become(frozen)  # what was compiled for it stays good
            else:
                self.teacher = frozen
        self.lesson = Lesson(
            phase=phase,
            old=labels.start,
            new=len(labels),
            model=self.model,
            teacher=self.teacher,
            train=fresh + held,
            fresh=fresh,
            memory=held,
            images=self.stream.train.pick(range(labels.stop)),
            training=self.settings.train,
            loss=lambda *batch: self.method.loss(self.model, self.teacher, *batch),
            fit=self._fit,
            features=self._features,
            store=self._store,
            preview=self._preview,
            build=self.build,
            size=self.architecture.size,
            quota=0 if self.exemplars is None else self.exemplars.quota,
            seed=self.seed,
            threads=self.settings.threads,
        )
        return self.lesson

    @property
    def _memory(self) -> Any:
        return None if self.exemplars is None else self.exemplars.memory

    def _features(self, examples: Examples) -> Tensor:
        with self.clock.part("select"):
            threads = self.settings.threads
            return embed(examples.photos, self.embedder, threads=threads)[0]

    def _store(self, instead: Instead = NOTHING) -> None:
        assert self.exemplars is not None
        self.exemplars.store(self.phase, self.embedder, self.clock, instead)
        self.lesson.memory = from_memory(self.exemplars.memory)

    def _preview(self, instead: Instead = NOTHING) -> Examples:
        assert self.exemplars is not None
        return from_memory(self.exemplars.preview(self.phase, self.embedder, self.clock, instead))

    # Training

    def _train(self, lesson: Lesson) -> None:
        """The main stage; the first phase may have been trained by another run."""
        if lesson.phase > 0:
            self._main_fit(lesson)
            return
        start = time.perf_counter()
        with self.keeper.shared(self._first_phase_key) as (found, leave):
            if found is not None:
                self.model.load_state_dict(found.tensors["model"])
                self.first_phase = found.about
                self.trained = found.about["first_phase_images"]
                self._take_over(found.about["first_phase_seconds"] - time.perf_counter() + start)
                return
            start = time.perf_counter()
            self._main_fit(lesson)
            seconds = time.perf_counter() - start + self.elapsed
            self.first_phase = {"first_phase_seconds": seconds, "first_phase_images": self.trained}
            leave(replace(self._checkpoint(), about=self.first_phase))

    def _take_over(self, seconds: float) -> None:
        """Count work that another run has done, beyond what was waited for it."""
        self.elapsed += max(0.0, seconds)
        self.clock.add({"taken_over": max(0.0, seconds)})

    def _first_phase_key(self) -> str:
        """Everything that the network of the first phase depends on."""
        first = from_images(self.stream.fresh(0))
        contents = content_digest(first.photos, self.settings.threads)
        parts = (
            contents, first.labels, self.architecture, self.settings.train, self.settings.seed,
            self.method.first_phase, self.device.type, self.settings.resident, self.bf16,
            torch.__version__,
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _main_fit(self, lesson: Lesson) -> None:
        partial = self.keeper.load_partial(lesson.phase)
        resume = None
        if partial is not None:
            self.model.load_state_dict(partial.checkpoint.tensors["model"])
            self._load_method(partial.checkpoint)
            resume = Stop(partial.epoch, partial.momentum)
            self.elapsed = partial.checkpoint.about["elapsed"]
            self.clock.add(partial.checkpoint.about.get("parts", {}))
            self.trained = partial.checkpoint.about["trained"]
            self.keeper.event("resume", {"phase": lesson.phase, "epoch": partial.epoch})

        def keep(stop: Stop) -> None:
            self.method.end_epoch(lesson, stop.epoch - 1)
            with self.clock.part("write"):
                self.keeper.save_partial(lambda: self._partial(stop))

        with self._compiled(lesson):
            self._fit(lesson.train, lesson.training, lesson.loss, resume=resume, keep=keep,
                      companions=lesson.companions)  # fmt: skip

    def _load_method(self, checkpoint: Checkpoint) -> None:
        tensors = checkpoint.tensors.get("method", {})
        state = {name: value.to(self.device) for name, value in tensors.items()}
        self.method.load_state(state | checkpoint.about["method"])

    @contextmanager
    def _compiled(self, lesson: Lesson) -> Iterator[None]:
        """The main stage of a long run on a GPU, compiled once for networks that stay."""
        wanted = self.settings.compile == "yes" or (
            self.settings.compile == "auto" and self._most_images() > WORTH_COMPILING
        )
        nets = [net for net in (self.model, lesson.teacher) if net is not None]
        size = lesson.training.batch_size
        together = size + (lesson.companions.count if lesson.companions else 0)
        for net in nets if wanted and self.bf16 else []:
            if net not in self.compiled:
                self.compiled[net] = compiled(net)
            net.compiled = frozenset((size, together)), self.compiled[net]
        try:
            yield
        finally:
            for net in nets:
                net.compiled = None

    def _most_images(self) -> int:
        """Images that the run would train on if its memory held everything."""
        counts = [len(photos) for photos in self.stream.train.photos]
        seen = (sum(counts[: labels.stop]) for labels in self.stream.phases)
        return self.settings.train.epochs * sum(seen)

    def _fit(
        self,
        examples: Examples,
        training: TrainSettings,
        loss: Loss,
        *,
        keep: Callable[[Stop], None] = lambda stop: None,
        companions: Companions | None = None,
        until: int | None = None,
        **options: Any,
    ) -> Stop:
        """`loop.fit` with the run's device, precision, seeds and progress."""
        stage, name, feed = self._stage(examples, companions, going_on=until is not None)

        def on_epoch(epoch: Epoch, stop: Stop) -> None:
            if not math.isfinite(epoch.loss):
                raise TrainingError(
                    f"the loss is {epoch.loss} in phase {self.phase}, epoch {epoch.number + 1}: "
                    f"lower --train.lr (now {training.lr:g}), in another --out"
                )
            self.trained += epoch.images
            fields: dict[str, Any] = {"phase": self.phase, "stage": stage}
            fields |= {"epoch": epoch.number + 1, "epochs": training.epochs, "loss": epoch.loss}
            fields["images_per_second"] = epoch.images / max(epoch.seconds, 1e-9)
            self.keeper.event("epoch", fields)
            keep(stop)

        with self.clock.part("train"):
            stop = fit(
                self.model,
                loss,
                feed,
                training,
                seed=self.seed(f"loader {self.phase} {name}"),
                clamp=self.method.clamp,
                bf16=self.bf16,
                until=until,
                on_epoch=on_epoch,
                **options,
            )
        few = examples.pick(range(min(len(examples), 8)))
        if until is None and not self._features(few).isfinite().all():
            raise TrainingError(
                f"phase {self.phase} ended with features that are no numbers: lower --train.lr "
                f"(now {training.lr:g}), in another --out"
            )
        return stop

    def _stage(
        self, examples: Examples, companions: Companions | None, going_on: bool
    ) -> tuple[int | None, str, Feed]:
        """Number, name and feed of a stage; one that goes on has no number, but a feed for all."""
        known = [held for held, _ in self.beside]
        for place, held in enumerate(known):
            if held is examples:
                return None, f"beside {place}", self.beside[place][1]
        with self.clock.part("decode"):
            compiled = self.model.compiled is not None
            where, threads = self.settings.resident, self.settings.threads
            size = self.architecture.size
            feed = open_feed(examples, size, self.device, where, threads, compiled, companions)
        if going_on:
            self.beside.append((examples, feed))
            return None, f"beside {len(known)}", feed
        self.stages += 1
        return self.stages - 1, str(self.stages - 1), feed

    # What is kept

    def _checkpoint(self) -> Checkpoint:
        state = self.method.state().items()
        tensors = {name: value for name, value in state if isinstance(value, Tensor)}
        numbers = {name: value for name, value in state if not isinstance(value, Tensor)}
        return Checkpoint(
            replace(
                self.architecture,
                classes=self.stream.sizes[: self.phase + 1],
                body=self.model.body,
            ),
            {"model": dict(self.model.state_dict()), "method": tensors},
            {"phase": self.phase, "results": self.results, "method": numbers},
        )

    def _partial(self, stop: Stop) -> Partial:
        checkpoint = self._checkpoint()
        checkpoint.about["elapsed"] = time.perf_counter() - self.start + self.elapsed
        checkpoint.about["parts"] = dict(self.clock.seconds)
        checkpoint.about["trained"] = self.trained
        checkpoint.tensors["momentum"] = {str(i): m for i, m in enumerate(stop.momentum)}
        return Partial(self.phase, stop.epoch, checkpoint)

    def _add_tests(self, phase: int) -> None:
        labels = self.stream.phases[phase]
        self.views.add(from_images(self.stream.test.pick(labels), labels.start))
