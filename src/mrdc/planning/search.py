"""Search: measure every candidate, choose one, and hand over the images it stores.

`plan`, `pack` and runs all call `search`. It reads a pool of images and writes nothing but
unnamed temporary files.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from mrdc._utils.errors import BudgetError, ImageError, UsageError
from mrdc._utils.extras import Tensor, torch
from mrdc._utils.lazy import LazyList
from mrdc.codec import CODECS, Codec
from mrdc.codec.scaled import scaled, split_scale
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.encode import Encoded
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.choice import Candidate, choose_quality, judge
from mrdc.planning.discrepancy import discrepancy, mean_kernel
from mrdc.planning.selection import kernel_herding
from mrdc.planning.settings import SearchSettings
from mrdc.planning.volume import (
    PhaseRatio,
    from_log,
    log_partition_ratio,
    log_subset_probability,
    phase_ratio,
)

Progress = Callable[[str, int], Callable[[int], None]]  # stage and its size, to a counter
Pair = tuple[Codec, int | None]
Ranking = Sequence[int]  # indices within a class, best first
T = TypeVar("T")
NO_ROOM = "no room: "
UNLIMITED = Budget(2.0**62, "bytes")


def quiet(stage: str, total: int) -> Callable[[int], None]:
    """Report no progress."""
    return lambda count: None


@dataclass(frozen=True)
class Pool:
    """Images to choose from, by class."""

    images: ImageSet
    features: Sequence[Tensor]  # of the originals, by class, (n, d)
    embed: Callable[[Sequence[Photo], str], Tensor]  # takes photos and the name of the stage
    # Features by class to ranked indices; for compressed images, those of all originals come second
    rank: Callable[[Sequence[Tensor], Sequence[Tensor] | None], list[Ranking]]
    arrange: Callable[[Sequence[Ranking]], list[Ranking]] = list  # some methods change rankings
    notes: Mapping[str, Any] = field(default_factory=dict)  # JSON values for the memory file
    threads: int | None = None
    skip: Callable[[ImageError], None] | None = None  # without it, an unreadable image raises
    progress: Progress = quiet
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    device: str = "cpu"  # where to compare features
    part_size: int | None = None  # of memories in parts
    drawn_from: int | None = None  # classes of the source, if these were drawn from them

    def error(self, ratio: PhaseRatio) -> float:
        """Standard error of r as an estimate for all classes; 0 if none is missing."""
        if self.drawn_from is None:
            return 0.0
        missing = 1 - len(self.images.classes) / self.drawn_from
        return ratio.per_image * ratio.log_error * math.sqrt(missing)

    def rankings(self) -> list[Ranking]:
        """Ranked indices of the originals, by class."""
        return self.arrange(self.rank(self.features, None))

    def store(
        self,
        budget: Budget,
        pair: Pair,
        accounting: str,
        rankings: Sequence[Ranking],
        fade: bool = False,
    ) -> ReplayMemory:
        """Store images in rank order, in an unnamed file, until the budget is used up."""
        images = self.images
        memory = ReplayMemory(
            budget,
            *pair,
            accounting="file" if accounting == "file" else "packed",
            fade=fade,
            class_names=dict(enumerate(images.classes)),
            spool=self.folder,
            part_size=self.part_size,
        )
        memory.notes = dict(self.notes)
        if images.scenes is not None:
            memory.boxes = images.scenes.by_id()
            memory.box_classes = images.scenes.classes
        photos = zip(images.photos, rankings, strict=True)
        memory.add(
            {label: in_order(*of_class) for label, of_class in enumerate(photos)},
            threads=self.threads,
            skip=self.skip,
            progress=self.progress(f"encoding {pair[0].name} {pair[1] or ''}", len(images)),
        )
        return memory

    def embed_memory(self, memory: ReplayMemory) -> dict[int, Tensor]:
        """Features of the images in a memory, by label, in rank order.

        Images that are stored as their source bytes have the features of their originals.
        """
        stage = f"embedding {memory.codec.name} {memory.quality}"
        photos, places = memory.examples().photos, self.places(memory)
        rows = torch.cat([self.features[label][places[label]] for label in memory.labels])
        changed = np.flatnonzero(~np.concatenate([memory.is_source(n) for n in memory.labels]))
        if len(changed):
            rows[changed] = self.embed([photos[place] for place in changed.tolist()], stage)
        counts = [len(places[label]) for label in memory.labels]
        return dict(zip(memory.labels, torch.split(rows, counts), strict=True))

    def places(self, memory: ReplayMemory) -> dict[int, list[int]]:
        """Indices of a memory's images among the originals of their class, by label."""
        places = {}
        for label in memory.labels:
            index = {photo.id: number for number, photo in enumerate(self.images.photos[label])}
            places[label] = [index[source] for source in memory.sources(label)]
        return places

    @cached_property
    def spreads(self) -> list[float]:
        """Mean kernel among the originals of each class, which is the same for every candidate."""
        return [mean_kernel(rows, rows) for rows in map(self._moved, self.features)]

    def _moved(self, rows: Tensor) -> Tensor:
        return rows.to(self.device)

    def discrepancies(self, stored: Mapping[int, Tensor]) -> dict[str, float]:
        """Discrepancy of each class between all originals and stored images (features by label)."""
        found = {}
        for label, rows in stored.items():
            originals, some = self._moved(self.features[label]), self._moved(rows)
            found[self.images.classes[label]] = discrepancy(originals, some, self.spreads[label])
        return found


@dataclass(frozen=True)
class Found:
    """Result of a search."""

    candidates: list[Candidate]  # measured and judged
    chosen: Candidate | None  # the best one; None if nothing passes
    memory: ReplayMemory | None  # the images of the chosen (or kept) candidate, encoded
    rankings: list[Ranking]  # the order those were stored in


def encoded_if_known(
    photos: Sequence[Photo], memory: ReplayMemory | None, label: int
) -> list[Photo | Encoded]:
    """Photos, or their encoded images where a search has left them in its memory."""
    made = [] if memory is None else memory.encoded_images(label)
    known = {image.source: image for image in made}
    return [known.get(photo.id, photo) for photo in photos]


def search(
    pool: Pool,
    budget: Budget,
    settings: SearchSettings,
    *,
    keep: Pair | None = None,
    exact: bool = False,
) -> Found:
    """Measure every candidate, originals included, and choose one.

    `keep` is a candidate whose images to return instead of the chosen one's.
    """
    rankings = by_original = pool.rankings()
    candidates: list[Candidate] = []
    judged: list[Candidate] = []
    memory: ReplayMemory | None = None
    best: int | None = None
    for pair in search_space(settings, originals=True):
        candidate, stored, order = measure(
            pool, budget, settings, pair, by_original, exact, known=pair == keep
        )
        candidates.append(candidate)
        judged = judge(candidates, settings)
        best = choose_quality(judged, settings.criterion)
        if pair == keep if keep is not None else best == len(candidates) - 1:
            memory, rankings = stored, order
    if best is None:
        return Found(judged, None, memory, rankings)
    if keep is None:
        judged[best] = replace(judged[best], verdict="chosen")
    return Found(judged, judged[best], memory, rankings)


def in_order(items: Sequence[T], order: Ranking) -> Sequence[T]:
    """Items in the order of a ranking, which is computed only as far as they are read."""
    if isinstance(order, LazyList):
        return order.map(items.__getitem__)
    return [items[index] for index in order]


def search_space(settings: SearchSettings, originals: bool = False) -> list[Pair]:
    """Every codec with every scale and quality, best first; `originals` adds the source files.

    Codecs without qualities come first, then larger scales, so that a later candidate never
    revives an earlier one.
    """
    if not settings.codec or settings.qualities == () or not settings.scale:
        raise UsageError("give at least one codec, one quality and one scale")
    space: list[Pair] = []
    for name in dict.fromkeys(settings.codec):
        codec = CODECS.find(name)
        scales = sorted(set(settings.scale), reverse=True) if codec.qualities else [1.0]
        best_first = sorted(set(settings.tried(codec)), reverse=True)
        for scale, quality in product(scales, best_first if codec.qualities else [None]):
            codec.check_quality(quality)
            space.append((scaled(codec, scale), quality))
    if originals and all(codec.name != "original" for codec, _ in space):
        space.insert(0, (CODECS["original"], None))
    return sorted(space, key=lambda pair: (pair[1] is not None, -split_scale(pair[0].name)[1]))


def measure(
    pool: Pool,
    budget: Budget,
    settings: SearchSettings,
    pair: Pair,
    by_original: Sequence[Ranking],
    exact: bool = False,
    known: bool = False,
) -> tuple[Candidate, ReplayMemory | None, list[Ranking]]:
    """A measured candidate, the images that fit, and their order."""
    codec, quality = pair
    rankings, everything, all_rows = compress_all(pool, settings, pair, by_original, exact, known)
    try:
        memory = pool.store(budget, pair, settings.accounting, rankings)
    except BudgetError as error:
        return Candidate(codec.name, quality, 0, verdict=f"{NO_ROOM}{error}"), None, rankings
    places, ratio = pool.places(memory), PhaseRatio()  # 1 if no pixel changes
    stored = {label: pool.features[label][where] for label, where in places.items()}
    if codec.qualities is not None and (exact or memory.kept_sources() < len(memory)):
        stored = pool.embed_memory(memory)
        if settings.pairing == "independent" and everything:
            places = pool.places(everything)  # the originals that come first in the ranking
        pairs = {
            pool.images.classes[label]: (pool.features[label][places[label][: len(rows)]], rows)
            for label, rows in stored.items()
        }
        ratio = phase_ratio(pairs, settings.volume)
    counts = np.bincount(memory.targets)
    candidate = Candidate(
        codec=codec.name,
        quality=quality,
        quantity=len(memory),
        bytes=memory.nbytes,
        log_volume_ratio=ratio.log,
        ratio_per_image=ratio.per_image,
        ratio_error=pool.error(ratio),
        discrepancy=fmean(pool.discrepancies(stored).values()),
        excluded=ratio.excluded,
        sampled=ratio.sampled,
        per_class=(int(counts.min()), float(counts.mean()), int(counts.max())),
        kept_sources=0 if codec.name == "original" else memory.kept_sources(),
        duplicates=max(sum(m.duplicates().values()) for m in (memory, everything) if m is not None),
        exact=_exact(pool, memory, everything, all_rows, ratio) if exact and everything else None,
    )
    return candidate, memory, rankings


def compress_all(
    pool: Pool,
    settings: SearchSettings,
    pair: Pair,
    by_original: Sequence[Ranking],
    exact: bool = False,
    known: bool = False,
) -> tuple[list[Ranking], ReplayMemory | None, Mapping[int, Tensor]]:
    """The order to store images in, ranked by the originals or by the compressed images.

    Kernel herding also ranks the compressed images if the quality is `known` beforehand. If they
    were needed, returns all compressed images too, and their features by label.
    """
    by_compressed = settings.pairing == "independent" or (
        known and settings.select == kernel_herding.__name__
    )
    if pair[0].qualities is None or not (by_compressed or exact):
        return list(by_original), None, {}
    memory = pool.store(UNLIMITED, pair, settings.accounting, by_original)
    rows = pool.embed_memory(memory)
    if not by_compressed:
        return list(by_original), memory, rows
    places = pool.places(memory)
    labels = memory.labels
    orders = pool.rank([rows[n] for n in labels], [pool.features[n] for n in labels])
    back = zip(labels, orders, strict=True)
    rankings = pool.arrange([in_order(places[label], order) for label, order in back])
    return rankings, memory, rows


def _exact(
    pool: Pool,
    memory: ReplayMemory,
    everything: ReplayMemory,
    rows: Mapping[int, Tensor],
    ratio: PhaseRatio,
) -> dict[str, float]:
    """The exact k-DPP quantities, averaged over the classes that R_q measures whole, and L_2."""
    places = pool.places(everything)
    values = []
    for label, compressed in rows.items():
        name = pool.images.classes[label]
        if name in ratio.by_class and name not in ratio.sampled:
            rank = {source: n for n, source in enumerate(everything.sources(label))}
            subset = [rank[source] for source in memory.sources(label)]
            original = pool.features[label][places[label]]
            log_z = log_partition_ratio(original, compressed, len(subset))
            kernels = (original, compressed)
            values.append((log_z, *(log_subset_probability(one, subset) for one in kernels)))
    log_z, before, after = np.mean(values, axis=0).tolist() if values else (math.nan,) * 3
    l2 = abs(from_log(after - before) - 1)
    return {"log_z": log_z, "log_p_original": before, "log_p_compressed": after, "l2": l2}
