"""The memory of a run: after every phase, measure R_q, choose a quality, store the new classes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mrdc._utils.clock import Clock
from mrdc._utils.errors import BudgetError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg_progressive import check_fade
from mrdc.codec.scaled import scaled
from mrdc.data.photo import Photo, loaded
from mrdc.data.stream import Stream
from mrdc.distributed.group import world
from mrdc.memory.budget import Budget, parse_budget
from mrdc.memory.encode import Encoded
from mrdc.memory.fade import mean_scans
from mrdc.memory.replay import ReplayMemory
from mrdc.methods.lesson import Substitutes
from mrdc.nn.embed import embed_together
from mrdc.nn.embedder import Embedder
from mrdc.planning.choice import check_criterion
from mrdc.planning.scan import rank
from mrdc.planning.search import (
    UNLIMITED,
    Found,
    Pair,
    Pool,
    Ranking,
    compress_all,
    encoded_if_known,
    in_order,
    search,
    search_space,
)
from mrdc.planning.selection import usual_selector
from mrdc.training.feed import SHARE, free_memory
from mrdc.training.pictures import decoded
from mrdc.training.results import MemorySummary
from mrdc.training.settings import MemorySettings

ORIGINAL = "original"
FILE_QUALITY = 95  # of a JPEG made from pixels that are stored among original files
Arrange = Callable[[list[str], Ranking, int], Ranking]


def keep_order(ids: list[str], ranking: Ranking, label: int) -> Ranking:
    """Store images in the order of the selector."""
    return ranking


class Exemplars:
    """Fills the memory of a run, phase by phase; `charge` bytes of the budget go elsewhere."""

    def __init__(
        self,
        settings: MemorySettings,
        stream: Stream,
        arrange: Arrange = keep_order,
        *,
        charge: int = 0,
        seed: int = 0,
        threads: int | None = None,
    ):
        self.settings, self.stream, self.arrange = settings, stream, arrange
        self.seed, self.threads = seed, threads
        whole = parse_budget(settings.budget, stream.original_bytes)
        self.budget = whole.less(charge, len(stream.classes)) if charge else whole
        self.select = usual_selector(settings.select, stream.train.scenes is not None)
        self.pair = fixed_quality(settings)
        self.chosen = settings.quality not in ("auto", "dynamic")
        self.memory = self._empty()
        self.found = Found([], None, None, [])
        self.searched: int | None = None  # the phase of `found`
        self._last: tuple[object, Pool] | None = None  # and what it depends on
        self.features: list[Tensor] = []  # of the original images of the last phase, by class

    @property
    def quality(self) -> int | None:
        """Quality of newly stored images; None for originals."""
        return self.pair[1]

    @property
    def quota(self) -> int:
        """Originals per class that fit once all classes are there."""
        classes = len(self.stream.classes)
        return int(self.budget.total_bytes(classes) / self.stream.original_bytes / classes + 0.5)

    def restore(self, memory: ReplayMemory) -> None:
        """Continue with a saved memory."""
        memory.class_names = dict(enumerate(self.stream.classes))
        self.memory = memory
        self.pair = memory.codec, memory.quality
        self.chosen = self.settings.quality != "dynamic"

    def store(
        self, phase: int, embedder: Embedder, clock: Clock, substitutes: Substitutes | None = None
    ) -> None:
        """Search, choose a quality if it is not fixed, and add the classes of the phase."""
        fresh = self.searched != phase
        self.memory = self._filled(self.memory, phase, embedder, clock, substitutes, fresh)
        self.found, self._last = replace(self.found, memory=None), None

    def preview(
        self, phase: int, embedder: Embedder, clock: Clock, substitutes: Substitutes | None = None
    ) -> ReplayMemory:
        """A memory of the classes of the phase alone, as they would be stored now."""
        scratch = self._empty()
        scratch.budget = self._share(phase)
        return self._filled(scratch, phase, embedder, clock, substitutes, not self.chosen)

    def _pool(self, phase: int, embedder: Embedder, clock: Clock) -> Pool:
        """The images of the phase, with their features under the current network.

        If nothing has changed since a preview, its pool is used.
        """
        key = None if embedder.key is None else (phase, embedder.key)
        if self._last is None or key is None or self._last[0] != key:
            self._last = key, self._make_pool(phase, embedder, clock)
        return self._last[1]

    def _make_pool(self, phase: int, embedder: Embedder, clock: Clock) -> Pool:
        images, start = self.stream.fresh(phase), self.stream.phases[phase].start
        if world().size == 1:  # the search encodes images at many qualities, but decodes them once
            with clock.part("select"):
                images = decoded(images, SHARE * free_memory(torch.device("cpu")), self.threads)

        def features(photos: Sequence[Photo], stage: str = "") -> Tensor:
            return world().ask(partial(self._embed, embedder), photos, loaded)

        def arranged(rankings: Sequence[Ranking]) -> list[Ranking]:
            """Rankings as the method wants them."""
            order, pairs = [], zip(images.photos, rankings, strict=True)
            for label, (photos, ranking) in enumerate(pairs, start):
                names = [photo.id for photo in photos]
                order.append(self.arrange(names, ranking, label))
            return order

        def ranked(rows: Sequence[Tensor], originals: Sequence[Tensor] | None) -> list[Ranking]:
            return rank(self.select, rows, self.seed, originals)

        with clock.part("select"):
            rows = self._embed(embedder, images.all_photos)
        self.features = list(torch.split(rows, [len(photos) for photos in images.photos]))
        return Pool(
            images,
            self.features,
            features,
            ranked,
            arranged,
            threads=self.threads,
            device=str(embedder.device),
        )

    def _share(self, phase: int) -> Budget:
        """The budget of the classes of a phase."""
        return self.budget.part(self.stream.sizes[phase] / self.stream.seen(phase))

    def _search(self, phase: int, pool: Pool, clock: Clock) -> None:
        """Search at most once per phase, so that the report shows what a preview used."""
        with clock.part("volume_ratio"):
            keep = self.pair if self.chosen else None
            self.found = search(pool, self._share(phase), self.settings, keep=keep)
            self.searched = phase
            best = self.found.chosen
        if self.chosen:
            return
        if best is None:
            tried = ", ".join(f"{c} ({c.verdict})" for c in self.found.candidates)
            raise BudgetError(
                f"no quality passes and originals do not fit: {tried}; raise --memory.budget"
            )
        self.pair = CODECS.find(best.codec), best.quality
        self.chosen = self.settings.quality == "auto"

    def _filled(
        self,
        memory: ReplayMemory,
        phase: int,
        embedder: Embedder,
        clock: Clock,
        substitutes: Substitutes | None,
        searching: bool,
    ) -> ReplayMemory:
        """The memory with the classes of a phase; rank 0 fills it, and all processes embed."""
        pool = self._pool(phase, embedder, clock)

        def fill() -> ReplayMemory:
            self._fill(memory, phase, pool, clock, substitutes, searching)
            return memory

        help = partial(self._embed, embedder)
        return world().share(fill, ReplayMemory.save, ReplayMemory.load, help)

    def _embed(self, embedder: Embedder, photos: Sequence[Photo]) -> Tensor:
        return embed_together(photos, embedder, self.threads)

    def _fill(
        self,
        memory: ReplayMemory,
        phase: int,
        pool: Pool,
        clock: Clock,
        substitutes: Substitutes | None,
        searching: bool,
    ) -> None:
        """Add the classes of a phase; images that the search has encoded are not encoded again.

        Only a search made just now has ranked these images with the same network.
        """
        if searching:
            self._search(phase, pool, clock)
        made = self.found.memory
        if made is not None and (made.codec, made.quality) != self.pair:
            made = None
        with clock.part("encode"):
            rankings = self.found.rankings
            if made is None or not searching:
                by_original = pool.rankings()
                rankings = compress_all(pool, self.settings, self.pair, by_original, known=True)[0]
            memory.codec, memory.quality = self.pair
            start = self.stream.phases[phase].start
            images: dict[int, Sequence[Photo | Encoded]] = {}
            for place, (photos, order) in enumerate(zip(pool.images.photos, rankings, strict=True)):
                if substitutes is not None:
                    images[start + place] = self._substituted(
                        start + place, in_order(photos, order), substitutes
                    )
                    continue
                offered = encoded_if_known(photos, made, place)
                images[start + place] = in_order(offered, order)
            memory.add(images, threads=self.threads)

    def _substituted(
        self, label: int, photos: Sequence[Photo], substitutes: Substitutes
    ) -> list[Photo | Encoded]:
        """The photos that have substitutes, with their pixels; as JPEG files among originals."""

        def load(name: str) -> bytes | Pixels:
            pixels, plain = substitutes[label, name], self.pair[0].name == ORIGINAL
            return CODECS["jpeg"].encode(pixels, FILE_QUALITY) if plain else pixels

        known = [photo.id for photo in photos if (label, photo.id) in substitutes]
        return [Photo(name, partial(load, name)) for name in known]

    def check(self) -> None:
        """Refuse, before any training, a budget too small for one image of every class."""
        budget, lowest = self.settings.budget, {self.pair[0].name: self.pair}
        if self.settings.quality in ("auto", "dynamic"):  # best first, so the last one stays
            lowest = {pair[0].name: pair for pair in search_space(self.settings)}
        firsts = {label: photos[:1] for label, photos in enumerate(self.stream.train.photos)}
        probe = min((self._probe(pair, firsts) for pair in lowest.values()), key=lambda p: p.nbytes)
        total = self.budget.total_bytes(len(self.stream.classes))
        if probe.nbytes > total:
            what = "classes" if self.stream.train.scenes is None else "phases"
            raise BudgetError(
                f"--memory.budget {budget}: {total:,} bytes for {len(firsts)} {what}, but one "
                f"image of each takes about {probe.nbytes:,} at the lowest quality allowed"
            )
        try:
            probe.rebudget(self.budget)  # with everything that is charged besides images
        except BudgetError as error:
            raise BudgetError(f"--memory.budget {budget}: {error}") from None

    def _probe(self, pair: Pair, images: dict[int, list[Photo]]) -> ReplayMemory:
        """A memory without limit of some images, encoded."""
        probe = self._empty()
        probe.budget = UNLIMITED
        probe.codec, probe.quality = pair
        probe.add(images, threads=self.threads)
        return probe

    def _empty(self) -> ReplayMemory:
        return ReplayMemory(
            self.budget,
            *self.pair,
            accounting=self.settings.accounting,
            fade=self.settings.fade,
            class_names=dict(enumerate(self.stream.classes)),
        )

    def summary(self, parameter_bytes: int = 0) -> dict[str, Any]:
        """Fields of `PhaseResult` about the memory."""
        held = self.memory
        scans = held.scans()
        size = MemorySummary(
            held.nbytes,
            held.budget_bytes,
            len(held),
            parameter_bytes or None,
            mean_scans(scans) if scans else None,
        )
        candidates = [candidate.to_json() for candidate in self.found.candidates]
        stored = {"codec": self.pair[0].name, "quality": self.pair[1]}
        return {**stored, "memory": size, "candidates": candidates}


def fixed_quality(memory: MemorySettings) -> Pair:
    """Codec and quality that the settings fix; originals until a search has chosen."""
    codecs = [CODECS.find(name) for name in memory.codec]
    usual_selector(memory.select, scenes=False)
    for codec in codecs:
        if not codec.qualities and codec.name != ORIGINAL:
            others = ", ".join(name for name, other in CODECS.items() if other.qualities)
            raise UsageError(
                f"--memory.codec {codec.name}: has no qualities to choose from; use {others}"
            )
    search_space(memory)
    if memory.fade:
        check_fade(memory.codec, "--memory.fade")
        if parse_budget(memory.budget, original_bytes=1.0).grows:
            raise UsageError(
                f"--memory.fade needs a fixed budget, such as '1000 originals' or 200MB: "
                f"{memory.budget} grows with the classes"
            )
    check_criterion(memory)
    if memory.quality in ("auto", "dynamic", ORIGINAL):
        return CODECS[ORIGINAL], None
    if not memory.quality.isdecimal():
        raise UsageError(
            f"--memory.quality {memory.quality}: give auto, dynamic, original, a number, "
            "or run:FOLDER"
        )
    if len(codecs) > 1:
        raise UsageError(f"--memory.quality {memory.quality}: give one --memory.codec with it")
    if len(memory.scale) > 1:
        raise UsageError(f"--memory.quality {memory.quality}: give one --memory.scale with it")
    codecs[0].check_quality(int(memory.quality))
    return scaled(codecs[0], memory.scale[0]), int(memory.quality)
