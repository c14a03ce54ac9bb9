"""`plan`: which quality, how many images, and what R_q says of each candidate."""

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.errors import BudgetError
from mrdc.codec import CODECS, Codec
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import Embedder
from mrdc.planning.choice import Candidate, choose_quality, judge
from mrdc.planning.scan import Progress, Survey, quiet, search_space, survey
from mrdc.planning.selection import Ranking
from mrdc.planning.settings import PlanSettings
from mrdc.planning.volume import (
    PhaseRatio,
    from_log,
    log_partition_ratio,
    log_subset_probability,
    phase_ratio,
)

NO_ROOM = "no room: "
UNLIMITED = Budget(2.0**62, "bytes")


@dataclass(frozen=True)
class Measured(Candidate):
    """A candidate with what a report tells of it.

    Attributes:
        per_class: fewest, mean and most images of a class.
        kept_sources: images whose encoding was no smaller, so the source bytes stay.
        duplicates: exact duplicates found, stored once.
        exact: means over classes of k-DPP log-probabilities and log Z_q; L_2.
    """

    per_class: tuple[int, float, int] = (0, 0.0, 0)
    kept_sources: int = 0
    duplicates: int = 0
    exact: dict[str, float] | None = None

    def as_json(self) -> dict[str, Any]:
        fewest, mean, most = self.per_class
        return {
            "codec": self.codec,
            "quality": self.quality,
            "quantity": self.quantity,
            "bytes": self.bytes,
            "volume_ratio": _finite(self.volume_ratio),
            "log_volume_ratio": _finite(self.log_volume_ratio),
            "feasible": self.feasible,
            "verdict": self.verdict,
            "excluded_classes": dict(self.excluded),
            "per_class": {"fewest": fewest, "mean": mean, "most": most},
            "kept_sources": self.kept_sources,
            "duplicates": self.duplicates,
            **{name: _finite(value) for name, value in (self.exact or {}).items()},
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Plan:
    """What `plan` found."""

    settings: PlanSettings
    budget: Budget
    budget_bytes: int
    classes: int
    images: int
    boxes: dict[str, int] | None  # of scenes
    select: str
    candidates: list[Measured]
    chosen: Measured
    skipped: list[str]
    ignored: list[str]
    seconds: float

    def sentence(self) -> str:
        """The choice, in words."""
        chosen = self.chosen
        everything = chosen.quantity == self.images - chosen.duplicates
        count = f"all {chosen.quantity:,} images" if everything else f"{chosen.quantity:,} images"
        if chosen.codec == "original":
            why = "they fit as they are"
            if not everything:
                passes = any(c.feasible and c.codec != "original" for c in self.candidates)
                why = "nothing that passes holds more" if passes else "nothing compressed passes"
            return f"Keep {count} as the original files: {why}."
        plain = next(c for c in self.candidates if c.codec == "original")
        gain = f" instead of {plain.quantity:,} originals" if plain.quantity else ""
        lower = " Less quality would buy nothing: all fit." if everything else ""
        return (
            f"Store {count} as {chosen}{gain}: R_q = {chosen.volume_ratio:.2f}, "
            f"within {self.settings.epsilon:g} of 1.{lower}"
        )

    def as_json(self) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "budget": self.budget.as_json(self.budget_bytes),
            "classes": self.classes,
            "images": self.images,
            "boxes": self.boxes,
            "select": self.select,
            "candidates": [candidate.as_json() for candidate in self.candidates],
            "chosen": {
                "codec": chosen.codec,
                "quality": chosen.quality,
                "quantity": chosen.quantity,
                "bytes": chosen.bytes,
            },
            "rule": self.settings.rule,
            "epsilon": self.settings.epsilon,
            "skipped": self.skipped,
            "ignored": self.ignored,
            "seconds": round(self.seconds, 3),
        }


def plan(
    settings: PlanSettings, *, progress: Progress = quiet, embedder: Embedder | None = None
) -> Plan:
    """Measure every candidate and choose one; writes nothing but the feature cache.

    Raises:
        MrdcError: settings or images that cannot be used.
    """
    search_space(settings)  # refuse what cannot be before any image is read
    with survey(settings, progress, embedder, measuring=True) as seen:
        return search(seen)[0]


def search(seen: Survey) -> tuple[Plan, list[Ranking]]:
    """The plan, and the ranking its choice was measured with."""
    settings = seen.settings
    rankings = seen.rank(seen.features)
    space = search_space(settings)
    if all(codec.name != "original" for codec, _ in space):
        space.insert(0, (CODECS["original"], None))
    folder = Path(tempfile.gettempdir())
    tried = [measure(seen, codec, quality, rankings, folder) for codec, quality in space]
    candidates = judge([c for c, _ in tried], settings.rule, settings.epsilon)
    if not any(candidate.feasible for candidate in candidates):
        raise BudgetError(_why_none(candidates))
    place = candidates.index(choose_quality(candidates, settings.rule, settings.epsilon))
    candidates[place] = replace(candidates[place], verdict="chosen")
    found = Plan(
        settings=settings,
        budget=seen.budget,
        budget_bytes=seen.budget_bytes,
        classes=len(seen.images.classes),
        images=len(seen.images),
        boxes=None if seen.images.scenes is None else seen.images.scenes.as_json(),
        select=seen.select,
        candidates=candidates,
        chosen=candidates[place],
        skipped=seen.skipped,
        ignored=seen.images.ignored,
        seconds=time.perf_counter() - seen.start,
    )
    return found, tried[place][1]


def _why_none(candidates: Sequence[Measured]) -> str:
    """What to tell people when nothing fits or what fits does not pass."""
    if not any(candidate.quantity for candidate in candidates):
        return candidates[-1].verdict.removeprefix(NO_ROOM)
    fits = ", ".join(f"{c} (R_q {c.volume_ratio:.2f})" for c in candidates if c.quantity)
    return (
        f"the budget has no room for originals, and what fits does not pass: {fits}; raise "
        "--budget, add a --quality, or loosen --epsilon"
    )


def measure(
    seen: Survey, codec: Codec, quality: int | None, rankings: Sequence[Ranking], folder: Path
) -> tuple[Measured, list[Ranking]]:
    """What a codec and quality would store, R_q of it, and the ranking it used."""
    settings = seen.settings
    lossless = codec.qualities is None
    whole = ranking_for(seen, codec, quality, rankings, folder)
    try:
        memory = seen.build(codec, quality, whole.order, folder)
    except BudgetError as error:
        verdict = f"{NO_ROOM}{error}"
        return Measured(codec.name, quality, 0, 0, math.nan, {}, verdict=verdict), whole.order
    ratio = PhaseRatio(0.0, {}, {})  # exact where no pixel changes
    if not lossless and (settings.exact or memory.kept_sources() < len(memory)):
        everything = whole.memory if settings.pairing == "independent" else None
        originals = _places(seen, everything or memory)  # best first, and no copies
        pairs = {}
        for label, rows in embed_memory(seen, memory).items():
            original = seen.features[label][originals[label][: len(rows)]]
            pairs[seen.images.classes[label]] = original, rows
        ratio = phase_ratio(pairs, settings.volume)
    exact = None
    if settings.exact and whole.memory is not None:
        exact = _exact(seen, memory, whole.memory, whole.rows, ratio)
    counts = np.bincount(memory.targets)
    found = [sum(m.duplicates().values()) for m in (memory, whole.memory) if m is not None]
    measured = Measured(
        codec=codec.name,
        quality=quality,
        quantity=len(memory),
        bytes=memory.nbytes,
        log_volume_ratio=ratio.log,
        excluded=ratio.excluded,
        per_class=(int(counts.min()), float(counts.mean()), int(counts.max())),
        kept_sources=0 if codec.name == "original" else memory.kept_sources(),
        duplicates=max(found),
        exact=exact,
    )
    return measured, whole.order


class Whole(NamedTuple):
    """A ranking, and the memory of all compressed images where one was needed."""

    order: list[Ranking]
    memory: ReplayMemory | None
    rows: dict[int, Tensor]


def ranking_for(
    seen: Survey, codec: Codec, quality: int | None, rankings: Sequence[Ranking], folder: Path
) -> Whole:
    """The ranking a codec and quality are used with: by originals, or by compressed images."""
    independent = seen.settings.pairing == "independent"
    if codec.qualities is None or not (independent or seen.settings.exact):
        return Whole(list(rankings), None, {})
    memory = seen.build(codec, quality, rankings, folder, UNLIMITED)
    rows = embed_memory(seen, memory)
    order = _rank_compressed(seen, memory, rows) if independent else list(rankings)
    return Whole(order, memory, rows)


def embed_memory(seen: Survey, memory: ReplayMemory) -> dict[int, Tensor]:
    """Features of what a memory holds, by label, in rank order."""
    photos = [Photo(f"image {i}", _encoded(memory, i)) for i in range(len(memory))]
    rows, _ = seen.embed(photos, f"embedding {memory.codec.name} {memory.quality}")
    counts = [len(memory.sources(label)) for label in memory.labels]
    return dict(zip(memory.labels, torch.split(rows, counts), strict=True))


def _encoded(memory: ReplayMemory, index: int) -> Callable[[], bytes]:
    return partial(memory.encoded, index)


def _places(seen: Survey, memory: ReplayMemory) -> dict[int, list[int]]:
    """By label, where a memory's images stand among the originals of their class."""
    places = {}
    for label in memory.labels:
        place = {photo.id: index for index, photo in enumerate(seen.images.photos[label])}
        places[label] = [place[source] for source in memory.sources(label)]
    return places


def _rank_compressed(
    seen: Survey, everything: ReplayMemory, rows: dict[int, Tensor]
) -> list[Ranking]:
    """Rankings of the originals by what they look like once compressed."""
    places = _places(seen, everything)
    rankings = seen.rank([rows[label] for label in everything.labels])
    return [
        np.array(places[label])[ranking]
        for label, ranking in zip(everything.labels, rankings, strict=True)
    ]


def _exact(
    seen: Survey,
    memory: ReplayMemory,
    everything: ReplayMemory,
    all_rows: dict[int, Tensor],
    ratio: PhaseRatio,
) -> dict[str, float]:
    """Means over the classes in R_q of the exact k-DPP quantities, and L_2 from them."""
    places = _places(seen, everything)
    values = []
    for label, compressed in all_rows.items():
        if seen.images.classes[label] in ratio.by_class:
            rank = {source: index for index, source in enumerate(everything.sources(label))}
            subset = [rank[source] for source in memory.sources(label)]
            original = seen.features[label][places[label]]
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
