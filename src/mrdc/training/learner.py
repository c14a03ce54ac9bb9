"""Learn classes: a network, a method and a memory, phase by phase."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mrdc._utils.errors import TrainingError
from mrdc._utils.seeds import named_seed
from mrdc.data.examples import Companions, Examples, from_images
from mrdc.data.photo import content_digest
from mrdc.data.stream import Stream
from mrdc.distributed.group import world
from mrdc.distributed.norms import synchronised
from mrdc.methods.base import Method, learned_names, names_first_phase, reads_maps
from mrdc.methods.lesson import Lesson, Loss, Substitutes
from mrdc.nn.checkpoint import Checkpoint, digest
from mrdc.nn.compile import compiled, compiling
from mrdc.nn.embed import embed_together
from mrdc.nn.embedder import Embedder, network_embedder, pick_device
from mrdc.nn.net import Maps, Net
from mrdc.nn.settings import TrainSettings
from mrdc.training.architecture import extra_bytes, make_architecture
from mrdc.training.evaluate import Views, evaluate
from mrdc.training.exemplars import Exemplars
from mrdc.training.feed import open_feed
from mrdc.training.fit import Epoch, Stop, fit
from mrdc.training.match import Copies, copies_of, unmatched
from mrdc.training.phases import Learner, Session
from mrdc.training.resume import Keeper
from mrdc.training.settings import LearnSettings

WORTH_COMPILING = 1_500_000  # training images that repay compiling


def make_exemplars(
    settings: LearnSettings, stream: Stream, method: Method, added_bytes: int
) -> Exemplars | None:
    """The memory of a run; None for methods that do not replay."""
    if not method.needs.replays:
        return None
    return Exemplars(
        settings.choice,
        stream,
        method.arrange,
        charge=added_bytes if settings.memory.strict_budget else 0,
        seed=settings.seed,
        threads=settings.threads,
    )


class ClassLearner(Learner):
    """A network that learns classes by a method; offers its services to lessons."""

    def __init__(
        self,
        method: Method,
        stream: Stream,
        settings: LearnSettings,
        network: nn.Module | None = None,
    ):
        self.method, self.stream, self.settings, self.network = method, stream, settings, network
        self.phases = len(stream.sizes)
        self.device = pick_device(settings.device)
        self.bf16 = settings.precision == "bf16" or (
            settings.precision == "auto" and self.device.type == "cuda"
        )
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        self.architecture = make_architecture(settings, method, network)
        self.parameter_bytes = extra_bytes(self.architecture, method, network)
        self.exemplars = make_exemplars(settings, stream, method, self.parameter_bytes)
        self.model = self.build()
        self.teacher: Net | None = None
        self.views = Views(self.architecture.size, self.device, settings.resident, settings.threads)
        self.compiled: dict[Net, Maps] = {}
        self.first_step: AbstractContextManager[None] | None = None  # for a step that compiles
        self.session = Session(0, Keeper())
        self.stages = 0  # of the phase so far
        self.lesson: Lesson | None = None

    # Services for methods (`Trainer`)

    def seed(self, name: str) -> int:
        return named_seed(self.settings.seed, name)

    def build(self) -> Net:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed("init"))
            net = synchronised(self.architecture.build(self.network))
        return net.to(self.device).to(memory_format=torch.channels_last).eval()

    def features(self, examples: Examples) -> Tensor:
        with self.session.clock.part("select"):
            return embed_together(examples.photos, self.embedder, self.settings.threads)

    def preview(self, substitutes: Substitutes | None = None) -> Examples:
        assert self.exemplars is not None
        phase, clock = self.session.phase, self.session.clock
        return self.exemplars.preview(phase, self.known_embedder, clock, substitutes).examples()

    def fit(
        self,
        examples: Examples,
        training: TrainSettings,
        loss: Loss | None = None,
        *,
        on_epoch: Callable[[Stop], None] = lambda stop: None,
        companions: Companions | None = None,
        copies: Copies | None = None,
        **options: Any,
    ) -> None:
        """`fit` with the device, precision, seeds and events of the run."""
        stage = self.stages
        self.stages += 1
        with self.session.clock.part("decode"):
            feed = open_feed(
                examples,
                self.architecture.size,
                self.device,
                self.settings.resident,
                self.settings.threads,
                self.model.compiled is not None,
                companions,
                copies,
            )
        self.session.keeper.event(
            "feed", {"phase": self.session.phase, "stage": stage, **feed.about}
        )

        def report(epoch: Epoch, stop: Stop) -> None:
            self.session.on_epoch(epoch, training.epochs, stage, training.lr)
            on_epoch(stop)

        with self.session.clock.part("train"):
            fit(
                self.model,
                loss or partial(self.method.loss, self.model, self.teacher),
                feed,
                training,
                seed=self.seed(f"loader {self.session.phase} {stage}"),
                clamp=self.method.needs.clamp,
                bf16=self.bf16,
                on_epoch=report,
                first_step=self.first_step,
                **options,
            )
        self.first_step = None
        few = examples.pick(range(min(len(examples), 8)))
        if not self.features(few).isfinite().all():
            raise TrainingError(
                f"phase {self.session.phase} ended with features that are not finite: lower "
                f"--train.lr (now {training.lr:g}) and use another --out"
            )

    @property
    def embedder(self) -> Embedder:
        """The features of the network as it is now."""
        size = self.architecture.size
        return network_embedder(self.model, self.model.features, size=size, device=self.device)

    @property
    def known_embedder(self) -> Embedder:
        """The same, with a key that changes with the features."""
        return replace(self.embedder, key=digest(self.model.backbone.state_dict()))

    # The phase

    def start(self, session: Session) -> dict[str, Any]:
        self.session, self.stages = session, 0
        phase = session.phase
        labels = self.stream.phases[phase]
        fresh = from_images(self.stream.fresh(phase), labels.start)
        held = Examples() if self.exemplars is None else self.exemplars.memory.examples()
        if phase:
            frozen = self.model.frozen()
            if self.teacher is not None and self.teacher.body == frozen.body:
                self.teacher.become(frozen)  # so that code compiled for it stays valid
            else:
                self.teacher = frozen
        lesson = self.lesson = Lesson(
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
            trainer=self,
            size=self.architecture.size,
            quota=0 if self.exemplars is None else self.exemplars.quota,
            threads=self.settings.threads,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed(f"rows {phase}"))
            self.method.start_phase(lesson)
        self.model = lesson.model
        self._agree()
        return {"classes": lesson.new, "train_images": len(lesson.train)}

    def train(self, resume: Stop | None, on_epoch: Callable[[Stop], None]) -> None:
        lesson = self.lesson
        assert lesson is not None
        copies, companions = self._copies(lesson), lesson.companions
        if companions is not None and companions.copies and copies is None:
            companions = None  # nothing is compressed, so there are no pairs
        with self._compiled(lesson):
            self.fit(
                lesson.train,
                lesson.training,
                companions=companions,
                copies=copies,
                resume=resume,
                on_epoch=on_epoch,
            )

    def _copies(self, lesson: Lesson) -> Copies | None:
        """Copies of new images, as the memory has stored those of the last phase."""
        match, paired = lesson.training.match, lesson.companions and lesson.companions.copies
        if self.exemplars is None or not (match or paired):
            return None
        new = np.flatnonzero(np.array(lesson.train.labels) >= lesson.old)
        with self.session.clock.part("encode"):
            memory, threads = self.exemplars.memory, self.settings.threads
            return copies_of(lesson.train, new, memory, match, threads)

    def finish(self) -> None:
        lesson, session = self.lesson, self.session
        assert lesson is not None
        self.method.before_store(lesson)
        if self.exemplars is not None:
            substitutes = self.method.substitutes(lesson)
            self.exemplars.store(session.phase, self.known_embedder, session.clock, substitutes)
            lesson.memory = self.exemplars.memory.examples()
        self.method.end_phase(lesson)
        self._agree()

    def _agree(self) -> None:
        """Give every process the numbers of rank 0, so that they cannot drift apart."""
        learned = [value for value in self.method.state().values() if isinstance(value, Tensor)]
        world().agree([*self.model.state_dict().values(), *learned])

    def evaluate(self) -> dict[str, Any]:
        phase = self.session.phase
        self._add_tests(phase)
        seen = self.stream.phases[: phase + 1]
        scores = evaluate(self.model, self.method.predict, self.views, seen)
        networks = [self.model] if self.teacher is None else [self.model, self.teacher]
        return {
            "classes": self.stream.seen(phase),
            "report": self.method.report(),
            "networks_bytes": sum(p.nbytes for net in networks for p in net.parameters()),
            **scores,
        }

    def _add_tests(self, phase: int) -> None:
        labels = self.stream.phases[phase]
        self.views.add(from_images(self.stream.test.pick(labels), labels.start))

    @contextmanager
    def _compiled(self, lesson: Lesson) -> Iterator[None]:
        """Compile the main stage of a long run on a GPU, once per network."""
        counts = [len(photos) for photos in self.stream.train.photos]
        most = sum(sum(counts[: labels.stop]) for labels in self.stream.phases)  # a full memory
        long = self.settings.train.epochs * most > WORTH_COMPILING
        wanted = self.settings.compile == "yes" or (self.settings.compile == "auto" and long)
        nets = [net for net in (self.model, lesson.teacher) if net is not None]
        size = lesson.training.batch_size
        together = size + (lesson.companions.count if lesson.companions else 0)
        alone = world().size == 1  # synchronised batch norms do not compile
        for net in nets if wanted and self.bf16 and alone else []:
            if net not in self.compiled:
                self.compiled[net] = compiled(net, reads_maps(self.method))
                self.first_step = compiling(nets, together)
            net.compiled = frozenset((size, together)), self.compiled[net]
        try:
            yield
        finally:
            for net in nets:
                net.compiled = None

    # Checkpoints

    def checkpoint(self) -> Checkpoint:
        state = self.method.state().items()
        tensors = {name: value for name, value in state if isinstance(value, Tensor)}
        numbers = {name: value for name, value in state if not isinstance(value, Tensor)}
        sizes = self.stream.sizes[: self.session.phase + 1]
        return Checkpoint(
            replace(self.architecture, classes=sizes, body=self.model.body),
            {"model": dict(self.model.state_dict()), "method": tensors},
            {"method": numbers},
        )

    def restore(self, phase: int, checkpoint: Checkpoint) -> None:
        net = synchronised(checkpoint.network(self.network)).to(self.device)
        self.model = net.to(memory_format=torch.channels_last)
        self._load_method(checkpoint)
        for earlier in range(phase + 1):
            self._add_tests(earlier)

    def load_partial(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.tensors["model"])
        self._load_method(checkpoint)

    def _load_method(self, checkpoint: Checkpoint) -> None:
        tensors = checkpoint.tensors.get("method", {})
        state = {name: value.to(self.device) for name, value in tensors.items()}
        self.method.load_state(state | checkpoint.about.get("method", {}))

    def load_first_phase(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.tensors["model"])
        learned = {*checkpoint.tensors.get("method", {}), *checkpoint.about.get("method", {})}
        if learned <= learned_names(self.method):  # else another method has learned it
            self._load_method(checkpoint)

    def first_phase_key(self) -> str | None:
        """Hash of everything the first network depends on; None if that is not known.

        A method has to say it; the code of an own network can change without a trace in it.
        """
        if not names_first_phase(self.method) or self.network is not None:
            return None
        first = from_images(self.stream.fresh(0))
        parts = (
            content_digest(first.photos, self.settings.threads),
            first.labels,
            asdict(self.architecture),
            unmatched(self.settings.train),
            self.settings.seed,
            self.method.first_phase,
            self.device.type,
            self.settings.resident,
            self.bf16,
            torch.__version__,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
