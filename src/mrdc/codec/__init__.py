"""Image codecs, and the registry that names them."""

from mrdc._utils.registry import Registry
from mrdc.codec.avif import Avif
from mrdc.codec.base import Codec
from mrdc.codec.jpeg import Jpeg, JpegOptimised
from mrdc.codec.jpeg2000 import Jpeg2000
from mrdc.codec.jpeg_progressive import JpegProgressive
from mrdc.codec.original import Original
from mrdc.codec.png import Png
from mrdc.codec.scaled import scaled, split_scale
from mrdc.codec.webp import WebP

BUILT_IN = (
    Original(),
    Jpeg(),
    JpegOptimised(),
    JpegProgressive(),
    WebP(),
    Avif(),
    Jpeg2000(),
    Png(),
)


class Codecs(Registry[Codec]):
    """Codecs by name; jpeg@0.5 is jpeg for images shrunk to half their sides."""

    def find(self, name: str) -> Codec:
        base, scale = split_scale(name)
        return scaled(super().find(base), scale)


CODECS = Codecs("codec", "codecs", {codec.name: codec for codec in BUILT_IN})

__all__ = [
    "CODECS",
    "Avif",
    "Codec",
    "Jpeg",
    "Jpeg2000",
    "JpegOptimised",
    "JpegProgressive",
    "Original",
    "Png",
    "WebP",
]
