"""Scenes: images with boxes."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mrdc._utils.errors import DataError
from mrdc._utils.threads import ordered, workers
from mrdc.codec.image import check_pixels, decode
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo

Boxes = NDArray[np.float32]  # (n, 5): left, top, right, bottom in pixels, and the label, from 0

HEADERS = frozenset({"JPEG", "PNG", "WEBP"})  # Pillow knows size and orientation undecoded
NARROWEST = 2  # pixels of a scaled image: torchvision rounds down, maybe to 0
ORIENTATION, TURNED = 0x0112, frozenset({5, 6, 7, 8})  # EXIF: swaps width and height


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images with boxes, read when needed.

    Attributes:
        classes: class names by label, in the order of COCO's category ids.
        categories: COCO category id of each class.
        photos: photos with their file_name as the id.
        sizes: bytes of each file.
        sides: width and height of each image according to the json.
        boxes: boxes of each image, cut to it.
        crowds: boxes of groups (iscrowd), where evaluation ignores detections.
        dropped: number of boxes left out because they are smaller than a pixel.
    """

    classes: tuple[str, ...]
    categories: tuple[int, ...]
    photos: tuple[Photo, ...]
    sizes: tuple[int, ...]
    sides: tuple[tuple[int, int], ...]
    boxes: tuple[Boxes, ...]
    crowds: tuple[Boxes, ...]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.photos)

    def pick(self, indices: Iterable[int]) -> "Scenes":
        """The images at these places."""
        chosen = list(indices)
        return replace(
            self,
            photos=tuple(self.photos[index] for index in chosen),
            sizes=tuple(self.sizes[index] for index in chosen),
            sides=tuple(self.sides[index] for index in chosen),
            boxes=tuple(self.boxes[index] for index in chosen),
            crowds=tuple(self.crowds[index] for index in chosen),
        )

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
    """Training and test scenes with the same classes.

    Attributes:
        train: scenes to learn from.
        test: scenes to evaluate on.
        unlabelled: images without boxes, if the data set has a separate pool of them.
    """

    train: Scenes
    test: Scenes
    unlabelled: tuple[Photo, ...] | None


def as_images(scenes: Scenes) -> ImageSet:
    """The images of scenes as one class."""
    return ImageSet(("images",), (list(scenes.photos),), (list(scenes.sizes),), [], scenes)


def check_sides(
    scenes: Scenes,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> None:
    """Refuse images whose size differs from the json's: their boxes would be misplaced.

    Sizes are compared with the EXIF orientation applied.

    Raises:
        DataError: the first such image.
        ImageError: an image that cannot be read.
    """
    with workers(threads) as pool:
        found = ordered(pool, _side, scenes.photos)
        for (photo, (side, turned)), said in zip(found, scenes.sides, strict=True):
            progress(1)
            if side == said:
                continue
            sizes = (
                f"{photo.id}: {side[0]} x {side[1]} pixels, but the json says {said[0]} x {said[1]}"
            )
            if turned and side == said[::-1]:
                raise DataError(
                    f"{sizes}: its EXIF orientation turns it; the json must have the size and "
                    "boxes of the image as shown, or the file must have no orientation"
                )
            raise DataError(f"{sizes}; both must agree, or its boxes are misplaced")


def check_strips(photos: Sequence[Photo], sides: Sequence[tuple[int, int]], long: int) -> None:
    """Refuse images so narrow that scaling the long side to `long` leaves nothing of them.

    Raises:
        DataError: the first such image.
    """
    for photo, side in zip(photos, sides, strict=True):
        if min(side) * long < NARROWEST * max(side):
            raise DataError(
                f"{photo.id}: {side[0]} x {side[1]} pixels; --long {long} leaves fewer than "
                f"{NARROWEST} on the short side; remove the image, or raise --long"
            )


def shown_sides(photos: Sequence[Photo], threads: int | None) -> list[tuple[int, int]]:
    """Width and height of every photo, EXIF orientation applied.

    Raises:
        ImageError: an image that cannot be read.
    """
    with workers(threads) as pool:
        return [side for _, (side, _) in ordered(pool, _side, photos)]


def _side(photo: Photo) -> tuple[tuple[int, int], bool]:
    """Width and height of a photo as shown, and whether its EXIF orientation swapped them."""
    data = photo.load()
    if isinstance(data, bytes):
        known = _header(data, photo.id)
        if known is not None:
            return known
        data = decode(data, photo.id)
    return (data.shape[1], data.shape[0]), False


def _header(data: bytes, name: str) -> tuple[tuple[int, int], bool] | None:
    """`_side` from the header alone; None if the image must be decoded."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            check_pixels(*image.size, name)
            if image.format not in HEADERS:
                return None
            turned = image.getexif().get(ORIENTATION) in TURNED
            return (image.size[::-1] if turned else image.size), turned
    except Exception:  # Pillow's plug-ins raise many kinds; decoding reports it
        return None
