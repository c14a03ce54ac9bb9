"""`Replay`: a memory for your own training loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mrdc._utils.errors import BudgetError, UsageError
from mrdc._utils.extras import Tensor, torch
from mrdc._utils.registry import lookup
from mrdc.codec import CODECS
from mrdc.codec.scaled import scaled
from mrdc.data.datasets import Samples, samples_by_label
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.contents import Transform
from mrdc.memory.encode import Arrival, Item
from mrdc.memory.inputs import Columns, Image, as_item, as_items, as_label
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.values import rows_of
from mrdc.planning.plan import as_settings
from mrdc.planning.scan import check_torch, rank
from mrdc.planning.search import (
    Found,
    Pair,
    Pool,
    Progress,
    compress_all,
    encoded_if_known,
    in_order,
    quiet,
    search,
    search_space,
)
from mrdc.planning.selection import SELECTORS, random_choice, usual_selector
from mrdc.planning.settings import ChoiceSettings, SearchSettings

if TYPE_CHECKING:
    from mrdc.nn.embedder import Embedder

FOUND = Found([], None, None, [])  # before any search


class Replay:
    """A memory that ranks the images it learns and chooses how to compress them.

        replay = mrdc.Replay("50MB", embed=model.features, view=evaluation, transform=training)
        replay.learn({label: images})           # after training on new classes
        images, labels = replay.sample(32)      # while training on the next ones

    Args:
        budget: as for `ReplayMemory`.
        quality: "auto" searches for a quality when images are first learned, "dynamic" every
            time; a number, or "original", needs no search.
        embed: ranks images and measures quality. A callable from uint8 images (n, 3, 224, 224),
            or from what `view` makes of them, to features, such as a network without its
            classifier; or a name, as for `plan`.
        view: the evaluation transform of `embed`: from a uint8 image (3, h, w) to its input.
        transform: as for `ReplayMemory`: makes training images of stored ones.
        classes: number of classes expected in the end, if known: a search then plans for their
            share of a fixed budget, not for all of it.
        class_names: names by label.
        accounting, fade: as for `ReplayMemory`.
        original_bytes: mean bytes of an original image, for budgets such as "20/class".
        seed: of random selections and of samples.
        threads: that decode and encode; by default one per core, up to eight.
        progress: called with the name and length of each stage, returns a counter.
        search: settings of a search, as for `plan`: `codec`, `qualities`, `select`, `epsilon`, ...;
            `matched=True` if you show new images by `memory.as_stored`.
    """

    def __init__(
        self,
        budget: Budget | int | str,
        quality: int | str = "auto",
        *,
        embed: "str | Callable[[Tensor], Any] | Embedder" = "lite0",
        view: Callable[[Tensor], Tensor] | None = None,
        transform: Transform | None = None,
        classes: int | None = None,
        class_names: Mapping[int, str] | None = None,
        accounting: Literal["packed", "file"] = "packed",
        fade: bool = False,
        original_bytes: float | None = None,
        seed: int = 0,
        threads: int | None = None,
        progress: Progress = quiet,
        **search: Any,
    ):
        self.settings = _settings(search, accounting)
        self.quality, self.embed, self.view = quality, embed, view
        self.seed, self.threads, self.progress = seed, threads, progress
        self.classes, self.found = classes, FOUND
        self._select = usual_selector(self.settings.select, scenes=False)
        self._searching = quality in ("auto", "dynamic")
        codec, number = _fixed(quality, self.settings)
        self.memory = ReplayMemory(
            budget,
            codec,
            number,
            accounting=accounting,
            fade=fade,
            class_names=class_names,
            transform=transform,
            original_bytes=original_bytes,
            seed=seed,
        )
        self._embedder: Embedder | None = None

    def learn(
        self,
        images: Mapping[int, Iterable[Image]] | Samples,
        values: Mapping[int, Columns] | None = None,
        features: Mapping[int, Any] | None = None,
    ) -> "Replay":
        """Rank the images of each class, choose a quality if needed, and store what fits.

        A class may come again: its new images are ranked among themselves, then as by
        `ReplayMemory.extend`. Images and values are as for `ReplayMemory.add`.

        Args:
            images: by label, or a data set of (image, label) without a transform, such as
                `ImageFolder`, a `Subset` or a `ConcatDataset`.
            features: arrays or tensors (n, d) by label, to rank by instead of `embed`; for a
                fixed quality.

        Raises:
            BudgetError: a class would hold no image, or nothing that fits passes the search.
            ImageError: an image cannot be read.
        """
        photos = self._photos(images)
        if not photos:
            return self
        pool = self._pool(photos, self._given(photos, features))
        made = self._choose(pool, photos) if self._searching else None
        pair = self.memory.codec, self.memory.quality
        rankings: Sequence[Any] = self.found.rankings if made is not None else []
        if made is None:
            given = pool.rankings()
            rankings = compress_all(pool, self.settings, pair, given, known=features is None)[0]
        beside = {as_label(label): columns for label, columns in (values or {}).items()}
        ranked: dict[int, Sequence[Item]] = {}
        for place, (label, order) in enumerate(zip(photos, rankings, strict=True)):
            offered = encoded_if_known(photos[label], made, place)
            pairs = zip(offered, rows_of(beside.get(label, {}), len(offered)), strict=True)
            ranked[label] = in_order([as_item(image, row, "", "") for image, row in pairs], order)
        self.memory._extend(ranked, self.threads)
        return self

    def sample(self, count: int, **options: Any) -> tuple[Any, ...]:
        """Randomly drawn images and their labels, as by `ReplayMemory.sample`."""
        return self.memory.sample(count, **options)

    def __len__(self) -> int:
        return len(self.memory)

    def __repr__(self) -> str:
        return f"<Replay of {self.memory!r}>"

    def _photos(self, images: Mapping[int, Iterable[Image]] | Samples) -> dict[int, list[Photo]]:
        """Photos by label, checked and named."""
        if not isinstance(images, Mapping):
            images = self._samples(images)
        photos: dict[int, list[Photo]] = {}
        for given, of_class in images.items():
            label = as_label(given)
            start = self._seen(label)
            items = as_items(label, of_class, None, start)
            photos[label] = [item.photo for item in items if isinstance(item, Arrival)]
            if len(photos[label]) < len(items):
                raise UsageError(f"class {label} has encoded images: add them to `memory` instead")
            if not items:
                raise UsageError(f"class {label} has no image")
        return photos

    def _samples(self, data: Samples) -> dict[Any, list[Photo]]:
        """The images of a data set by label; new classes have its names."""
        found, names = samples_by_label(data, self._seen)
        for label, name in names.items():
            self.memory.class_names.setdefault(as_label(label), name)
        return {label: [photo for photo, _ in sized] for label, sized in found.items()}

    def _seen(self, label: Any) -> int:
        """Images of a class so far."""
        return self.memory.seen(label) if label in self.memory.labels else 0

    def _given(
        self, photos: Mapping[int, list[Photo]], features: Mapping[int, Any] | None
    ) -> list[Any] | None:
        """The features that a caller has passed, checked, in the order of the photos."""
        if features is None:
            return None
        if self._searching or self.settings.pairing == "independent":
            raise UsageError("features are for a fixed quality and paired ranking: drop them")
        rows = {as_label(label): found for label, found in features.items()}
        for label, of_class in photos.items():
            shape = tuple(np.shape(rows.get(label, ())))
            if len(shape) != 2 or shape[0] != len(of_class):
                raise UsageError(
                    f"features of class {label} must have the shape ({len(of_class)}, d), got "
                    f"{shape}"
                )
        return [rows[label] for label in photos]

    def _pool(self, photos: Mapping[int, list[Photo]], given: list[Any] | None) -> Pool:
        """The images with their features, if these are needed."""
        names = {label: self.memory.class_names.get(label, str(label)) for label in photos}
        if len({*names.values()}) < len(names):
            names = {label: str(label) for label in photos}
        sizes = tuple([0] * len(of_class) for of_class in photos.values())  # not known
        images = ImageSet(tuple(names.values()), tuple(photos.values()), sizes)
        needed = self._searching or self.settings.pairing == "independent"
        needed |= SELECTORS.find(self._select) is not random_choice
        features: Sequence[Any] = [np.empty((len(of_class), 0)) for of_class in images.photos]
        if given is not None:
            features = given
        elif needed:
            check_torch(needed, self._select)
            rows = self._features(images.all_photos, "embedding originals")
            features = torch.split(rows, [len(of_class) for of_class in images.photos])
        return Pool(
            images,
            features,
            self._features,
            lambda rows, originals: rank(self._select, rows, self.seed, originals),
            threads=self.threads,
            progress=self.progress,
        )

    def _features(self, photos: Sequence[Photo], stage: str) -> Tensor:
        from mrdc.nn.embed import embed
        from mrdc.nn.embedder import as_embedder, load_embedder, with_size

        if self._embedder is None:
            given = as_embedder(self.embed, self.view)
            self._embedder = given or load_embedder(with_size(str(self.embed), photos))
        count = self.progress(stage, len(photos))
        return embed(photos, self._embedder, threads=self.threads, progress=count)[0]

    def _choose(self, pool: Pool, new: Iterable[int]) -> ReplayMemory:
        """Search for a codec and quality, and return the images it has encoded."""
        seen = max(len({*self.memory.labels, *new}), self.classes or 0)
        share = self.memory.budget.part(len(pool.images.classes) / seen)
        found = search(pool, share, self.settings)
        if found.chosen is None or found.memory is None:
            tried = ", ".join(f"{c} ({c.verdict})" for c in found.candidates)
            raise BudgetError(
                f"no quality passes and originals do not fit: {tried}; raise the budget"
            )
        self.memory.codec, self.memory.quality = found.memory.codec, found.memory.quality
        self.found, self._searching = replace(found, memory=None), self.quality == "dynamic"
        return found.memory


def _settings(search: Mapping[str, Any], accounting: Any) -> ChoiceSettings:
    """Settings of a search from keyword arguments."""
    known = {field.name: field for field in fields(ChoiceSettings)}
    for name in search:
        lookup(known, name, "setting of Replay")
    return ChoiceSettings(**as_settings({**search, "accounting": accounting}))  # type: ignore[typeddict-item]


def _fixed(quality: int | str, settings: SearchSettings) -> Pair:
    """Codec and quality for a memory; the first candidate until a search has chosen."""
    space = search_space(settings)
    if quality in ("auto", "dynamic"):
        return space[0]
    if quality == "original":
        return CODECS["original"], None
    if isinstance(quality, str):
        raise UsageError(f"quality must be auto, dynamic, original or a number, got {quality!r}")
    if len(settings.codec) > 1:
        raise UsageError(f"quality {quality} needs one codec, got {', '.join(settings.codec)}")
    if len(settings.scale) > 1:
        raise UsageError(f"quality {quality} needs one scale, got {len(settings.scale)}")
    return scaled(CODECS.find(settings.codec[0]), settings.scale[0]), quality
