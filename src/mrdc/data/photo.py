"""Source images, read when they are needed."""

from collections.abc import Callable
from typing import NamedTuple

from mrdc.codec.image import Pixels


class Photo(NamedTuple):
    """A source image that is read when it is needed."""

    id: str
    load: Callable[[], bytes | Pixels]
