"""One stream of scenes: learn a phase, store some of it, evaluate; again and again."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN

from mrdc._utils.clock import Clock
from mrdc._utils.errors import CheckpointError, TrainingError
from mrdc._utils.registry import lookup
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes
from mrdc.detection.album import Album
from mrdc.detection.detectors import build_detector, pooled_features
from mrdc.detection.evaluate import average_precision, detect, label_quality
from mrdc.detection.methods import LEARNERS, PseudoLabels, Shot, Supervised, Task, UnbiasedTeacher
from mrdc.detection.settings import DetectSettings
from mrdc.detection.stream import SceneStream
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.checkpoint import Checkpoint
from mrdc.nn.embed import Embedder, exact
from mrdc.planning.volume import gram
from mrdc.training.exemplars import Exemplars, memory_json
from mrdc.training.feed import from_memory
from mrdc.training.fit import Epoch, Stop, fit
from mrdc.training.prepare import named_seed, pick_device, with_options
from mrdc.training.resume import Keeper, Partial, Saved
from mrdc.training.settings import TrainSettings

CHUNKS = 100  # parts of a phase after which it can be gone on with
GPU_STEP = 128  # of a batch's sides there: cuDNN plans for seconds wherever a shape is new
NEARLY_SINGULAR = 1e-8  # smallest eigenvalue of the Gram matrix below which R_q is noise


def run_scenes(
    settings: DetectSettings, stream: SceneStream, keeper: Keeper | None = None
) -> list[dict[str, Any]]:
    """Learn a stream of scenes phase by phase; what was measured after each.

    Goes on after the last phase that `keeper` has, and tells it of every event.

    Raises:
        MrdcError: settings that cannot be used, or a budget without room.
    """
    run = SceneRun(settings, stream, keeper or Keeper())
    for phase in range(run.restore(), settings.phases):
        run.learn(phase)
    return run.results


def make_learner(settings: DetectSettings) -> Supervised:
    """The learner with its own settings.

    Raises:
        UsageError: no such method or setting, or another kind of value.
    """
    kind = lookup(LEARNERS, settings.method, "method")
    return with_options(kind(), settings.options, settings.method)


@dataclass
class SceneFeed:
    """Batches of a phase, chunk by chunk; a step's labelled ones depend on its number alone.

    Attributes:
        boxes: of the labelled images, with labels.
        pool: places of the unlabelled images to draw from, at the first step of a chunk.
    """

    labelled: Album
    boxes: Sequence[Boxes]
    unlabelled: Album
    pool: Callable[[int], Sequence[int]]
    settings: DetectSettings
    clock: Clock
    images: int = 0  # labelled ones of the last chunk

    def __len__(self) -> int:
        return self.images

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Any, ...]]:
        """Shots, their places, the number of the step, unlabelled images and their places."""
        total, parts = self.settings.train.steps, chunks(self.settings)
        steps = range(epoch * total // parts, (epoch + 1) * total // parts)
        known = [sampled(len(self.labelled), batch_size, step, seed) for step in steps]
        self.images = sum(map(len, known))
        pool, count = self.pool(steps.start), self.settings.train.unlabelled_batch
        unknown: list[list[int]] = [[] for _ in steps]
        if pool:
            drawn = (sampled(len(pool), count, step, seed + 1) for step in steps)
            unknown = [[pool[place] for place in places] for places in drawn]
        photos, scenes = self.unlabelled.groups(unknown), self.labelled.groups(known)
        for step, places, images, others, more in zip(
            steps, known, self._timed(scenes), unknown, self._timed(photos), strict=True
        ):
            pairs = zip(images, places, strict=True)
            shots = [Shot(i, torch.from_numpy(self.boxes[p]).to(i.device)) for i, p in pairs]
            yield shots, torch.tensor(places), step, more, others

    def _timed(self, groups: Iterator[list[Tensor]]) -> Iterator[list[Tensor]]:
        """The same groups; waiting for them is no training."""
        while True:
            with self.clock.part("decode"):
                group = next(groups, None)
            if group is None:
                return
            yield group


def chunks(settings: DetectSettings) -> int:
    return min(CHUNKS, settings.train.steps)


def sampled(count: int, batch: int, step: int, seed: int) -> list[int]:
    """The places that a step sees: a part of an endless row of permutations."""
    first = step * batch
    rounds = range(first // count, (first + batch - 1) // count + 1)
    row = np.concatenate([np.random.default_rng((seed, r)).permutation(count) for r in rounds])
    start = first - rounds.start * count
    return [int(place) for place in row[start : start + batch]]


@dataclass
class SceneRun:
    """A run under way."""

    settings: DetectSettings
    stream: SceneStream
    keeper: Keeper
    results: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self.device = pick_device(settings.device)
        self.learner = make_learner(settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("init"))
            self.model = build_detector(
                settings.detector, len(self.stream.train.classes), short=settings.short,
                long=settings.long, gamma=self.learner.gamma, weights=settings.weights,
            ).to(self.device)  # fmt: skip
        if self.device.type == "cuda":
            self.model.transform.size_divisible = GPU_STEP
        self.model.eval()
        self.exemplars: Exemplars | None = None
        if settings.replay == "memory":
            self.exemplars = Exemplars(
                settings, self.stream.as_classes(), lambda ids, ranking, label: ranking
            )
        self.clock = Clock()
        self.tests = Album(self.stream.test.photos, self.device, settings.threads)

    def seed(self, name: str) -> int:
        """For everything that is drawn under this name."""
        return named_seed(self.settings.seed, name)

    @property
    def memory(self) -> ReplayMemory | None:
        return None if self.exemplars is None else self.exemplars.memory

    def restore(self) -> int:
        """Take up what the keeper has; the phase to go on with."""
        saved = self.keeper.load()
        if saved is None:
            return 0
        self._take(saved.checkpoint)
        self.learner.restore(self.model, saved.checkpoint.tensors.get("teacher", {}))
        self.results = saved.checkpoint.about["results"]
        if self.exemplars is not None and saved.memory is not None:
            self.exemplars.restore(saved.memory)
        return saved.phase + 1

    def _take(self, checkpoint: Checkpoint) -> None:
        """The detector of a checkpoint.

        Raises:
            CheckpointError: of another version of mrdc.
        """
        try:
            self.model.load_state_dict(checkpoint.tensors["model"])
        except RuntimeError:
            raise CheckpointError(
                "the detector in this folder is not as this version of mrdc builds it: go on "
                "with the version that began it, or name another --out"
            ) from None

    def learn(self, phase: int) -> None:
        """Train, store, evaluate, and keep what came of it."""
        clock = self.clock = Clock()
        self.phase, self.trained, self.elapsed = phase, 0, 0.0
        self.start = time.perf_counter()
        feed = self._feed(phase)
        start = {"phase": phase, "train_images": len(feed.labelled)}
        self.keeper.event("phase_start", start)
        with clock.part("train"):
            self._train(feed)
        model = self.learner.answers(self.model)
        if self.exemplars is not None:
            self._store(self.exemplars, model)
        with clock.part("evaluate"):
            scores = self._scores(model)
            report = self._report()
            if model is not self.model:
                report["student_ap"] = self._scores(self.model)["ap"]
        result = {
            "phase": phase, "accuracy": scores["ap"], **scores, **memory_json(self.exemplars),
            "report": report, "trained_images": self.trained,
            "seconds": time.perf_counter() - self.start + self.elapsed, "parts": clock.seconds,
        }  # fmt: skip
        self.results = [*self.results, result]
        self.keeper.event("phase", result)  # twice rather than never, if killed in between
        self.keeper.save(Saved(phase, self._checkpoint(), self.memory))

    def _scores(self, model: FasterRCNN) -> dict[str, Any]:
        """AP of the test scenes."""
        found = detect(model, self.tests, self.settings.train.batch_size)
        return average_precision(list(found), self.stream.test)

    def _feed(self, phase: int) -> SceneFeed:
        """The phase's labelled scenes with all that is replayed, and its unlabelled images."""
        scenes = self.stream.fresh(phase)
        if self.settings.replay == "joint":
            scenes = self.stream.seen(phase)
        photos, boxes = list(scenes.photos), list(scenes.boxes)
        if self.memory is not None:
            held: Sequence[Photo] = from_memory(self.memory).photos
            photos += held
            boxes += [self.memory.boxes[photo.id] for photo in held]
        threads = self.settings.threads
        labelled = Album(photos, self.device, threads)
        unlabelled = Album(self.stream.unlabelled[phase], self.device, threads)

        def pool(step: int) -> Sequence[int]:
            return self.learner.pool(self.model, step)

        return SceneFeed(labelled, boxes, unlabelled, pool, self.settings, self.clock)

    # Training

    def _train(self, feed: SceneFeed) -> None:
        settings, train = self.settings, self.settings.train
        self.learner.start_phase(
            self.model,
            Task(feed.unlabelled, train.steps, train.batch_size),
        )
        partial = self.keeper.load_partial(self.phase)
        resume = None
        if partial is not None:
            self._take(partial.checkpoint)
            self.learner.load_state(partial.checkpoint.tensors.get("learner", {}))
            resume = Stop(partial.epoch, partial.momentum)
            self.elapsed = partial.checkpoint.about["elapsed"]
            self.clock.add(partial.checkpoint.about.get("parts", {}))
            self.trained = partial.checkpoint.about["trained"]
            self.keeper.event("resume", {"phase": self.phase, "epoch": partial.epoch})

        def loss(
            shots: list[Shot], _: Tensor, step: int, more: list[Tensor], places: list[int]
        ) -> Tensor:
            torch.manual_seed(self.seed(f"views {self.phase} {step}"))
            return self.learner.loss(self.model, step, shots, places, more)

        def rate(chunk: int) -> float:
            rising = train.warmup * chunks(settings) if self.phase == 0 else 0
            return train.lr * min(1.0, (chunk + 1) / (rising + 1))

        def on_chunk(epoch: Epoch, stop: Stop) -> None:
            self._told(epoch)
            with self.clock.part("write"):
                self.keeper.save_partial(lambda: self._partial(stop))

        plain = TrainSettings(
            epochs=chunks(settings), lr=train.lr, momentum=train.momentum,
            weight_decay=train.weight_decay, batch_size=train.batch_size, milestones=(),
        )  # fmt: skip
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), tensor_cores():
            fit(
                self.model, loss, feed, plain, seed=self.seed(f"loader {self.phase}"),
                resume=resume, rate=rate, graph=False, on_epoch=on_chunk,
            )  # fmt: skip

    def _told(self, epoch: Epoch) -> None:
        if not math.isfinite(epoch.loss):
            raise TrainingError(
                f"the loss is {epoch.loss} in phase {self.phase}, part {epoch.number + 1}: "
                f"lower --train.lr (now {self.settings.train.lr:g}), in another --out"
            )
        self.trained += epoch.images
        fields = {
            "phase": self.phase, "stage": 0, "epoch": epoch.number + 1,
            "epochs": chunks(self.settings), "loss": epoch.loss,
            "images_per_second": epoch.images / max(epoch.seconds, 1e-9),
        }  # fmt: skip
        self.keeper.event("epoch", fields)

    # The memory

    def _store(self, exemplars: Exemplars, model: FasterRCNN) -> None:
        """Pooled features of whole images, one matrix for the phase."""
        scenes, memory = self.stream.fresh(self.phase), exemplars.memory
        memory.boxes |= dict(zip((photo.id for photo in scenes.photos), scenes.boxes, strict=True))
        memory.box_classes = self.stream.train.classes
        exemplars.store(self.phase, embedder(model, self.device), self.clock)
        memory.boxes = {
            name: memory.boxes[name] for y in memory.labels for name in memory.sources(y)
        }

    def _report(self) -> dict[str, Any]:
        """Of the learner; of its pseudo labels where the truth is known; of R_q."""
        found = self.learner.report()
        truth = self.stream.truth
        if isinstance(self.learner, PseudoLabels):
            found["by_class"] = self._by_class(self.learner.labels())
        if truth is not None and isinstance(self.learner, PseudoLabels | UnbiasedTeacher):
            found |= label_quality(self.learner.labels(), truth[self.phase])
        if self.exemplars is not None:
            smallest, alike = dependence(self.exemplars, self.phase)
            found["smallest_eigenvalue"] = smallest
            if smallest < NEARLY_SINGULAR:
                more = (
                    f"the features of stored scenes are nearly dependent (smallest eigenvalue "
                    f"{smallest:.1e}): there are near-duplicates (most alike: "
                    f"{' and '.join(alike)}), and R_q is noise"
                )
                found["warning"] = "; ".join(filter(None, [found.get("warning"), more]))
        return found

    def _by_class(self, labels: Sequence[Boxes]) -> dict[str, int]:
        """How many labels of each class."""
        classes = self.stream.train.classes
        found = np.concatenate([np.zeros((0, 5), np.float32), *labels])[:, 4]
        counts = np.bincount(found.astype(int), minlength=len(classes))
        return dict(zip(classes, counts.tolist(), strict=True))

    # What is kept

    def _checkpoint(self) -> Checkpoint:
        """The student, and the teacher where there is one: the run is gone on with the student."""
        answers = self.learner.answers(self.model)
        tensors = {"model": dict(self.model.state_dict())}
        if answers is not self.model:
            tensors["teacher"] = dict(answers.state_dict())
        return Checkpoint(None, tensors, {"phase": self.phase, "results": self.results})

    def _partial(self, stop: Stop) -> Partial:
        about = {
            "phase": self.phase, "results": self.results, "trained": self.trained,
            "elapsed": time.perf_counter() - self.start + self.elapsed,
            "parts": dict(self.clock.seconds),
        }  # fmt: skip
        tensors = {
            "model": dict(self.model.state_dict()), "learner": self.learner.state(),
            "momentum": {str(i): m for i, m in enumerate(stop.momentum)},
        }  # fmt: skip
        return Partial(self.phase, stop.epoch, Checkpoint(None, tensors, about))


@contextmanager
def tensor_cores() -> Iterator[None]:
    """TF32 also for the large products of the box head, while a detector is trained."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def embedder(model: FasterRCNN, device: torch.device) -> Embedder:
    """Whole images, scaled as in evaluation, by the detector's own backbone."""

    def features(images: Tensor) -> Tensor:
        with exact():
            return pooled_features(model, images[0].to(device).float() / 255)[None]

    model.eval()
    return Embedder(features, whole=True)


def dependence(exemplars: Exemplars, phase: int) -> tuple[float, list[str]]:
    """Of the originals of what a phase stored: how nearly their features depend on each other.

    The smallest eigenvalue of their Gram matrix, unit rows, and the two that are most alike.
    """
    names = exemplars.memory.sources(phase)
    places = {photo.id: place for place, photo in enumerate(exemplars.stream.train.photos[phase])}
    kernel = gram(exemplars.features[0][[places[name] for name in names]])
    apart = kernel - 2 * torch.eye(len(names))
    pair = divmod(int(apart.argmax()), len(names))
    return float(torch.linalg.eigvalsh(kernel)[0]), [names[place] for place in pair]
