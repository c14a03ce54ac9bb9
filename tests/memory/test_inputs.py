"""Images that callers may pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg, pixels


def stored(image: Any) -> tuple[Pixels, str]:
    """The pixels and the name that a lossless memory holds of an image."""
    memory = ReplayMemory("1MB", "png")
    memory.extend(5, [image])
    return memory[0][0].permute(1, 2, 0).numpy(), memory.sources(5)[0]


GREY = pixels(0)[:, :, 0]
RGB = np.repeat(GREY[:, :, None], 3, axis=2)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (pixels(0), pixels(0)),
        (np.asfortranarray(pixels(0)), pixels(0)),
        (GREY, RGB),
        (GREY[:, :, None], RGB),
        (torch.from_numpy(pixels(0)).permute(2, 0, 1), pixels(0)),
        (torch.from_numpy(GREY.copy())[None], RGB),
        (torch.from_numpy(GREY.copy()), RGB),
        (Image.fromarray(pixels(0)), pixels(0)),
        (Image.fromarray(GREY), RGB),
        (CODECS["png"].encode(pixels(0)), pixels(0)),
    ],
)
def test_images_of_every_kind_are_stored(image: Any, expected: Pixels) -> None:
    """With their own pixels, named by label and number."""
    found, name = stored(image)
    np.testing.assert_array_equal(found, expected)
    assert name == "5/0"


def test_paths_are_files(tmp_path: Path) -> None:
    """Files are named by path and keep their bytes; a missing one is an error."""
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(0))
    for given in (path, str(path)):
        memory = ReplayMemory("1MB", "original")
        memory.extend(0, [given])
        assert (memory.encoded(0), memory.sources(0)) == (jpeg(0), [str(path)])
    with pytest.raises(ImageError, match=r"none\.jpg: cannot be read \(No such file"):
        memory.extend(0, [tmp_path / "none.jpg"])


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (pixels(0).astype(np.float32), "float32 array"),
        (torch.rand(3, 8, 8), "float32 tensor"),
        (pixels(0).astype(np.int64), "int64 array"),
        (np.zeros((3, 8, 9), np.uint8), r"array of shape \(3, 8, 9\)"),
        (torch.zeros(8, 9, 3, dtype=torch.uint8), r"tensor of shape \(8, 9, 3\)"),
        (torch.zeros(2, 3, 8, 9, dtype=torch.uint8), r"tensor of shape \(2, 3, 8, 9\)"),
        (np.zeros((0, 4, 3), np.uint8), r"array of shape \(0, 4, 3\)"),
        (bytearray(jpeg(0)), "bytearray"),
        (None, "NoneType"),
        ([jpeg(0)], "list"),
    ],
)
def test_other_images_are_refused_by_name(image: Any, what: str) -> None:
    """Before anything is encoded."""
    memory = ReplayMemory("1MB")
    with pytest.raises(UsageError, match=f"image 1 of class 3: got {what}; pass a path, the bytes"):
        memory.add({3: [jpeg(0), image]})
    assert len(memory) == 0


def test_one_image_is_not_a_list() -> None:
    """A path, or the bytes of a file, instead of a list."""
    for given in ("a.jpg", jpeg(0)):
        with pytest.raises(UsageError, match=r"images of class 3 are one (str|bytes): pass"):
            ReplayMemory("1MB").add({3: given})  # type: ignore[dict-item]


def test_pillow_images_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    """They are decoded when they are stored."""
    (tmp_path / "a.jpg").write_bytes(jpeg(0)[:-200])
    with Image.open(tmp_path / "a.jpg") as image, pytest.raises(ImageError, match="3/0: the image"):
        ReplayMemory("1MB").add({3: [image]})


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_could_have_are_refused(name: str) -> None:
    """They could not be read back from a memory file."""
    memory = ReplayMemory("1MB")
    with pytest.raises(
        UsageError, match=r"image 0 of class 1: '.*' cannot be the name of an image"
    ):
        memory.add({1: [Photo(name, lambda: jpeg(0))]})
    assert len(memory) == 0
