"""Source files as they are."""

from mrdc.codec.png import Png


class Original(Png):
    """Source bytes, unchanged (quality 100 in the paper); pixels without a file become PNG."""

    name = "original"

    @property
    def encoder(self) -> str:
        return "none (source bytes)"
