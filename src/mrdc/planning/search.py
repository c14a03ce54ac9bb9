"""Search: measure every candidate, choose one, and hand over the images it stores.

`plan`, `pack` and runs all call `search`. It reads a pool of images and writes nothing but
unnamed temporary files.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.errors import BudgetError, ImageError, UsageError
from mrdc.codec import CODECS, Codec
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.choice import Candidate, choose_quality, judge
from mrdc.planning.selection import Ranking
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
NO_ROOM = "no room: "
UNLIMITED = Budget(2.0**62, "bytes")


def quiet(stage: str, total: int) -> Callable[[int], None]:
    """Report no progress."""
    return lambda count: None


def as_ranked(rankings: Sequence[Ranking]) -> list[Ranking]:
    """Keep the order of the selector."""
    return list(rankings)


@dataclass(frozen=True)
class Pool:
    """Images to choose from.

    Attributes:
        images: by class.
        features: of the original images, by class, shape (n, d).
        embed: features of photos; takes the photos and the name of the stage.
        rank: features by class to ranked indices by class.
        arrange: changes rankings, as some methods do.
        notes: JSON values for the memory file.
        skip: called with the error of each unreadable image; without it the first one raises.
    """

    images: ImageSet
    features: Sequence[Tensor]
    embed: Callable[[Sequence[Photo], str], Tensor]
    rank: Callable[[Sequence[Tensor]], list[Ranking]]
    arrange: Callable[[Sequence[Ranking]], list[Ranking]] = as_ranked
    notes: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    skip: Callable[[ImageError], None] | None = None
    progress: Progress = quiet
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))

    def rankings(self) -> list[Ranking]:
        """Ranked indices of the originals, by class."""
        return self.arrange(self.rank(self.features))

    def store(
        self, budget: Budget, pair: Pair, accounting: str, rankings: Sequence[Ranking]
    ) -> ReplayMemory:
        """Store images in rank order until the budget is used up.

        The bytes go to an unnamed file in `folder`.

        Raises:
            BudgetError: a class would hold no image.
        """
        codec, quality = pair
        images = self.images
        memory = ReplayMemory(
            budget,
            codec,
            quality,
            accounting="file" if accounting == "file" else "packed",
            class_names=dict(enumerate(images.classes)),
            spool=self.folder,
        )
        memory.notes = dict(self.notes)
        if images.scenes is not None:
            memory.boxes = images.scenes.by_id()
            memory.box_classes = images.scenes.classes
        photos = zip(images.photos, rankings, strict=True)
        memory.add(
            {label: [of_class[i] for i in order] for label, (of_class, order) in enumerate(photos)},
            threads=self.threads,
            skip=self.skip,
            progress=self.progress(f"encoding {codec.name} {quality or ''}", len(images)),
        )
        return memory


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        candidates: every candidate, measured and judged.
        chosen: the best one; None if nothing passes.
        memory: the images of the chosen (or kept) candidate, encoded.
        rankings: the order those were stored in.
    """

    candidates: list[Candidate]
    chosen: Candidate | None
    memory: ReplayMemory | None
    rankings: list[Ranking]


def search(
    pool: Pool,
    budget: Budget,
    settings: SearchSettings,
    *,
    keep: Pair | None = None,
    exact: bool = False,
) -> Found:
    """Measure every candidate, originals included, and choose one.

    Args:
        keep: a candidate whose images to return instead of the chosen one's.
        exact: also compute the exact k-DPP quantities.
    """
    by_original = pool.rankings()
    candidates: list[Candidate] = []
    memory: ReplayMemory | None = None
    rankings = by_original
    for pair in search_space(settings, originals=True):
        tried = measure(pool, budget, settings, pair, by_original, exact)
        candidates.append(tried.candidate)
        best = choose_quality(judge(candidates, settings.rule, settings.epsilon))
        if pair == keep if keep is not None else best == len(candidates) - 1:
            memory, rankings = tried.memory, tried.rankings
    judged = judge(candidates, settings.rule, settings.epsilon)
    best = choose_quality(judged)
    if best is None:
        return Found(judged, None, memory, rankings)
    if keep is None:
        judged[best] = replace(judged[best], verdict="chosen")
    return Found(judged, judged[best], memory, rankings)


def search_space(settings: SearchSettings, originals: bool = False) -> list[Pair]:
    """Every codec with every quality, best first; with `originals`, at least these.

    Raises:
        UsageError: an unknown codec, or a quality it does not have.
    """
    if not settings.codec or not settings.qualities:
        raise UsageError("give at least one codec and one quality")
    space: list[Pair] = []
    for name in dict.fromkeys(settings.codec):
        codec = CODECS.find(name)
        best_first = sorted(set(settings.qualities), reverse=True)
        for quality in best_first if codec.qualities else [None]:
            codec.check_quality(quality)
            space.append((codec, quality))
    if originals and all(codec.name != "original" for codec, _ in space):
        space.insert(0, (CODECS["original"], None))
    return space


class Tried(NamedTuple):
    """A measured candidate, the images it stores, and their order."""

    candidate: Candidate
    memory: ReplayMemory | None
    rankings: list[Ranking]


def measure(
    pool: Pool,
    budget: Budget,
    settings: SearchSettings,
    pair: Pair,
    by_original: Sequence[Ranking],
    exact: bool = False,
) -> Tried:
    """Store what fits with a codec and quality, and compute R_q of it."""
    codec, quality = pair
    whole = compress_all(pool, settings, pair, by_original, exact)
    try:
        memory = pool.store(budget, pair, settings.accounting, whole.rankings)
    except BudgetError as error:
        none = Candidate(codec.name, quality, 0, verdict=f"{NO_ROOM}{error}")
        return Tried(none, None, whole.rankings)
    ratio = PhaseRatio()  # R_q is 1 if no pixel changes
    if codec.qualities is not None and (exact or memory.kept_sources() < len(memory)):
        ratio = _ratio(pool, settings, memory, whole.memory)
    counts = np.bincount(memory.targets)
    duplicates = [sum(m.duplicates().values()) for m in (memory, whole.memory) if m is not None]
    candidate = Candidate(
        codec=codec.name,
        quality=quality,
        quantity=len(memory),
        bytes=memory.nbytes,
        log_volume_ratio=ratio.log,
        excluded=ratio.excluded,
        sampled=ratio.sampled,
        per_class=(int(counts.min()), float(counts.mean()), int(counts.max())),
        kept_sources=0 if codec.name == "original" else memory.kept_sources(),
        duplicates=max(duplicates),
        exact=_exact(pool, memory, whole, ratio) if exact and whole.memory is not None else None,
    )
    return Tried(candidate, memory, whole.rankings)


def _ratio(
    pool: Pool, settings: SearchSettings, memory: ReplayMemory, everything: ReplayMemory | None
) -> PhaseRatio:
    """R_q of what a memory holds.

    With independent pairing the originals are those that come first in the ranking.
    """
    reference = everything if settings.pairing == "independent" and everything else memory
    places = _places(pool, reference)
    pairs = {}
    for label, rows in _embed_memory(pool, memory).items():
        original = pool.features[label][places[label][: len(rows)]]
        pairs[pool.images.classes[label]] = original, rows
    return phase_ratio(pairs, settings.volume)


class Whole(NamedTuple):
    """The order to store images in, and all of them compressed if that was needed."""

    rankings: list[Ranking]
    memory: ReplayMemory | None = None
    rows: Mapping[int, Tensor] = {}


def compress_all(
    pool: Pool,
    settings: SearchSettings,
    pair: Pair,
    by_original: Sequence[Ranking],
    exact: bool = False,
) -> Whole:
    """The order for a codec and quality: by originals, or by the compressed images."""
    independent = settings.pairing == "independent"
    if pair[0].qualities is None or not (independent or exact):
        return Whole(list(by_original))
    memory = pool.store(UNLIMITED, pair, settings.accounting, by_original)
    rows = _embed_memory(pool, memory)
    if not independent:
        return Whole(list(by_original), memory, rows)
    places = _places(pool, memory)
    ranked = pool.rank([rows[label] for label in memory.labels])
    back = zip(memory.labels, ranked, strict=True)
    rankings = pool.arrange([np.array(places[label])[order] for label, order in back])
    return Whole(rankings, memory, rows)


def _embed_memory(pool: Pool, memory: ReplayMemory) -> dict[int, Tensor]:
    """Features of the images in a memory, by label, in rank order."""
    stage = f"embedding {memory.codec.name} {memory.quality}"
    rows = pool.embed(memory.examples().photos, stage)
    counts = [len(memory.sources(label)) for label in memory.labels]
    return dict(zip(memory.labels, torch.split(rows, counts), strict=True))


def _places(pool: Pool, memory: ReplayMemory) -> dict[int, list[int]]:
    """By label, the indices of a memory's images among the originals of their class."""
    places = {}
    for label in memory.labels:
        index = {photo.id: number for number, photo in enumerate(pool.images.photos[label])}
        places[label] = [index[source] for source in memory.sources(label)]
    return places


def _exact(pool: Pool, memory: ReplayMemory, whole: Whole, ratio: PhaseRatio) -> dict[str, float]:
    """The exact k-DPP quantities, averaged over the classes in R_q, and L_2."""
    assert whole.memory is not None
    places = _places(pool, whole.memory)
    values = []
    for label, compressed in whole.rows.items():
        name = pool.images.classes[label]
        if name in ratio.by_class and name not in ratio.sampled:
            rank = {source: n for n, source in enumerate(whole.memory.sources(label))}
            subset = [rank[source] for source in memory.sources(label)]
            original = pool.features[label][places[label]]
            values.append(
                (
                    log_partition_ratio(original, compressed, len(subset)),
                    log_subset_probability(original, subset),
                    log_subset_probability(compressed, subset),
                )
            )
    log_z, before, after = np.mean(values, axis=0).tolist() if values else (math.nan,) * 3
    l2 = abs(from_log(2 * ratio.log + log_z) - 1)
    return {"log_z": log_z, "log_p_original": before, "log_p_compressed": after, "l2": l2}
