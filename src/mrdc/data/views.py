"""Evaluation views of photos, made by processes or threads."""

from collections.abc import Iterator, Sequence
from functools import partial

from mrdc._utils.extras import Tensor, torch
from mrdc._utils.forked import crew
from mrdc._utils.ring import Ring
from mrdc.codec.image import Pixels
from mrdc.data.crops import centre
from mrdc.data.photo import Photo


def centre_views(
    photos: Sequence[Photo], size: int, batch: int, threads: int | None = None
) -> Iterator[Tensor]:
    """Uint8 centre crops (n, 3, size, size) of photos in order, channels last in memory."""
    count = len(photos)
    fill, shape = partial(_fill, photos, size), (size, size, 3)
    ring = Ring(fill, shape, min(batch, count), crew(threads, count))
    for views in ring.groups([range(n, min(n + batch, count)) for n in range(0, count, batch)]):
        yield torch.from_numpy(views.copy()).permute(0, 3, 1, 2)


def _fill(photos: Sequence[Photo], size: int, place: int, view: Pixels) -> None:
    view[:] = centre(photos[place].pixels(), size)
