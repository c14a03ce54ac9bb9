"""Look at a folder once: what images there are, what they look like, their ranks."""

import hashlib
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
from mrdc.codec import CODECS, Codec, lookup
from mrdc.codec.image import decode
from mrdc.data import open_images
from mrdc.data.coco import check_sides
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget, parse_budget
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import Embedder, embed, load_embedder
from mrdc.nn.feature_cache import FeatureCache, open_cache
from mrdc.planning.selection import SELECTORS, Ranking, random_choice
from mrdc.planning.settings import PlanSettings

Progress = Callable[[str, int], Callable[[int], None]]
AUTO = "auto"  # the selector that depends on the images
NAMED = 5  # unreadable photos that a refusal tells of
NOTE = " " * 200  # stands in for what a memory file tells of one candidate


def quiet(stage: str, total: int) -> Callable[[int], None]:
    """Progress for nobody."""
    return lambda count: None


@dataclass
class Survey:
    """What is known of a folder before any quality is tried."""

    settings: PlanSettings
    progress: Progress
    images: ImageSet
    fixed_budget: Budget | None = None  # else what the settings say of these images
    embedder: Embedder | None = None
    cache: FeatureCache | None = None
    features: list[Tensor] = field(default_factory=list)  # by class; no columns if not needed
    skipped: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)  # for the memory file
    start: float = field(default_factory=time.perf_counter)

    @property
    def budget(self) -> Budget:
        return self.fixed_budget or parse_budget(self.settings.budget, self.images.original_bytes)

    @property
    def budget_bytes(self) -> int:
        return self.budget.total_bytes(len(self.images.classes))

    @property
    def select(self) -> str:
        """The selector: what the settings say, or herding for classes, a draw for scenes."""
        if self.settings.select != AUTO:
            return self.settings.select
        return "herding" if self.images.scenes is None else "random_choice"

    @property
    def skip(self) -> Callable[[ImageError], None] | None:
        """Notes an unreadable image, where the settings let us go on without it."""
        return self.note if self.settings.skip_bad else None

    def note(self, error: ImageError) -> None:
        """Remember an image that cannot be read."""
        if str(error) not in self.skipped:
            self.skipped.append(str(error))

    def embed(self, photos: Sequence[Photo], stage: str) -> tuple[Tensor, list[int]]:
        """Features of the photos that can be read, and which those are."""
        assert self.embedder is not None
        return embed(
            photos,
            self.embedder,
            cache=self.cache,
            threads=self.settings.threads,
            skip=self.skip,
            progress=self.progress(stage, len(photos)),
        )

    def rank(self, features: Sequence[Tensor]) -> list[Ranking]:
        """Ranked indices of each class."""
        select = lookup(SELECTORS, self.select, "selector")
        seed = self.settings.seed
        return [select(rows, len(rows), (seed, label)) for label, rows in enumerate(features)]

    def build(
        self,
        codec: Codec,
        quality: int | None,
        rankings: Sequence[Ranking],
        folder: Path,
        budget: Budget | None = None,
    ) -> ReplayMemory:
        """The memory that a codec and quality give, spooled to an unnamed file in `folder`.

        A budget in bytes bounds the whole memory file, its index included.
        """
        limit = budget or self.budget
        memory = ReplayMemory(
            limit,
            codec,
            quality,
            accounting=self.settings.accounting,
            class_names=dict(enumerate(self.images.classes)),
            whole_file=limit.unit == "bytes",
            spool=folder,
        )
        memory.notes = dict(self.notes)
        if self.images.scenes is not None:
            memory.boxes = self.images.scenes.by_id()
            memory.box_classes = self.images.scenes.classes
        photos = enumerate(zip(self.images.photos, rankings, strict=True))
        memory.add(
            {label: [class_[index] for index in order] for label, (class_, order) in photos},
            threads=self.settings.threads,
            skip=self.skip,
            progress=self.progress(f"encoding {codec.name} {quality or ''}", len(self.images)),
        )
        return memory


@contextmanager
def survey(
    settings: PlanSettings,
    progress: Progress = quiet,
    embedder: Embedder | None = None,
    *,
    measuring: bool,
) -> Iterator[Survey]:
    """Open the images, check them, and embed them where that will be needed.

    Args:
        measuring: whether R_q will be asked for.

    Raises:
        MrdcError: settings or images that cannot be used.
    """
    lookup({**SELECTORS, AUTO: None}, settings.select, "selector")
    parse_budget(settings.budget, original_bytes=1.0)  # refuse nonsense before any work
    seen = Survey(settings, progress, open_images(settings.photos, settings.skip_bad))
    _check_classes(seen, fewest=2 if measuring else 1)
    _check_scenes(seen)
    seen.notes = _notes(seen)
    select = SELECTORS[seen.select]
    if not (measuring or select is not random_choice or settings.pairing == "independent"):
        if settings.skip_bad:
            _keep(seen, readable(seen))
        seen.features = [torch.empty(len(photos), 0) for photos in seen.images.photos]
        yield seen
        return
    seen.embedder = embedder or load_embedder(settings.embed, settings.weights)
    seen.notes["embed"] = settings.embed
    seen.cache = open_cache(seen.embedder.key) if settings.cache else None
    try:
        rows, good = seen.embed(seen.images.all_photos, "embedding originals")
        _keep(seen, good)
        seen.features = list(torch.split(rows, [len(photos) for photos in seen.images.photos]))
        yield seen
    finally:
        if seen.cache is not None:
            seen.cache.close()


def _notes(seen: Survey) -> dict[str, Any]:
    """What a memory file tells of its making, with room for a search."""
    settings, tried = seen.settings, len(search_space(seen.settings))
    return {
        "skipped": seen.skipped,
        "select": seen.select,
        "seed": settings.seed,
        "pairing": settings.pairing,
        "embed": None,
        "search": NOTE * (tried + 2) if tried > 1 else None,
    }


def search_space(settings: PlanSettings) -> list[tuple[Codec, int | None]]:
    """Every codec with every quality, best first.

    Raises:
        UsageError: an unknown codec, or a quality that it does not have.
    """
    if not settings.codec or not settings.quality:
        raise UsageError("--codec and --quality need at least one value each")
    if settings.exact and settings.volume == "ridge":
        raise UsageError("--exact goes with --volume gram: k-DPPs are of plain volumes")
    if settings.seed < 0:
        raise UsageError(f"--seed must be 0 or more, got {settings.seed}")
    if settings.threads is not None and settings.threads < 1:
        raise UsageError(f"--threads must be 1 or more, got {settings.threads}")
    space: list[tuple[Codec, int | None]] = []
    for name in dict.fromkeys(settings.codec):
        codec = lookup(CODECS, name, "codec")
        best_first = sorted(set(settings.quality), reverse=True)
        for quality in best_first if codec.qualities else [None]:
            codec.check_quality(quality)
            space.append((codec, quality))
    return space


def _check_classes(seen: Survey, fewest: int) -> None:
    """Refuse classes with too few images; with skip_bad, note the empty ones."""
    for name, photos in zip(seen.images.classes, seen.images.photos, strict=True):
        if len(photos) >= fewest or seen.skip is not None:
            continue
        if not photos:
            raise DataError(
                f"class {name!r} has no image: add some, remove it, or pass --skip-bad to go "
                "on without it"
            )
        raise DataError(
            f"class {name!r} has one image ({photos[0].id}), whose volume is 1 at any quality: "
            "add images, remove it, or pass --skip-bad to keep it and leave it out of R_q"
        )
    _drop_empty(seen)


def _check_scenes(seen: Survey) -> None:
    """Refuse scenes whose boxes would be elsewhere; with skip_bad, of those that can be read."""
    if seen.images.scenes is None:
        return
    if seen.settings.skip_bad:
        _keep(seen, readable(seen))
    progress = seen.progress("checking sizes", len(seen.images))
    check_sides(seen.images.scenes, seen.settings.threads, progress)


def readable(seen: Survey) -> list[int]:
    """Which photos can be decoded; the others are noted."""
    good = []
    photos = seen.images.all_photos
    progress = seen.progress("checking", len(photos))
    with workers(seen.settings.threads) as pool:
        for index, (_, found) in enumerate(ordered(pool, look, photos)):
            progress(1)
            if isinstance(found, ImageError):
                seen.note(found)
            else:
                good.append(index)
    return good


def check_photos(
    train: Sequence[Photo],
    test: Sequence[Photo],
    threads: int | None,
    listener: Callable[[str, dict[str, Any]], None] = lambda kind, fields: None,
) -> list[str]:
    """Refuse photos that cannot be read, before work that would stop at the first of them.

    Args:
        listener: told after every photo how many are checked.

    Returns:
        Test photos that are training photos, too, byte for byte.

    Raises:
        ImageError: about a few of them, and how many more there are.
    """
    sides = (("training", train), ("test", test))  # may have files of one name
    photos = [p._replace(id=f"{side} image {p.id}") for side, of in sides for p in of]
    found = []
    with workers(threads) as pool:
        for _, result in ordered(pool, look, photos):
            found.append(result)
            listener("check", {"images": len(found), "of": len(photos)})
    errors = [str(result) for result in found if isinstance(result, ImageError)]
    if errors:
        more = [f"and {len(errors) - NAMED:,} more"] if len(errors) > NAMED else []
        raise ImageError("; ".join([*errors[:NAMED], *more]))
    learned = set(found[: len(train)])
    return [p.id for p, result in zip(test, found[len(train) :], strict=True) if result in learned]


def look(photo: Photo) -> bytes | ImageError:
    """A digest of what a photo holds, or why it cannot be read."""
    try:
        data = photo.load()
        if isinstance(data, bytes):
            decode(data, photo.id)
    except ImageError as error:
        return error
    return hashlib.sha256(data if isinstance(data, bytes) else data.tobytes()).digest()


def _drop_empty(seen: Survey) -> None:
    """Leave classes without images out of the set, and note them."""
    images = seen.images
    full = [bool(photos) for photos in images.photos]
    for name, any_left in zip(images.classes, full, strict=True):
        if not any_left:
            seen.skipped.append(f"class {name!r}: no readable image")
    if not any(full):
        raise DataError(f"{seen.settings.photos}: no readable image in any class")
    seen.images = replace(
        images,
        classes=tuple(compress(images.classes, full)),
        photos=tuple(compress(images.photos, full)),
        sizes=tuple(compress(images.sizes, full)),
    )


def _keep(seen: Survey, good: list[int]) -> None:
    """Leave all but these photos out of the set."""
    images = seen.images
    ends = np.cumsum([len(photos) for photos in images.photos])[:-1]
    masks = np.split(np.isin(np.arange(len(images)), good), ends)
    seen.images = replace(
        images,
        photos=tuple(list(compress(p, m)) for p, m in zip(images.photos, masks, strict=True)),
        sizes=tuple(list(compress(s, m)) for s, m in zip(images.sizes, masks, strict=True)),
        scenes=None if images.scenes is None else images.scenes.pick(good),
    )
    _drop_empty(seen)
