"""Learn scenes: a detector over a stream of labelled and unlabelled images."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection import FasterRCNN

from mrdc._utils.errors import CheckpointError
from mrdc._utils.registry import lookup
from mrdc._utils.seeds import named_seed
from mrdc.data.examples import Examples
from mrdc.data.photo import content_digest
from mrdc.detection.album import Album
from mrdc.detection.detectors import build_detector, pooled_features
from mrdc.detection.evaluate import average_precision, detect, label_quality
from mrdc.detection.feed import SceneFeed, chunks
from mrdc.detection.methods import SCENE_METHODS, PseudoLabels, Supervised, Task, UnbiasedTeacher
from mrdc.detection.settings import SceneSettings
from mrdc.detection.stream import SceneStream
from mrdc.distributed.group import world
from mrdc.methods.options import with_options
from mrdc.nn.checkpoint import Checkpoint
from mrdc.nn.embedder import Embedder, exact, pick_device
from mrdc.nn.settings import TrainSettings
from mrdc.planning.volume import gram
from mrdc.training.exemplars import Exemplars
from mrdc.training.fit import Epoch, Stop, fit
from mrdc.training.match import copies_of, unmatched
from mrdc.training.phases import Learner, Phases, Session
from mrdc.training.results import RunResult
from mrdc.training.resume import Keeper
from mrdc.training.summary import totals

GPU_STEP = 128  # multiple of a batch's sides there: cuDNN spends seconds planning each new shape
NEARLY_SINGULAR = 1e-8  # smallest eigenvalue of the Gram matrix below which R_q is noise


def run_scenes(
    settings: SceneSettings, stream: SceneStream, keeper: Keeper | None = None
) -> RunResult:
    """Learn a stream of scenes phase by phase.

    Raises:
        MrdcError: settings that cannot be used, or a budget without room.
    """
    phases = Phases(SceneLearner(settings, stream), keeper).run()
    scores = [phase.accuracy for phase in phases]
    return RunResult(
        method=settings.method,
        seed=settings.seed,
        average_forgetting=scores[-1] - max(scores),
        ap=scores,
        ap50=[phase.ap50 or 0.0 for phase in phases],
        ap75=[phase.ap75 or 0.0 for phase in phases],
        by_class=phases[-1].by_class,
        first_phase_seconds=phases[0].first_phase_seconds,
        reports=[phase.report for phase in phases],
        detection=True,
        detector=settings.detector,
        replay=settings.replay,
        labelled=settings.labelled,
        unlabelled=settings.unlabelled,
        steps=settings.train.steps,
        dropped=stream.train.dropped + stream.test.dropped,
        **totals(settings.memory, phases),
    )


def make_scene_method(settings: SceneSettings) -> Supervised:
    """The method with its settings."""
    kind = lookup(SCENE_METHODS, settings.method, "method")
    return with_options(kind(), settings.options, settings.method)


def make_scene_exemplars(settings: SceneSettings, stream: SceneStream) -> Exemplars | None:
    """The memory of a run; None for runs that do not replay one."""
    if settings.replay != "memory":
        return None
    return Exemplars(
        settings.memory, stream.as_classes(), seed=settings.seed, threads=settings.threads
    )


class SceneLearner(Learner):
    """A detector that learns scenes by a method."""

    def __init__(self, settings: SceneSettings, stream: SceneStream):
        self.settings, self.stream = settings, stream
        self.phases = len(stream.labelled)
        self.device = pick_device(settings.device)
        self.method = make_scene_method(settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("init"))
            self.model = build_detector(
                settings.detector,
                len(stream.train.classes),
                short=settings.short,
                long=settings.long,
                gamma=self.method.gamma,
                weights=settings.weights,
            ).to(self.device)
        if self.device.type == "cuda":
            self.model.transform.size_divisible = GPU_STEP
        self.model.eval()
        self.exemplars = make_scene_exemplars(settings, stream)
        self.tests = Album(stream.test.photos, self.device, settings.threads)
        self.session = Session(0, Keeper())
        self.feed: SceneFeed | None = None

    def seed(self, name: str) -> int:
        return named_seed(self.settings.seed, name)

    def start(self, session: Session) -> dict[str, Any]:
        self.session, train = session, self.settings.train
        self.feed = self._feed(session.phase)
        task = Task(self.feed.unlabelled, train.steps, train.batch_size)
        self.method.start_phase(self.model, task)
        world().agree(self.model.state_dict().values())
        return {"train_images": len(self.feed.boxes)}

    def _feed(self, phase: int) -> SceneFeed:
        """Labelled scenes of the phase with everything replayed, and its unlabelled images."""
        stream = self.stream
        scenes = stream.seen(phase) if self.settings.replay == "joint" else stream.fresh(phase)
        photos, boxes, copies = list(scenes.photos), list(scenes.boxes), None
        if self.exemplars is not None:
            memory, new = self.exemplars.memory, Examples(tuple(photos), (0,) * len(photos))
            everyone, match = np.arange(len(new)), self.settings.train.match
            if match:
                copies = copies_of(new, everyone, memory, match, self.settings.threads)
            held = memory.examples().photos
            photos += held
            boxes += [memory.boxes[photo.id] for photo in held]
        if copies is not None:
            photos += copies.examples.photos
        labelled, unlabelled = (
            Album(images, self.device, self.settings.threads)
            for images in (photos, stream.unlabelled[phase])
        )
        pools, clock = partial(self.method.pools, self.model), self.session.clock
        return SceneFeed(labelled, boxes, unlabelled, pools, self.settings, clock, copies)

    def train(self, resume: Stop | None, on_epoch: Callable[[Stop], None]) -> None:
        settings, train, phase = self.settings, self.settings.train, self.session.phase
        assert self.feed is not None

        def loss(shots: Any, _: Tensor, step: int, more: list[Tensor], places: list[int]) -> Tensor:
            torch.manual_seed(self.seed(f"views {phase} {step}") + world().rank)
            return self.method.loss(self.model, step, shots, places, more)

        def rate(chunk: int) -> float:
            rising = train.warmup * chunks(settings) if phase == 0 else 0
            return train.lr * min(1.0, (chunk + 1) / (rising + 1))

        def on_chunk(epoch: Epoch, stop: Stop) -> None:
            self.session.on_epoch(epoch, chunks(settings), 0, train.lr)
            on_epoch(stop)

        shared = ("lr", "momentum", "weight_decay", "batch_size")
        values: dict[str, Any] = {name: getattr(train, name) for name in shared}
        plain = TrainSettings(epochs=chunks(settings), milestones=(), **values)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), tensor_cores():
            fit(
                self.model,
                loss,
                self.feed,
                plain,
                seed=self.seed(f"loader {phase}"),
                resume=resume,
                rate=rate,
                graph=False,
                on_epoch=on_chunk,
            )

    def finish(self) -> None:
        """Store scenes by the pooled features of whole images, one matrix for the phase."""
        if self.exemplars is None:
            return
        phase, memory = self.session.phase, self.exemplars.memory
        memory.boxes |= self.stream.fresh(phase).by_id()
        memory.box_classes = self.stream.train.classes
        by_model = embedder(self.method.answers(self.model), self.device)
        self.exemplars.store(phase, by_model, self.session.clock)
        held = [name for label in memory.labels for name in memory.sources(label)]
        memory.boxes = {name: memory.boxes[name] for name in held}

    def evaluate(self) -> dict[str, Any]:
        model = self.method.answers(self.model)
        scores, report = self._scores(model), self._report()
        if model is not self.model:
            report["student_ap"] = self._scores(self.model)["ap"]
        return {"accuracy": scores["ap"], "report": report, **scores}

    def _scores(self, model: FasterRCNN) -> dict[str, Any]:
        """AP on the test scenes."""
        found = detect(model, self.tests, self.settings.train.batch_size)
        return average_precision(found, self.stream.test)

    def _report(self) -> dict[str, Any]:
        """The method's report, the quality of its pseudo labels if known, and R_q."""
        found, classes = self.method.report(), self.stream.train.classes
        truth, phase = self.stream.truth, self.session.phase
        if isinstance(self.method, PseudoLabels):
            labels = np.concatenate([np.zeros((0, 5), np.float32), *self.method.labels()])[:, 4]
            counts = np.bincount(labels.astype(int), minlength=len(classes))
            found["by_class"] = dict(zip(classes, counts.tolist(), strict=True))
        if truth is not None and isinstance(self.method, PseudoLabels | UnbiasedTeacher):
            found |= label_quality(self.method.labels(), truth[phase])
        if self.exemplars is not None:
            smallest, alike = dependence(self.exemplars, phase)
            found["smallest_eigenvalue"] = smallest
            if smallest < NEARLY_SINGULAR:
                more = (
                    f"the features of stored scenes are nearly dependent (smallest eigenvalue "
                    f"{smallest:.1e}) because of near-duplicates (most alike: "
                    f"{' and '.join(alike)}), so R_q is noise"
                )
                found["warning"] = "; ".join(filter(None, [found.get("warning"), more]))
        return found

    # Checkpoints

    def checkpoint(self) -> Checkpoint:
        """The student, and the state of the method, with its teacher if there is one."""
        tensors = {"model": dict(self.model.state_dict()), "method": self.method.state()}
        return Checkpoint(None, tensors, {})

    def restore(self, phase: int, checkpoint: Checkpoint) -> None:
        self._load(checkpoint)
        self.method.restore(self.model, checkpoint.tensors.get("method", {}))

    def load_partial(self, checkpoint: Checkpoint) -> None:
        self._load(checkpoint)
        self.method.load_state(checkpoint.tensors.get("method", {}))

    load_first_phase = load_partial

    def first_phase_key(self) -> str:
        """Hash of everything that the detector of the first phase depends on."""
        settings, scenes, weights = self.settings, self.stream.fresh(0), self.settings.weights
        photos = (*scenes.photos, *self.stream.unlabelled[0])
        parts = (
            content_digest(photos, settings.threads),
            [boxes.tolist() for boxes in scenes.boxes],
            (settings.method, settings.options, settings.seed, settings.detector),
            (settings.short, settings.long, unmatched(settings.train)),
            "" if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest(),
            (self.stream.train.classes, self.device.type, torch.__version__),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _load(self, checkpoint: Checkpoint) -> None:
        """Load the detector of a checkpoint."""
        try:
            self.model.load_state_dict(checkpoint.tensors["model"])
        except RuntimeError:
            raise CheckpointError(
                "the detector in this folder does not match this version of mrdc: resume with the "
                "version that started it, or choose another --out"
            ) from None


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Also use TF32 for the large products of the box head, while a detector is trained."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def embedder(model: FasterRCNN, device: torch.device) -> Embedder:
    """Embed whole images, scaled as in evaluation, by the detector's backbone."""

    def features(images: Tensor) -> Tensor:
        with exact():
            return pooled_features(model, images[0].to(device).float() / 255)[None]

    model.eval()
    return Embedder(features, whole=True, device=device)


def dependence(exemplars: Exemplars, phase: int) -> tuple[float, list[str]]:
    """Smallest eigenvalue of the Gram matrix of a phase's stored originals; the two most alike."""
    names = exemplars.memory.sources(phase)
    places = {photo.id: place for place, photo in enumerate(exemplars.stream.train.photos[phase])}
    kernel = gram(exemplars.features[0][[places[name] for name in names]])
    apart = kernel - 2 * torch.eye(len(names))
    pair = divmod(int(apart.argmax()), len(names))
    return float(torch.linalg.eigvalsh(kernel)[0]), [names[place] for place in pair]
