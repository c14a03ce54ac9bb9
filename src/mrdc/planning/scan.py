"""Scan a source for `plan` and `pack`: open the images, check them, embed them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mrdc._utils.errors import DataError, ImageError, MissingError, UsageError
from mrdc._utils.extras import Tensor, installed_torch, torch
from mrdc._utils.seeds import named_seed
from mrdc._utils.threads import ordered, workers
from mrdc.data import open_images
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.scenes import check_sides
from mrdc.memory.budget import Budget, parse_budget
from mrdc.memory.fill import Skip
from mrdc.planning.choice import check_criterion
from mrdc.planning.resize import check_side, shrink_all
from mrdc.planning.search import Pool, Progress, Ranking, search_space
from mrdc.planning.selection import (
    SELECTORS,
    kernel_herding,
    lazy_ranking,
    random_choice,
    usual_selector,
)
from mrdc.planning.settings import PlanSettings

if TYPE_CHECKING:
    from mrdc.nn.embedder import Embedder
    from mrdc.nn.feature_cache import FeatureCache

NOTE = " " * 200  # placeholder for the notes on one candidate in a memory file


class Whole(NamedTuple):
    """The source that classes were drawn from."""

    classes: int
    images: int


@dataclass(frozen=True)
class Scan:
    """A source, ready for a search."""

    pool: Pool
    budget: Budget
    select: str
    embed: str | None  # the network that was used
    skipped: list[str]
    start: float
    drawn_from: Whole | None  # None if all classes are in it

    @property
    def images(self) -> ImageSet:
        return self.pool.images


def check_settings(settings: PlanSettings) -> None:
    """Refuse invalid settings before any image is read."""
    check_criterion(settings)
    search_space(settings)
    usual_selector(settings.select, scenes=False)
    parse_budget(settings.budget, original_bytes=1.0)
    if settings.exact and settings.volume == "ridge":
        raise UsageError("--exact needs --volume gram: k-DPPs are defined by plain volumes")
    if settings.seed < 0:
        raise UsageError(f"--seed must be 0 or more, got {settings.seed}")
    if settings.threads is not None and settings.threads < 1:
        raise UsageError(f"--threads must be 1 or more, got {settings.threads}")
    if settings.address is not None and settings.engine != "ray":
        raise UsageError("--address is that of a Ray cluster: pass --engine ray, too")
    if settings.sample is not None and settings.sample < 2:
        raise UsageError(f"--sample must be 2 classes or more, got {settings.sample}")
    check_side(settings.max_side)


def engine(settings: PlanSettings) -> AbstractContextManager[None]:
    """Engine that runs the jobs of a scan and of a search: threads, or Ray."""
    if settings.engine == "threads":
        return nullcontext()
    from mrdc.distributed.ray_engine import ray_engine

    return ray_engine(settings.address, settings.threads)


@contextmanager
def scan(
    settings: PlanSettings,
    progress: Progress,
    embedder: "Embedder | None",
    images: ImageSet | None = None,
    *,
    folder: Path,
    measuring: bool,
    part_size: int | None = None,
) -> Iterator[Scan]:
    """Open the images unless given, check them, and embed them if needed, as to measure R_q."""
    check_settings(settings)
    start = time.perf_counter()
    skipped: list[str] = []

    def note(error: ImageError) -> None:
        if str(error) not in skipped:
            skipped.append(str(error))

    skip = note if settings.skip_bad else None
    if images is None:
        images = open_images(settings.photos, settings.skip_bad, settings.columns)
    if settings.sample is not None and images.scenes is not None:
        raise UsageError("--sample draws classes, which scenes do not have: leave it out")
    images = without_empty(images, skipped, settings)
    whole: Whole | None = None
    share = 1.0
    if settings.sample is not None and settings.sample < len(images.classes):
        whole = Whole(len(images.classes), len(images))
        share = settings.sample / whole.classes
        images = draw_classes(images, settings.sample, settings.seed)
    if settings.max_side is not None:
        count = progress("resizing", len(images))
        side, threads = settings.max_side, settings.threads
        images = shrink_all(images, side, threads=threads, folder=folder, progress=count)
    select = usual_selector(settings.select, images.scenes is not None)
    needed = measuring or settings.pairing == "independent"
    needed |= SELECTORS.find(select) is not random_choice
    if skip and (images.scenes is not None or not needed):
        images = keep(images, readable(images, settings.threads, skip, progress), skipped, settings)
    if images.scenes is not None:
        check_sides(images.scenes, settings.threads, progress("checking sizes", len(images)))
    network: Embedder | None = None
    name: str | None = None
    cache: FeatureCache | None = None
    check_torch(needed, select)

    def embed_photos(photos: Sequence[Photo], stage: str) -> tuple[Tensor, list[int]]:
        from mrdc.nn.embed import embed

        assert network is not None  # nothing is embedded for a fixed quality and a random choice
        count, threads = progress(stage, len(photos)), settings.threads
        return embed(photos, network, cache=cache, threads=threads, skip=skip, progress=count)

    try:
        features: Sequence[Any] = [np.empty((len(photos), 0)) for photos in images.photos]
        if needed:
            from mrdc.nn.embedder import load_embedder, with_size
            from mrdc.nn.feature_cache import open_cache

            name = settings.embed if embedder else with_size(settings.embed, images.all_photos)
            network = embedder or load_embedder(name, settings.weights, settings.device)
            cache = open_cache(network.key) if settings.cache else None
            rows, good = embed_photos(images.all_photos, "embedding originals")
            images = keep(images, good, skipped, settings)
            features = torch.split(rows, [len(photos) for photos in images.photos])
        tried = len(search_space(settings))
        notes = {
            "skipped": skipped,
            "select": select,
            "seed": settings.seed,
            "pairing": settings.pairing,
            "max_side": settings.max_side,
            "embed": name,
            "search": NOTE * (tried + 2) if tried > 1 else None,
        }
        pool = Pool(
            images,
            features,
            lambda photos, stage: embed_photos(photos, stage)[0],
            lambda rows, originals: rank(select, rows, settings.seed, originals),
            notes=notes,
            threads=settings.threads,
            skip=skip,
            progress=progress,
            folder=folder,
            device="cpu" if network is None else str(network.device),
            part_size=part_size,
            drawn_from=None if whole is None else whole.classes,
        )
        budget = parse_budget(settings.budget, images.original_bytes).part(share)
        yield Scan(pool, budget, select, name, skipped, start, whole)
        if cache is not None:
            cache.trim()  # not after a failure: all features are needed to resume
    finally:
        if cache is not None:
            cache.close()


def draw_classes(images: ImageSet, count: int, seed: int) -> ImageSet:
    """Some of the classes, drawn at random, in their order."""
    drawn = np.random.default_rng(named_seed(seed, "sample")).permutation(len(images.classes))
    return images.pick(sorted(drawn[:count].tolist()))


def check_torch(needed: bool, select: str) -> None:
    """Refuse to embed images without torch, before any is read."""
    if needed and installed_torch() is None:
        raise MissingError(
            f"measuring candidates and ranking by {select} need torch, which is missing: pip "
            "install 'mrdc[train]'; `mrdc pack` with one --quality and --select random_choice does "
            "without"
        )


def rank(
    select: str, features: Sequence[Tensor], seed: int, originals: Sequence[Tensor] | None = None
) -> list[Ranking]:
    """Ranked indices by class; `originals` if the features are those of compressed images."""
    selector = SELECTORS.find(select)
    if selector is kernel_herding and originals is not None:
        pairs = zip(features, originals, strict=True)
        return [
            lazy_ranking(partial(kernel_herding, originals=targets), rows, seed)
            for rows, targets in pairs
        ]
    return [lazy_ranking(selector, rows, (seed, label)) for label, rows in enumerate(features)]


def readable(images: ImageSet, threads: int | None, skip: Skip, progress: Progress) -> list[int]:
    """Indices of the photos that can be decoded; `skip` is called with the others' errors."""

    def look(photo: Photo) -> ImageError | None:
        try:
            photo.pixels()
        except ImageError as error:
            return error
        return None

    good, count = [], progress("checking", len(images))
    with workers(threads) as pool:
        for index, (_, error) in enumerate(ordered(pool, look, images.all_photos)):
            count(1)
            if error is None:
                good.append(index)
            else:
                skip(error)
    return good


def without_empty(images: ImageSet, skipped: list[str], settings: PlanSettings) -> ImageSet:
    """Drop classes without images, if --skip-bad allows that."""
    full = [bool(photos) for photos in images.photos]
    for name in (name for name, any_left in zip(images.classes, full, strict=True) if not any_left):
        if not settings.skip_bad:
            raise DataError(
                f"class {name!r} has no image: add some, remove it, or pass --skip-bad to skip it"
            )
        skipped.append(f"class {name!r}: no readable image")
    if not any(full):
        raise DataError(f"{settings.photos}: no readable image in any class")
    return replace(
        images,
        classes=tuple(compress(images.classes, full)),
        photos=tuple(compress(images.photos, full)),
        sizes=tuple(compress(images.sizes, full)),
    )


def keep(
    images: ImageSet, good: Sequence[int], skipped: list[str], settings: PlanSettings
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
    return without_empty(kept, skipped, settings)
