"""Training time per image of each method relative to its base method, in real phases."""

import argparse
import time
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from common import as_jpeg, emit, machine, made_up
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.experiments.presets import recipe
from mrdc.methods.options import make_method
from mrdc.training.classes import learn_classes
from mrdc.training.resume import Keeper

BASES = {
    "lucir": ("lucir-aanets", "lucir-dde", "mnemonics", "tpcil"),
    "podnet": ("podnet-aanets", "podnet-dde"),
}


class Watch(Keeper):
    """Records when the second phase starts and ends, and when epochs of its main stage end."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.images = 0
        self.start = self.end = 0.0

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        if fields.get("phase") != 1:
            return
        if kind == "phase_start":
            self.images, self.start = fields["train_images"], time.perf_counter()
        elif kind == "epoch" and fields["stage"] == 0:
            self.ends.append(time.perf_counter())
        elif kind == "phase":
            self.end = time.perf_counter()

    @property
    def per_image(self) -> float:
        """Seconds per image: the median time between ends of epochs, after the first two epochs."""
        pairs = list(zip(self.ends, self.ends[1:], strict=False))[1:]
        return median(b - a for a, b in pairs) / self.images

    @property
    def around(self) -> float:
        """Seconds of the phase before its first epoch ends and after its last."""
        return self.end - self.start - (self.ends[-1] - self.ends[0])


def images(classes: int, each: int, seed: int, size: int) -> ImageSet:
    files = [as_jpeg(pixels) for pixels in made_up(classes * each, size, seed)]
    photos = tuple(
        [Photo(f"{c}/{i}", partial(bytes, files[c * each + i])) for i in range(each)]
        for c in range(classes)
    )
    sizes = tuple([len(files[c * each + i]) for i in range(each)] for c in range(classes))
    return ImageSet(tuple(str(c) for c in range(classes)), photos, sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--classes", type=int, nargs=2, default=(100, 20))
    parser.add_argument("--each", type=int, default=30, help="images per class")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--only", nargs="*", help="methods; default: all")
    given = parser.parse_args()
    count = sum(given.classes)
    stream = Stream(
        images(count, given.each, 0, given.size + 32),
        images(count, 2, 1, given.size + 32),
        tuple(given.classes),
    )
    for base, others in BASES.items():
        paid: dict[str, float] = {}
        for name in (base, *others):
            if given.only and name not in given.only:
                continue
            plain = recipe(name)
            settings = replace(
                plain,
                data="made up",
                train=replace(plain.train, epochs=given.epochs),
                size=given.size,
                network=given.network,
                stem="7x7",
                compile="yes",
            )
            watch = Watch()
            method = make_method(settings.method, settings.options)
            learn_classes(method, stream, settings, keeper=watch)
            paid[name] = watch.per_image
            emit(
                "cost",
                method=name,
                base=base,
                images_per_second=1 / watch.per_image,
                ratio=watch.per_image / paid[base] if base in paid else None,
                around_seconds=watch.around,
                train_images=watch.images,
                epochs=given.epochs,
                network=given.network,
                **machine(),
            )


if __name__ == "__main__":
    main()
