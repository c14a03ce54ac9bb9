"""JPEG 2000, lossy."""

import math
from typing import Any

from PIL import Image

from mrdc.codec.base import PillowCodec


class Jpeg2000(PillowCodec):
    """Quality sets the PSNR, 25.6 dB at 1 and 39 dB at 100, so it looks about like JPEG."""

    name = "jpeg2000"
    format = "JPEG2000"
    feature = "jpg_2000"

    def options(self, quality: int | None, image: Image.Image) -> dict[str, Any]:
        assert quality is not None
        return {
            "quality_mode": "dB",
            "quality_layers": [25.5 + 0.135 * quality],
            "irreversible": True,
            "num_resolutions": min(6, 1 + int(math.log2(min(image.size)))),
            "no_jp2": False,
        }
