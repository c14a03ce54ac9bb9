"""The memory of a run: R_q after every phase, a quality chosen, new classes stored."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.clock import Clock
from mrdc._utils.errors import BudgetError, UsageError, VolumeError
from mrdc.codec import CODECS, Codec, lookup
from mrdc.codec.image import Pixels
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.budget import parse_budget
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import Embedder, embed
from mrdc.planning.choice import choose_quality, judge
from mrdc.planning.plan import UNLIMITED, Measured, measure, ranking_for
from mrdc.planning.scan import Survey, quiet
from mrdc.planning.selection import SELECTORS, Ranking
from mrdc.planning.settings import PlanSettings
from mrdc.training.settings import MemorySettings, ReplaySettings

ORIGINAL = "original"
FILE_QUALITY = 95  # of a JPEG made of pixels that are to stand among original files
Arrange = Callable[[list[str], list[int], int], list[int]]
Instead = Mapping[tuple[int, str], Pixels]  # by label and name; images not in it are left out
NOTHING: Instead = {}


@dataclass
class Exemplars:
    """Fills the memory of a run, phase after phase.

    Attributes:
        arrange: the method's say in the order in which a class is stored.
        charge: bytes of the budget that are not for images.
        candidates: what was measured after the last phase.
        judged: the phase that they are of.
        features: of the last phase's images, by class.
        ranked: places of those, in the order in which they are stored.
    """

    settings: ReplaySettings
    stream: Stream
    arrange: Arrange
    charge: int = 0
    candidates: list[Measured] = field(default_factory=list)
    judged: int | None = None
    features: list[Tensor] = field(default_factory=list)
    ranked: list[Ranking] = field(default_factory=list)

    def __post_init__(self) -> None:
        whole = parse_budget(self.settings.memory.budget, self.stream.original_bytes)
        self.budget = whole.less(self.charge, len(self.stream.classes)) if self.charge else whole
        self.codec, self.quality = fixed_quality(self.settings.memory)
        self.chosen = self.settings.memory.quality not in ("auto", "dynamic")
        self.memory = self._empty()

    @property
    def quota(self) -> int:
        """Originals of a class that there is room for, once all classes are there."""
        classes = len(self.stream.classes)
        return int(self.budget.total_bytes(classes) / self.stream.original_bytes / classes + 0.5)

    def restore(self, memory: ReplayMemory) -> None:
        """Go on with a memory that was kept."""
        memory.class_names = dict(enumerate(self.stream.classes))
        self.memory = memory
        self.codec, self.quality = memory.codec, memory.quality
        self.chosen = self.settings.memory.quality != "dynamic"

    def store(
        self, phase: int, embedder: Embedder, clock: Clock, instead: Instead = NOTHING
    ) -> None:
        """Measure R_q, choose a quality where one is to be chosen, add the phase's classes.

        Raises:
            BudgetError: nothing that passes fits.
        """
        seen, rankings = self._survey(phase, embedder, clock)
        if self.judged != phase:
            self._judge(phase, seen, rankings, clock)
        with clock.part("encode"):
            self._fill(self.memory, phase, seen, rankings, instead)

    def preview(
        self, phase: int, embedder: Embedder, clock: Clock, instead: Instead = NOTHING
    ) -> ReplayMemory:
        """Exemplars of the phase's classes alone, as they would be chosen now."""
        seen, rankings = self._survey(phase, embedder, clock)
        if not self.chosen:
            self._judge(phase, seen, rankings, clock)
        scratch = self._empty()
        scratch.budget = seen.budget
        with clock.part("encode"):
            self._fill(scratch, phase, seen, rankings, instead)
        return scratch

    def _judge(self, phase: int, seen: Survey, rankings: list[Ranking], clock: Clock) -> None:
        """Once a phase: what a preview was chosen by is what is reported."""
        memory, self.judged = self.settings.memory, phase
        with clock.part("volume_ratio"):
            tried = [self._measure(seen, *pair, rankings) for pair in self._space()]
            self.candidates = judge(tried, memory.rule, memory.epsilon)
            if not self.chosen:
                self._choose()
                self.chosen = memory.quality == "auto"

    def check(self) -> None:
        """Refuse, before any training, a budget too small for one image of every class.

        Raises:
            BudgetError: with the bytes it would take.
        """
        memory = self.settings.memory
        codec, quality = self._space()[-1] if memory.quality in ("auto", "dynamic") else (
            self.codec, self.quality,
        )  # fmt: skip
        probe = self._empty()
        probe.budget, probe.codec, probe.quality = UNLIMITED, codec, quality
        firsts = {label: photos[:1] for label, photos in enumerate(self.stream.train.photos)}
        probe.add(firsts, threads=self.settings.threads)
        total = self.budget.total_bytes(len(self.stream.classes))
        if probe.nbytes > total:
            what = "classes" if self.stream.train.scenes is None else "phases"
            raise BudgetError(
                f"--memory.budget {memory.budget}: {total:,} bytes for {len(firsts)} {what}, but "
                f"one image of each takes about {probe.nbytes:,} at the lowest quality allowed"
            )
        try:
            probe.rebudget(self.budget)  # with all that is charged beside images
        except BudgetError as error:
            raise BudgetError(f"--memory.budget {memory.budget}: {error}") from None

    def _empty(self) -> ReplayMemory:
        return ReplayMemory(
            self.budget,
            self.codec,
            self.quality,
            accounting=self.settings.memory.accounting,
            class_names=dict(enumerate(self.stream.classes)),
            whole_file=self.budget.unit == "bytes",
        )

    def _survey(self, phase: int, embedder: Embedder, clock: Clock) -> tuple[Survey, list[Ranking]]:
        """The new images, their features and their ranks under the present network."""
        images, budget = self.stream.fresh(phase), self.budget
        if not budget.grows:
            part = self.stream.sizes[phase] / self.stream.seen(phase)
            budget = replace(budget, amount=budget.amount * part)
        with clock.part("select"):
            rows, _ = embed(images.all_photos, embedder, threads=self.settings.threads)
            features = list(torch.split(rows, [len(photos) for photos in images.photos]))
            seen = Survey(plan_settings(self.settings), quiet, images, budget, embedder)
            seen.features = features
            self.ranked = self._arranged(phase, images, seen.rank(features))
            self.features = features
            return seen, self.ranked

    def _arranged(self, phase: int, images: ImageSet, rankings: Sequence[Ranking]) -> list[Ranking]:
        """Rankings as the method wants them."""
        start = self.stream.phases[phase].start
        arranged = []
        for label, (photos, ranking) in enumerate(zip(images.photos, rankings, strict=True), start):
            order = self.arrange([photo.id for photo in photos], ranking.tolist(), label)
            arranged.append(np.array(order, np.intp))
        return arranged

    def _space(self) -> list[tuple[Codec, int | None]]:
        """The originals, and every candidate, best first."""
        codec = lookup(CODECS, self.settings.memory.codec, "codec")
        qualities = sorted(set(self.settings.memory.candidates), reverse=True)
        return [(CODECS[ORIGINAL], None), *((codec, q) for q in qualities if codec.qualities)]

    def _measure(
        self, seen: Survey, codec: Codec, quality: int | None, rankings: list[Ranking]
    ) -> Measured:
        """A candidate; R_q is unknown where there are more images than feature dimensions."""
        try:
            return measure(seen, codec, quality, rankings, Path(tempfile.gettempdir()))[0]
        except VolumeError as error:
            return Measured(codec.name, quality, 0, 0, math.nan, {}, verdict=str(error))

    def _choose(self) -> None:
        memory = self.settings.memory
        if not any(candidate.feasible for candidate in self.candidates):
            tried = ", ".join(f"{c} ({c.verdict})" for c in self.candidates)
            raise BudgetError(
                f"no quality passes and originals do not fit: {tried}; raise --memory.budget"
            )
        chosen = choose_quality(self.candidates, memory.rule, memory.epsilon)
        self.codec, self.quality = CODECS[chosen.codec], chosen.quality

    def _fill(
        self,
        memory: ReplayMemory,
        phase: int,
        seen: Survey,
        rankings: list[Ranking],
        instead: Instead,
    ) -> None:
        order = rankings
        if self.settings.memory.pairing == "independent":
            folder = Path(tempfile.gettempdir())
            compressed = ranking_for(seen, self.codec, self.quality, rankings, folder).order
            order = self._arranged(phase, seen.images, compressed)
        memory.codec, memory.quality = self.codec, self.quality
        start = self.stream.phases[phase].start
        photos = enumerate(zip(seen.images.photos, order, strict=True), start)
        ranked = {
            label: [of_class[index] for index in ranks] for label, (of_class, ranks) in photos
        }
        if instead:
            ranked = {label: self._changed(label, ranked[label], instead) for label in ranked}
        memory.add(ranked, threads=self.settings.threads)

    def _changed(self, label: int, photos: Sequence[Photo], instead: Instead) -> list[Photo]:
        """Those images that have other pixels, with these; among originals they become files."""

        def load(name: str) -> bytes | Pixels:
            pixels = instead[label, name]
            plain = self.codec.name == ORIGINAL
            return CODECS["jpeg"].encode(pixels, FILE_QUALITY) if plain else pixels

        known = [photo.id for photo in photos if (label, photo.id) in instead]
        return [Photo(name, partial(load, name)) for name in known]


def memory_json(exemplars: Exemplars | None, parameter_bytes: int = 0) -> dict[str, Any]:
    """What a phase tells of the memory; of none, that there is none."""
    if exemplars is None:
        empty = {"bytes": 0, "budget_bytes": 0, "items": 0}
        return {"quality": None, "memory": empty, "candidates": []}
    held = exemplars.memory
    about = {"bytes": held.nbytes, "budget_bytes": held.budget_bytes, "items": len(held)}
    if parameter_bytes:
        about["parameter_bytes"] = parameter_bytes
    candidates = [candidate.as_json() for candidate in exemplars.candidates]
    return {"quality": exemplars.quality, "memory": about, "candidates": candidates}


def plan_settings(settings: ReplaySettings) -> PlanSettings:
    """The memory settings of a run, as `plan` knows them."""
    memory = settings.memory
    return PlanSettings(
        Path(settings.data),
        memory.budget,
        codec=(memory.codec,),
        quality=memory.candidates,
        select=memory.select,
        epsilon=memory.epsilon,
        rule=memory.rule,
        pairing=memory.pairing,
        volume=memory.volume,
        accounting=memory.accounting,
        seed=settings.seed,
        threads=settings.threads,
    )


def fixed_quality(memory: MemorySettings) -> tuple[Codec, int | None]:
    """Codec and quality that the settings fix; the originals until R_q has chosen.

    Raises:
        UsageError: a codec, selector or quality that is none.
    """
    codec = lookup(CODECS, memory.codec, "codec")
    lookup(SELECTORS, memory.select, "selector")
    if not codec.qualities and codec.name != ORIGINAL:
        others = ", ".join(name for name, other in CODECS.items() if other.qualities)
        raise UsageError(
            f"--memory.codec {codec.name}: has no qualities to choose from; {others} have"
        )
    if not memory.candidates:
        raise UsageError("--memory.candidates needs at least one quality")
    for quality in memory.candidates if codec.qualities else ():
        codec.check_quality(quality)
    judge([], memory.rule, memory.epsilon)
    if memory.quality in ("auto", "dynamic", ORIGINAL):
        return CODECS[ORIGINAL], None
    if not memory.quality.isdecimal():
        raise UsageError(
            f"--memory.quality {memory.quality}: give auto, dynamic, original or a number"
        )
    codec.check_quality(int(memory.quality))
    return codec, int(memory.quality)
