"""Embed photos by an engine's workers; the feature cache stays with this process.

A worker reads and hashes every photo of its piece, and embeds those whose features are not cached.
Features enter the cache when their piece is done, so a run that was killed resumes from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mrdc._utils.errors import ImageError
from mrdc._utils.threads import Engine, only_there
from mrdc.data.photo import Photo, digest, loaded, loaded_photo
from mrdc.memory.fill import Skip
from mrdc.nn.feature_cache import FeatureCache

if TYPE_CHECKING:
    from mrdc.nn.embedder import Embedder

CHUNK = 32  # photos that a worker holds at a time, or a batch of the network if that is larger
TORCH_THREADS = 2  # of a worker, at most: oneDNN rounds alike from two threads on, one differs

Known = NDArray[np.uint64]  # the first bytes of digests, sorted
Seen = ImageError | tuple[bytes, Tensor | None]  # digest and features; None if these are known


class WidthError(Exception):
    """Rows of features of different widths."""


def embed_pieces(
    engine: Engine,
    photos: Sequence[Photo],
    embedder: "Embedder",
    cache: FeatureCache | None,
    skip: Skip | None,
    progress: Callable[[int], None],
) -> tuple[Tensor, list[int]]:
    """Features (n, d) of the photos, and the positions of those n among them, as `embed`."""
    rows: Tensor | None = None
    good: list[int] = []
    for place, seen in enumerate(_look(engine, photos, embedder, cache)):
        progress(1)
        if isinstance(seen, ImageError):
            if skip is None:
                raise seen
            skip(seen)
            continue
        row = _row(photos[place], embedder, cache, *seen)
        if rows is None:
            rows = torch.empty(len(photos), len(row))
        if len(row) != rows.shape[1]:
            raise WidthError
        rows[len(good)] = row
        good.append(place)
    return torch.empty(0, 0) if rows is None else rows[: len(good)], good


def _look(
    engine: Engine, photos: Sequence[Photo], embedder: "Embedder", cache: FeatureCache | None
) -> Iterator[Seen]:
    """Result of the workers for each photo, in order; errors are confirmed here."""
    known = np.empty(0, np.uint64) if cache is None else cache.known()
    threads = min(TORCH_THREADS, torch.get_num_threads())
    function = EmbedPiece(engine.share((embedder, known)), threads)
    pieces = engine.pieces(photos)
    inline = not engine.sends(photos[0])
    sent = [Piece(piece, inline) for piece in pieces]
    done = engine.map(function, sent, gpu=embedder.device.type == "cuda")
    for piece, found in zip(pieces, done, strict=True):
        for photo, seen in zip(piece, found, strict=True):
            yield _confirmed(photo, seen) if isinstance(seen, ImageError) else seen


def _confirmed(photo: Photo, error: ImageError) -> ImageError:
    """The error of a photo that cannot be read here either."""
    try:
        photo.pixels()
    except ImageError as same:
        return same
    only_there(error)


def _row(
    photo: Photo, embedder: "Embedder", cache: FeatureCache | None, key: bytes, row: Tensor | None
) -> Tensor:
    """Features of a photo: new ones, which are cached, or those in the cache."""
    if row is None and cache is not None:
        row = cache.get(key)
    elif row is not None and cache is not None:
        cache.put(key, row)
    if row is None:  # dropped meanwhile, or another digest with the same first bytes
        from mrdc.nn.embed import embed

        row = embed([photo], embedder)[0][0]
    return row


@dataclass(frozen=True)
class Piece:
    """Some photos; `inline` ones can be read only by this process, so their contents are sent."""

    photos: Sequence[Photo]
    inline: bool

    def __reduce__(self) -> tuple[type["Piece"], tuple[Sequence[Photo], bool]]:
        return Piece, (loaded(self.photos) if self.inline else self.photos, False)


@dataclass(frozen=True)
class EmbedPiece:
    """Embeds the photos of a piece: what a worker does."""

    shared: Callable[[], tuple["Embedder", Known]]
    threads: int  # of torch

    def __call__(self, piece: Piece) -> list[Seen]:
        torch.set_num_threads(self.threads)
        embedder, known = self.shared()
        size = max(CHUNK, embedder.batch_size)
        starts = range(0, len(piece.photos), size)
        chunks = (piece.photos[start : start + size] for start in starts)
        return [seen for chunk in chunks for seen in _embedded(chunk, embedder, known)]


def _embedded(photos: Sequence[Photo], embedder: "Embedder", known: Known) -> list[Seen]:
    """Embed some photos at a time, without those whose features are known."""
    from mrdc.nn.embed import embed

    found: list[Seen] = []
    new: dict[int, tuple[bytes, Photo]] = {}  # digests and photos by place
    for place, photo in enumerate(photos):
        try:
            data = photo.load()
        except ImageError as error:
            found.append(error)
            continue
        key = digest(data)
        found.append((key, None))
        if not _is_known(key, known):
            new[place] = key, loaded_photo(photo.id, data)
    errors: list[ImageError] = []
    rows, good = embed([one for _, one in new.values()], embedder, threads=1, skip=errors.append)
    done, bad = dict(zip(good, rows, strict=True)), iter(errors)
    for number, (place, (key, _)) in enumerate(new.items()):
        found[place] = (key, done[number]) if number in done else next(bad)
    return found


def _is_known(key: bytes, known: Known) -> bool:
    first = np.frombuffer(key[:8], np.uint64)
    place = np.searchsorted(known, first)[0]
    return bool(place < len(known) and known[place] == first[0])
