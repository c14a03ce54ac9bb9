"""Base classes for codecs: pixels to bytes at a quality, and back."""

import io
from abc import ABC, abstractmethod
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import PIL
from PIL import Image, features

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec.image import Pixels, decode


class Codec(ABC):
    """An image format, with or without a quality setting.

    Attributes:
        name: the key in `CODECS`.
        qualities: allowed values of `quality`; None without a quality setting.
        default_quality: quality to use when none is given; None without a quality setting.
        considered: qualities that a search tries; None for those of the paper.
        encoder: library and version that produce the bytes.
    """

    name: ClassVar[str]
    qualities: ClassVar[range | None] = range(1, 101)
    default_quality: ClassVar[int | None] = 75
    considered: ClassVar[tuple[int, ...] | None] = None

    @property
    @abstractmethod
    def encoder(self) -> str: ...

    @abstractmethod
    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        """Encode RGB uint8 pixels (height, width, 3) as a file that Pillow can open."""

    def decode(self, data: bytes) -> Pixels:
        """Decode bytes to RGB uint8 pixels (height, width, 3)."""
        return decode(data)

    def tables(self, quality: int | None) -> bytes:
        """Header bytes shared by all streams of a quality; empty if there are none."""
        return b""

    def check_quality(self, quality: SupportsIndex | None) -> None:
        """Refuse a quality this codec does not have.

        Raises:
            UsageError: not a whole number in range, or given to a codec without quality.
        """
        if self.qualities is None:
            if quality is not None:
                raise UsageError(f"codec {self.name} has no quality, got {quality!r}")
            return
        whole = isinstance(quality, int | np.integer) and not isinstance(quality, bool)
        if not whole or quality not in self.qualities:
            rule = f"a whole number from {self.qualities[0]} to {self.qualities[-1]}"
            raise UsageError(f"quality of codec {self.name} must be {rule}, got {quality!r}")

    def _check(self, image: Pixels, quality: int | None) -> None:
        self.check_quality(quality)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            rule = "image must be RGB uint8 of shape (height, width, 3)"
            raise UsageError(f"{rule}, got {image.dtype} of shape {image.shape}")


class PillowCodec(Codec):
    """A codec written by Pillow: a format and its save options."""

    format: ClassVar[str]
    feature: ClassVar[str]

    @property
    def encoder(self) -> str:
        return f"Pillow {PIL.__version__} ({self.feature} {features.version(self.feature)})"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        """Keyword arguments for Pillow's `save`."""
        return {"quality": quality}

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        self._check(image, quality)
        if not features.check(self.feature):
            raise UsageError(f"codec {self.name} needs a Pillow built with {self.feature}")
        picture = Image.fromarray(image)
        buffer = io.BytesIO()
        try:
            picture.save(buffer, self.format, **self.options(quality, picture))
        except Exception as error:  # Pillow raises many kinds, e.g. for a side that is too long
            raise ImageError(f"cannot be written as {self.name}: {error}") from None
        return buffer.getvalue()
