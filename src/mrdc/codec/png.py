"""PNG, lossless."""

from typing import Any

from PIL import Image

from mrdc.codec.base import PillowCodec


class Png(PillowCodec):
    """Lossless, so without a quality."""

    name = "png"
    qualities = None
    default_quality = None
    format, feature = "PNG", "zlib"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"compress_level": 9}
