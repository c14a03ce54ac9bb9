"""What every adapter needs: rank images by class, choose a quality once, store within bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.errors import BudgetError, UsageError
from mrdc.codec import CODECS
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.scan import rank
from mrdc.planning.search import Pool, search
from mrdc.planning.selection import SELECTORS, random_choice
from mrdc.planning.settings import SearchSettings

Columns = Mapping[str, NDArray[Any]]  # values by name, (n, ...)
Embed = Callable[[Sequence[Photo]], Tensor]  # photos to features (n, d)


class Store:
    """Images of old classes within a byte budget.

    Args:
        budget: bytes, such as "20MB" or 20_000_000.
        quality: "auto" chooses by R_q among the first images that arrive, for good; "original"
            keeps files as they are; or a number.
        codec: a name in `CODECS`.
        select: how images of a class are ranked; a name in `SELECTORS`.
        classes: how many classes there will be, if known: the quality is then chosen for the share
            of the budget that the first classes will have in the end.
        seed: of random selections.
    """

    def __init__(
        self,
        budget: int | str,
        *,
        quality: int | str = "auto",
        codec: str = "jpeg",
        select: str = "herding",
        classes: int | None = None,
        seed: int = 0,
    ):
        SELECTORS.find(select)
        self.codec, self.select, self.classes, self.seed = codec, select, classes, seed
        self.choosing = quality == "auto"
        if isinstance(quality, str) and quality not in ("auto", "original"):
            raise UsageError(f"quality must be auto, original or a number, got {quality!r}")
        pair = ("original", None) if isinstance(quality, str) else (codec, quality)
        self.memory = ReplayMemory(budget, *pair)
        if self.memory.budget.unit != "bytes":
            raise UsageError(f"budget must be in bytes, such as 20MB, got {budget!r}")

    def learn(
        self,
        photos: Mapping[int, Sequence[Photo]],
        embed: Embed,
        values: Mapping[int, Columns] | None = None,
    ) -> None:
        """Add images by label; `embed` is called with photos if a ranking or R_q needs features.

        Args:
            values: values beside the images, by label and name, one for each image.

        Raises:
            BudgetError: the budget has no room for one image of each class.
        """
        images = ImageSet(
            tuple(map(str, photos)), tuple(map(list, photos.values())), tuple([] for _ in photos)
        )
        drawn = SELECTORS.find(self.select) is random_choice
        features: Sequence[Tensor] = [torch.empty(len(of), 0) for of in images.photos]
        if self.choosing or not drawn:
            rows = embed(images.all_photos)
            features = torch.split(rows, [len(of_class) for of_class in images.photos])
        pool = Pool(
            images,
            features,
            lambda some, stage: embed(some),
            lambda rows: rank(self.select, rows, self.seed),
        )
        if self.choosing:
            self._choose(pool)
        new: dict[int, list[Photo]] = {}
        beside: dict[int, Columns] = {}
        for (label, of_class), order in zip(photos.items(), pool.rankings(), strict=True):
            ranked = [of_class[i] for i in order]
            columns = {name: rows[order] for name, rows in (values or {}).get(label, {}).items()}
            if label in self.memory.labels:
                self.memory.extend(label, ranked, values=columns)
            else:
                new[label], beside[label] = ranked, columns
        if new:
            self.memory.add(new, values=beside)

    def _choose(self, pool: Pool) -> None:
        """Choose a codec and quality for all images from now on."""
        budget = self.memory.budget
        if self.classes:
            part = min(1.0, len(pool.images.classes) / self.classes)
            budget = replace(budget, amount=budget.amount * part)
        found = search(pool, budget, SearchSettings(codec=(self.codec,)))
        if found.chosen is None:
            tried = ", ".join(f"{c} ({c.verdict})" for c in found.candidates)
            raise BudgetError(f"no quality passes and originals do not fit: {tried}")
        self.memory.codec = CODECS.find(found.chosen.codec)
        self.memory.quality = found.chosen.quality
        self.choosing = False
