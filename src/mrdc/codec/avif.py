"""AVIF, lossy."""

from typing import Any

from PIL import Image

from mrdc.codec.base import PillowCodec


class Avif(PillowCodec):
    """Small files at photo size, wasteful under 100 px; slow to encode."""

    name = "avif"
    format, feature = "AVIF", "avif"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "speed": 6, "subsampling": "4:2:0", "max_threads": 1}
