"""Compare a codec of your own with JPEG, and store images with it.

    python examples/own_codec.py

The codec writes JPEG files without colour. `mrdc.plan` measures what that does to the features
of the images, compared with ordinary JPEG files in the same bytes; a memory then stores some images
with it. Takes a few seconds on a CPU.
"""

import io
import tempfile
from pathlib import Path

import torch.nn.functional as F
from PIL import Image, __version__
from torch import Tensor

import mrdc
from mrdc.codec.image import Pixels


class GreyJpeg(mrdc.Codec):
    """JPEG files without colour; any codec whose files Pillow opens works like this."""

    name = "grey-jpeg"
    qualities = range(1, 96)
    default_quality = 75

    @property
    def encoder(self) -> str:
        return f"Pillow {__version__}"

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        self.check_quality(quality)
        file = io.BytesIO()
        Image.fromarray(image).convert("L").save(file, "JPEG", quality=quality)
        return file.getvalue()


mrdc.CODECS["grey-jpeg"] = GreyJpeg()  # to open saved files, and for `--codec grey-jpeg`


def coarse(images: Tensor) -> Tensor:
    """Features that need no network, to save time; leave `embed` out to use the default one."""
    return F.adaptive_avg_pool2d(images.float(), 8).flatten(1)


def main() -> None:
    plan = mrdc.plan(
        "textures",
        "8/class",
        codec=("jpeg", GreyJpeg()),
        qualities=(75, 50, 25),
        embed=coarse,
        cache=False,
    )
    for one in plan.candidates:
        print(f"{one!s:<14} {one.quantity:4} images  R_q {one.volume_ratio:8.2g}  {one.verdict}")
    print(plan.sentence())

    stream = mrdc.open_stream("textures")
    memory = mrdc.ReplayMemory("20kB", codec=GreyJpeg(), quality=50)
    memory.add({0: stream.train.photos[0]})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "grey.mrdc"
        memory.save(file)
        size, again = file.stat().st_size, mrdc.ReplayMemory.load(file)
    image, _ = again[0]
    print(f"{len(memory)} images as {again.codec.name} in a file of {size:,} bytes")
    print(f"colour left: {int((image.max(0).values - image.min(0).values).max())} of 255")


if __name__ == "__main__":
    main()
