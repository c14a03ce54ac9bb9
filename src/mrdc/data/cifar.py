"""CIFAR-100 (Krizhevsky, 2009), through torchvision."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.exceptions import VisibleDeprecationWarning

from mrdc._utils.errors import DataError
from mrdc.codec.image import Pixels
from mrdc.data.files import Listing
from mrdc.data.images import ImageSet, gather
from mrdc.data.photo import Photo

FOLDER = "cifar-100-python"

# The published table. The files hold it as well, but torchvision does not pass it on.
SUPERCLASSES = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}


def cifar100(root: Path) -> tuple[ImageSet, ImageSet]:
    """Open training and test images in cifar-100-python/, or in the folder that holds it.

    Photos load as pixels, and the size of an image is that of its raw pixels. torchvision checks
    the files against the published MD5 before it unpickles them.

    Raises:
        DataError: missing, or not the published files.
    """
    base = root.parent if root.name == FOLDER else root
    return _part(base, "train"), _part(base, "test")


def superclasses(classes: Sequence[str]) -> tuple[str, ...]:
    """The superclass of each class of CIFAR-100."""
    table = {name: group for group, names in SUPERCLASSES.items() for name in names}
    return tuple(table[name] for name in classes)


def _part(root: Path, part: str) -> ImageSet:
    from torchvision.datasets import CIFAR100

    try:
        with warnings.catch_warnings():
            # Numpy 2.4.0 warns about types in the files (pytorch/vision#9340).
            warnings.simplefilter("ignore", VisibleDeprecationWarning)
            data = CIFAR100(root, train=part == "train", download=False)
    except (RuntimeError, OSError):
        raise DataError(
            f"{root / FOLDER}: missing, or not CIFAR-100 as published; "
            f"unpack cifar-100-python.tar.gz ({CIFAR100.url}) in {root}"
        ) from None
    entries = [
        (
            data.classes[label],
            Photo(f"{part}/{number:05d}", partial(_pixels, data.data, number)),
            data.data[number].nbytes,
        )
        for number, label in enumerate(data.targets)
    ]
    return gather(Listing(entries, sorted(data.classes), []))


def _pixels(images: Pixels, number: int) -> Pixels:
    return np.ascontiguousarray(images[number])
