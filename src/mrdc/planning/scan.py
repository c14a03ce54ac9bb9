"""Scan a source for `plan` and `pack`: open the images, check them, embed them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrdc._utils.errors import DataError, ImageError, UsageError
from mrdc._utils.threads import ordered, workers
from mrdc.data import open_images
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.scenes import check_sides
from mrdc.memory.budget import Budget, parse_budget
from mrdc.nn.embed import Embedder, embed, load_embedder
from mrdc.nn.feature_cache import FeatureCache, open_cache
from mrdc.planning.search import Pool, Progress, search_space
from mrdc.planning.selection import SELECTORS, Ranking, random_choice, usual_selector
from mrdc.planning.settings import PlanSettings

NOTE = " " * 200  # placeholder for the notes on one candidate in a memory file


@dataclass(frozen=True)
class Scan:
    """A source, ready for a search."""

    pool: Pool
    budget: Budget
    select: str
    skipped: list[str]
    start: float

    @property
    def images(self) -> ImageSet:
        return self.pool.images

    @property
    def budget_bytes(self) -> int:
        return self.budget.total_bytes(len(self.images.classes))


@dataclass
class Bad:
    """Unreadable images that were skipped."""

    skipped: list[str] = field(default_factory=list)

    def __call__(self, error: ImageError) -> None:
        if str(error) not in self.skipped:
            self.skipped.append(str(error))


def check_settings(settings: PlanSettings) -> None:
    """Refuse invalid settings before any image is read.

    Raises:
        UsageError: with the flag and what it takes.
    """
    search_space(settings)
    usual_selector(settings.select, scenes=False)
    parse_budget(settings.budget, original_bytes=1.0)
    if settings.exact and settings.volume == "ridge":
        raise UsageError("--exact needs --volume gram: k-DPPs are defined by plain volumes")
    if settings.seed < 0:
        raise UsageError(f"--seed must be 0 or more, got {settings.seed}")
    if settings.threads is not None and settings.threads < 1:
        raise UsageError(f"--threads must be 1 or more, got {settings.threads}")


@contextmanager
def scan(
    settings: PlanSettings,
    progress: Progress,
    embedder: Embedder | None,
    *,
    folder: Path,
    measuring: bool,
) -> Iterator[Scan]:
    """Open the images, check them, and embed them if needed.

    Args:
        folder: for unnamed temporary files.
        measuring: whether R_q will be computed.

    Raises:
        MrdcError: settings or images that cannot be used.
    """
    check_settings(settings)
    start, bad = time.perf_counter(), Bad()
    skip = bad if settings.skip_bad else None
    images = open_images(settings.photos, settings.skip_bad)
    images = without_empty(images, skip, settings.photos)
    select = usual_selector(settings.select, images.scenes is not None)
    needed = measuring or settings.pairing == "independent"
    needed |= SELECTORS.find(select) is not random_choice
    if skip and (images.scenes is not None or not needed):
        images = keep(images, readable(images, settings.threads, bad, progress), skip, settings)
    if images.scenes is not None:
        stage = progress("checking sizes", len(images))
        check_sides(images.scenes, settings.threads, stage)
    cache: FeatureCache | None = None
    features: Sequence[Tensor] = [torch.empty(len(photos), 0) for photos in images.photos]
    embed_photos: Callable[[Sequence[Photo], str], Tensor] = no_embedder
    try:
        if needed:
            network = embedder or load_embedder(settings.embed, settings.weights, settings.device)
            cache = open_cache(network.key) if settings.cache else None
            options: dict[str, Any] = {"cache": cache, "threads": settings.threads, "skip": skip}

            def embed_photos(photos: Sequence[Photo], stage: str) -> Tensor:
                count = progress(stage, len(photos))
                return embed(photos, network, progress=count, **options)[0]

            count = progress("embedding originals", len(images))
            rows, good = embed(images.all_photos, network, progress=count, **options)
            images = keep(images, good, skip, settings)
            features = torch.split(rows, [len(photos) for photos in images.photos])
        pool = Pool(
            images,
            features,
            embed_photos,
            lambda rows: rank(select, rows, settings.seed),
            notes=_notes(settings, select, bad.skipped, needed),
            threads=settings.threads,
            skip=skip,
            progress=progress,
            folder=folder,
        )
        budget = parse_budget(settings.budget, images.original_bytes)
        yield Scan(pool, budget, select, bad.skipped, start)
    finally:
        if cache is not None:
            cache.close()


def no_embedder(photos: Sequence[Photo], stage: str) -> Tensor:
    raise AssertionError("nothing is embedded for a fixed quality and a random choice")


def rank(select: str, features: Sequence[Tensor], seed: int) -> list[Ranking]:
    """Ranked indices by class."""
    selector = SELECTORS.find(select)
    return [selector(rows, len(rows), (seed, label)) for label, rows in enumerate(features)]


def _notes(
    settings: PlanSettings, select: str, skipped: list[str], embedded: bool
) -> dict[str, Any]:
    """Notes for the memory file, with room for the result of a search."""
    tried = len(search_space(settings))
    return {
        "skipped": skipped,
        "select": select,
        "seed": settings.seed,
        "pairing": settings.pairing,
        "embed": settings.embed if embedded else None,
        "search": NOTE * (tried + 2) if tried > 1 else None,
    }


def readable(images: ImageSet, threads: int | None, bad: Bad, progress: Progress) -> list[int]:
    """Indices of the photos that can be decoded; the others are noted in `bad`."""

    def look(photo: Photo) -> ImageError | None:
        try:
            photo.pixels()
        except ImageError as error:
            return error
        return None

    good = []
    count = progress("checking", len(images))
    with workers(threads) as pool:
        for index, (_, error) in enumerate(ordered(pool, look, images.all_photos)):
            count(1)
            if error is None:
                good.append(index)
            else:
                bad(error)
    return good


def without_empty(images: ImageSet, skip: Bad | None, where: Path) -> ImageSet:
    """Drop classes without images.

    Raises:
        DataError: there is one and `skip` is not given, or nothing is left.
    """
    full = [bool(photos) for photos in images.photos]
    for name, any_left in zip(images.classes, full, strict=True):
        if not any_left and skip is None:
            raise DataError(
                f"class {name!r} has no image: add some, remove it, or pass --skip-bad to skip it"
            )
        if not any_left and skip is not None:
            skip.skipped.append(f"class {name!r}: no readable image")
    if not any(full):
        raise DataError(f"{where}: no readable image in any class")
    return replace(
        images,
        classes=tuple(compress(images.classes, full)),
        photos=tuple(compress(images.photos, full)),
        sizes=tuple(compress(images.sizes, full)),
    )


def keep(
    images: ImageSet, good: Sequence[int], skip: Bad | None, settings: PlanSettings
) -> ImageSet:
    """Drop all photos but these, and classes that have none left."""
    ends = np.cumsum([len(photos) for photos in images.photos])[:-1]
    masks = np.split(np.isin(np.arange(len(images)), good), ends)
    kept = replace(
        images,
        photos=tuple(list(compress(p, m)) for p, m in zip(images.photos, masks, strict=True)),
        sizes=tuple(list(compress(s, m)) for s, m in zip(images.sizes, masks, strict=True)),
        scenes=None if images.scenes is None else images.scenes.pick(good),
    )
    return without_empty(kept, skip, settings.photos)
