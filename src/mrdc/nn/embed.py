"""Embed images: features of photos, in batches."""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mrdc._utils.errors import ImageError, UsageError
from mrdc._utils.threads import engine, ordered, workers
from mrdc.codec.image import Pixels
from mrdc.data.crops import stack
from mrdc.data.photo import Photo, digest
from mrdc.data.views import centre_views
from mrdc.distributed.group import world
from mrdc.memory.fill import Skip
from mrdc.nn.batch_runner import Fetch, runner
from mrdc.nn.embed_pieces import WidthError, embed_pieces
from mrdc.nn.embedder import Embedder
from mrdc.nn.feature_cache import FeatureCache


def embed_together(
    photos: Sequence[Photo], embedder: Embedder, threads: int | None = None
) -> Tensor:
    """Features (n, d) of the photos; each process of the run embeds its part, in whole batches."""
    size = embedder.batch_size
    ends = [min(len(photos), size * end) for end in world().bounds(-(-len(photos) // size))]
    start, stop = ends[world().rank : world().rank + 2]
    own = photos[start:stop]
    if embedder.whole or embedder.view is not None:
        rows = embed(own, embedder, threads=threads)[0]
    else:
        views = centre_views(own, embedder.size, size, threads)
        with torch.inference_mode():
            found = [embedder.network(images).float() for images in views]
        rows = torch.cat(found).cpu() if found else torch.empty(0, 0)
    width = max(world().join([rows.shape[1]]))  # a process without photos does not know it
    return world().gather(rows.reshape(len(rows), width), ends)


def embed(
    photos: Sequence[Photo],
    embedder: Embedder,
    *,
    cache: FeatureCache | None = None,
    threads: int | None = None,
    skip: Skip | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> tuple[Tensor, list[int]]:
    """Features (n, d) of the photos, and the positions of those n among them.

    `skip` is called with the error of each photo left out; without it the first one raises.
    """
    others = engine()
    try:
        if others is not None and len(photos) >= others.least:
            return embed_pieces(others, photos, embedder, cache, skip, progress)
        return _embed(photos, embedder, cache, threads, skip, progress)
    except WidthError:
        if cache is None:
            raise UsageError("embed must return equally many features for every image") from None
        print("mrdc: the feature cache is damaged and not used", file=sys.stderr)
        return embed(photos, embedder, threads=threads, skip=skip, progress=progress)


def _embed(
    photos: Sequence[Photo],
    embedder: Embedder,
    cache: FeatureCache | None,
    threads: int | None,
    skip: Skip | None,
    progress: Callable[[int], None],
) -> tuple[Tensor, list[int]]:
    def look(photo: Photo) -> tuple[bytes, Tensor | None, Pixels | Tensor] | ImageError:
        """The key in the cache, features if they are there, or else the image."""
        try:
            data, key = photo.load(), b""
            if cache is not None:
                key = digest(data)
                known = cache.get(key)
                if known is not None:
                    return key, known, known
            return key, None, embedder.prepare(photo.decode(data))
        except ImageError as error:
            return error

    rows: Tensor | None = None  # made when the first features show their width
    good: list[int] = []
    batch: list[tuple[int, bytes, Any]] = []

    def keep(places: list[int], found: Tensor) -> None:
        nonlocal rows
        if rows is None:
            rows = torch.empty(len(photos), found.shape[1])
        if found.shape[1] != rows.shape[1]:
            raise WidthError
        rows[places] = found

    running: deque[tuple[list[int], list[bytes], Fetch]] = deque()

    def compute(images: list[Any]) -> Tensor:
        with torch.inference_mode():
            inputs = torch.stack(images) if embedder.view else stack(images)
            return embedder.network(inputs).float()

    def run() -> None:
        """Start a batch, and fetch the features of the first if enough have been started."""
        places, keys, images = map(list, zip(*batch, strict=True))
        running.append((places, keys, batches.start(partial(compute, images))))
        batch.clear()
        finish(batches.ahead)

    def finish(most: int = 0) -> None:
        while len(running) > most:
            places, keys, fetch = running.popleft()
            features = fetch()
            keep(places, features)
            if cache is not None:
                for key, row in zip(keys, features, strict=True):
                    cache.put(key, row)

    with workers(threads) as pool, runner(embedder.side_by_side, threads) as batches:
        window = (1 + batches.ahead) * embedder.batch_size
        for index, (_, seen) in enumerate(ordered(pool, look, photos, window)):
            progress(1)
            if isinstance(seen, ImageError):
                if skip is None:
                    raise seen
                skip(seen)
                continue
            key, known, image = seen
            if known is not None:
                keep([len(good)], known[None])
            else:
                batch.append((len(good), key, image))
            good.append(index)
            if len(batch) == (1 if embedder.whole else embedder.batch_size):
                run()
        if batch:
            run()
        finish()
    return torch.empty(0, 0) if rows is None else rows[: len(good)], good
