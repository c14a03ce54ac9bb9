"""Codecs that shrink images before they encode them; decoding restores their size.

`jpeg@0.5` stores half the width and half the height. A stream has the shrunk size, so the sides of
a restored image may be a pixel off.
"""

from functools import cache

import numpy as np
from PIL import Image

from mrdc._utils.errors import UsageError
from mrdc.codec.base import Codec
from mrdc.codec.image import Pixels, check_pixels, decode

MARK = "@"
LEAST = 0.01


class Scaled(Codec):
    """Another codec, for images shrunk by `scale`."""

    def __init__(self, base: Codec, scale: float):
        self.base, self.scale = base, scale
        self.name = f"{base.name}{MARK}{scale:g}"  # type: ignore[misc]
        self.qualities = base.qualities  # type: ignore[misc]
        self.default_quality = base.default_quality  # type: ignore[misc]
        self.considered = base.considered  # type: ignore[misc]

    @property
    def encoder(self) -> str:
        return self.base.encoder

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        self._check(image, quality)
        return self.base.encode(resized(image, self.scale), quality)

    def decode(self, data: bytes) -> Pixels:
        return resized(self.base.decode(data), 1 / self.scale)

    def tables(self, quality: int | None) -> bytes:
        return self.base.tables(quality)


def resized(image: Pixels, scale: float) -> Pixels:
    """An image with both sides times `scale`, at least 1 pixel each."""
    height, width = image.shape[:2]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    check_pixels(*size, "image")
    method = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    return np.array(Image.fromarray(image).resize(size, method))


@cache
def _scaled(base: Codec, scale: float) -> Codec:
    return Scaled(base, scale)


def scaled(base: Codec, scale: float) -> Codec:
    """A codec for images shrunk by `scale`; the same object for the same arguments.

    Raises:
        UsageError: not a scale, or a codec without qualities, which changes no pixel.
    """
    if not LEAST <= scale <= 1:
        raise UsageError(f"scale must be from {LEAST:g} to 1, got {scale:g}")
    if scale == 1:
        return base
    if base.qualities is None:
        raise UsageError(f"codec {base.name} changes no pixel, so it cannot have scale {scale:g}")
    return _scaled(base, round(scale, 4))  # as precise as its name


def split_scale(name: str) -> tuple[str, float]:
    """The name of a codec without its scale, and the scale.

    Raises:
        UsageError: what follows the @ is not a scale.
    """
    base, mark, text = name.partition(MARK)
    try:
        scale = float(text) if mark else 1.0
    except ValueError:
        scale = 0.0
    if not LEAST <= scale <= 1:
        rule = f"a number from {LEAST:g} to 1"
        raise UsageError(f"codec {name!r}: what follows the @ must be a scale, {rule}")
    return base, scale


def stored_scale(codec: str, kept: bool) -> float:
    """The scale an image was shrunk by; 1 for `kept` images, which are source files."""
    return 1.0 if kept else split_scale(codec)[1]


def restored(stream: bytes, scale: float) -> bytes | Pixels:
    """A stored image as training sees it: at its size, so as pixels if it was shrunk."""
    return stream if scale == 1 else resized(decode(stream), 1 / scale)
