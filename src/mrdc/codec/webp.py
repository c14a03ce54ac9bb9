"""WebP, lossy."""

from typing import Any

from PIL import Image

from mrdc.codec.base import PillowCodec


class WebP(PillowCodec):
    """About 0.7 of JPEG's bytes for the same look; decodes half as fast."""

    name = "webp"
    format = "WEBP"
    feature = "webp"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "method": 4}
