"""WebP, lossy."""

from typing import Any

from PIL import Image

from mrdc.codec.base import PillowCodec


class WebP(PillowCodec):
    """Smaller than JPEG that looks the same; slower to encode and decode."""

    name = "webp"
    format, feature = "WEBP", "webp"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        return {"quality": quality, "method": 4}
