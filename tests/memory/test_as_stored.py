"""`ReplayMemory.as_stored`: new images as they will look once they are stored."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mrdc._utils.errors import UsageError
from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg, pixels


def memory_of(codec: str, quality: int | None = None, **options: Any) -> ReplayMemory:
    """A memory with one class of two images."""
    memory = ReplayMemory("1MB", codec, quality, **options)
    memory.add({0: [pixels(0), pixels(1)]})
    return memory


@pytest.mark.parametrize("codec", [*CODECS, "jpeg@0.5"])
def test_an_image_looks_as_it_does_from_the_memory(codec: str) -> None:
    """For every codec, also where decoding restores the size."""
    memory, image = memory_of(codec), pixels(7, 40, 30)
    shown = memory.as_stored(image)
    memory.add({1: [image]})
    assert np.array_equal(shown, np.moveaxis(memory[2][0].numpy(), 0, -1))


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    """A PIL image, an array, a tensor or a Photo; from a file a tensor, as from the memory."""
    memory, image = memory_of("jpeg", 10), pixels(3, 40, 30)
    array = memory.as_stored(image)
    assert array.shape == (40, 30, 3)
    assert not np.array_equal(array, image)
    picture = memory.as_stored(Image.fromarray(image))
    assert isinstance(picture, Image.Image)
    assert np.array_equal(np.array(picture), array)
    tensor = memory.as_stored(torch.from_numpy(image).permute(2, 0, 1))
    assert torch.equal(tensor, torch.from_numpy(array).permute(2, 0, 1))
    photo = memory.as_stored(Photo("a", lambda: image))
    assert (photo.id, photo.pixels().tolist()) == ("a", array.tolist())
    path = tmp_path / "a.png"
    Image.fromarray(image).save(path)
    for given in (path, str(path), path.read_bytes()):
        assert torch.equal(memory.as_stored(given), tensor)


def test_source_files_that_would_be_kept_are_shown_as_they_are() -> None:
    """Encoding would not make them smaller."""
    memory, source = memory_of("jpeg", 95), jpeg(5, 10)
    expected = torch.from_numpy(CODECS["jpeg"].decode(source)).permute(2, 0, 1)
    assert torch.equal(memory.as_stored(source), expected)


def test_originals_and_an_empty_memory_change_nothing() -> None:
    """But grey images become RGB, and turned ones upright, as later; a file is decoded."""
    image, source = pixels(3), jpeg(4)
    grey, turned = Image.fromarray(image).convert("L"), Image.fromarray(image)
    turned.getexif()[0x0112] = 6
    for memory in (memory_of("original"), ReplayMemory("1MB", "jpeg", 10)):
        assert np.array_equal(memory.as_stored(image), image)
        assert memory.as_stored(grey).mode == "RGB"
        assert memory.as_stored(turned).size == turned.size[::-1]
        assert memory.as_stored(torch.zeros(1, 8, 8, dtype=torch.uint8)).shape == (3, 8, 8)
        decoded = torch.from_numpy(CODECS["jpeg"].decode(source)).permute(2, 0, 1)
        assert torch.equal(memory.as_stored(source), decoded)


def test_images_are_as_faded_as_those_of_the_memory() -> None:
    """Also after it has faded further."""
    images = [pixels(n, 48, 48) for n in range(6)]
    memory = ReplayMemory(Budget(2**20, "originals", 1.0), "jpeg-progressive", 75, fade=True)
    memory.add({0: images})
    whole = memory.as_stored(images[0])
    assert memory.scans() == {10: 6}
    memory.rebudget(Budget(int(0.7 * memory.nbytes), "originals", 1.0))
    assert len(memory.scans()) == 1 or max(memory.scans().values()) >= 3
    level = max(memory.scans(), key=memory.scans().__getitem__)
    faded = memory.as_stored(images[0])
    assert level < 10
    assert not np.array_equal(faded, whole)
    rank = next(n for n, cut in enumerate(cuts(memory)) if cut == level)
    shown = memory.as_stored(images[rank])
    assert np.array_equal(shown, np.moveaxis(memory[rank][0].numpy(), 0, -1))


def cuts(memory: ReplayMemory) -> list[int]:
    """Scans of each image."""
    return [memory.encoded(n).count(b"\xff\xda") for n in range(len(memory))]


def test_workers_of_a_loader_can_use_it() -> None:
    """It is pickled with its memory."""
    memory, image = memory_of("jpeg", 10), pixels(3)
    transform = pickle.loads(pickle.dumps(memory.as_stored))
    assert np.array_equal(transform(image), memory.as_stored(image))


def test_floats_are_refused() -> None:
    with pytest.raises(UsageError, match="image: got float32 tensor; pass a path"):
        memory_of("jpeg", 10).as_stored(torch.ones(3, 8, 8))
