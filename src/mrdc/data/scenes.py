"""Scenes: images with boxes."""

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mrdc._utils.errors import DataError
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import FORMATS, check_pixels, decode
from mrdc.data.photo import Photo

Boxes = NDArray[np.float32]  # (n, 5): left, top, right, bottom in pixels, and the label, from 0

HEADERS = frozenset({"JPEG", "PNG", "WEBP"})  # Pillow knows size and orientation undecoded
NARROWEST = 2  # pixels of a scaled image: torchvision rounds down, maybe to 0
ORIENTATION, TURNED = 0x0112, frozenset({5, 6, 7, 8})  # EXIF: swaps width and height


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images with boxes, read when needed."""

    classes: tuple[str, ...]  # names by label, in the order of COCO's category ids
    categories: tuple[int, ...]  # COCO category id of each class
    photos: tuple[Photo, ...]  # with their file_name as the id
    sizes: tuple[int, ...]  # bytes of each file
    sides: tuple[tuple[int, int], ...]  # width and height of each image according to the json
    boxes: tuple[Boxes, ...]  # of each image, cut to it
    crowds: tuple[Boxes, ...]  # boxes of groups (iscrowd), where evaluation ignores detections
    dropped: int = 0  # boxes left out because they are smaller than a pixel

    def __len__(self) -> int:
        return len(self.photos)

    def pick(self, indices: Iterable[int]) -> "Scenes":
        """The images at these places."""
        chosen = list(indices)
        names = ("photos", "sizes", "sides", "boxes", "crowds")
        parts: dict[str, Any] = {n: tuple(getattr(self, n)[i] for i in chosen) for n in names}
        return replace(self, **parts)

    def by_id(self) -> dict[str, Boxes]:
        """Boxes by the id of their photo."""
        return dict(zip((photo.id for photo in self.photos), self.boxes, strict=True))

    def as_json(self) -> dict[str, int]:
        """Counts of boxes and classes, and of boxes that no memory holds."""
        return {
            "boxes": sum(map(len, self.boxes)),
            "classes": len(self.classes),
            "dropped": self.dropped,
            "crowds": sum(map(len, self.crowds)),
        }


@dataclass(frozen=True, eq=False)
class SceneSplits:
    """Training and test scenes with the same classes."""

    train: Scenes
    test: Scenes
    unlabelled: tuple[Photo, ...] | None  # images without boxes, if there is a pool of them


def check_sides(
    scenes: Scenes, threads: int | None = None, progress: Callable[[int], None] = lambda count: None
) -> None:
    """Refuse images whose size, as shown, differs from the json's: boxes would be misplaced."""
    with workers(threads) as pool:
        found = ordered(pool, _side, scenes.photos)
        for (photo, (side, turned)), said in zip(found, scenes.sides, strict=True):
            progress(1)
            if side == said:
                continue
            shown = f"{photo.id}: {side[0]} x {side[1]} pixels"
            rule = "; both must agree, or its boxes are misplaced"
            if turned and side == said[::-1]:
                rule = (
                    ": its EXIF orientation turns it; the json must have the size and boxes of "
                    "the image as shown, or the file must have no orientation"
                )
            raise DataError(f"{shown}, but the json says {said[0]} x {said[1]}{rule}")


def check_strips(photos: Sequence[Photo], sides: Sequence[tuple[int, int]], long: int) -> None:
    """Refuse images so narrow that scaling the long side to `long` leaves nothing of them."""
    for photo, side in zip(photos, sides, strict=True):
        if min(side) * long < NARROWEST * max(side):
            few = f"--long {long} leaves fewer than {NARROWEST} on the short side"
            shown = f"{photo.id}: {side[0]} x {side[1]} pixels"
            raise DataError(f"{shown}; {few}; remove the image, or raise --long")


def shown_sides(photos: Sequence[Photo], threads: int | None) -> list[tuple[int, int]]:
    """Width and height of every photo, EXIF orientation applied."""
    with workers(threads) as pool:
        return [side for _, (side, _) in ordered(pool, _side, photos)]


def _side(photo: Photo) -> tuple[tuple[int, int], bool]:
    """Width and height of a photo as shown, and whether its EXIF orientation swapped them."""
    data = photo.load()
    if isinstance(data, bytes):
        file = io.BytesIO(data)
        with suppress(Exception), Image.open(file, formats=FORMATS) as image:  # decoding reports it
            check_pixels(*image.size, photo.id)
            if image.format in HEADERS:
                turned = image.getexif().get(ORIENTATION) in TURNED
                return (image.size[::-1] if turned else image.size), turned
        data = decode(data, photo.id)
    return (data.shape[1], data.shape[0]), False
