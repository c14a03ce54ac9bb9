"""The source file itself: what the paper calls quality 100."""

from mrdc.codec.png import Png


class Original(Png):
    """Source bytes, untouched; pixels that never were a file become PNG."""

    name = "original"

    @property
    def encoder(self) -> str:
        return "none (source bytes)"
