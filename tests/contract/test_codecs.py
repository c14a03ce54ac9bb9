"""Rules that every registered codec follows."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import CODECS, Codec
from mrdc.codec.image import decode
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from tests.conftest import pixels

EVERY = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))


def middle(codec: Codec) -> int | None:
    return None if codec.qualities is None else 50


@EVERY
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (16, 16), (33, 64), (100, 9)])
def test_round_trip_keeps_the_shape(codec: Codec, shape: tuple[int, int]) -> None:
    """Decoding gives RGB uint8 of the same size, with the codec or with `decode` alone."""
    image = pixels(0, *shape)
    stream = codec.encode(image, middle(codec))
    back = codec.decode(stream)
    assert back.dtype == np.uint8
    assert back.shape == image.shape
    assert np.array_equal(decode(stream), back)


@EVERY
def test_the_best_quality_is_faithful(codec: Codec) -> None:
    """It changes pixels by a few grey levels at most, and lossless codecs by none."""
    image = pixels(1, 64, 64)
    best = None if codec.qualities is None else codec.qualities[-1]
    back = codec.decode(codec.encode(image, best))
    error = np.abs(back.astype(int) - image).mean()
    assert error == 0 if codec.qualities is None else error < 12


@EVERY
def test_quality_orders_size_and_error(codec: Codec) -> None:
    """A higher quality takes more bytes and changes less."""
    if codec.qualities is None:
        pytest.skip("has no quality")
    image = pixels(2, 96, 96)
    streams = [codec.encode(image, quality) for quality in (5, 30, 60, 95)]
    sizes = [len(stream) for stream in streams]
    errors = [np.abs(codec.decode(stream).astype(int) - image).mean() for stream in streams]
    assert sizes == sorted(set(sizes))
    assert errors == sorted(errors, reverse=True)


@EVERY
def test_bytes_depend_on_the_pixels_alone(codec: Codec) -> None:
    """A view with odd strides encodes like its contiguous copy."""
    view = pixels(4, 40, 80)[:, ::2]
    expected = codec.encode(np.ascontiguousarray(view), middle(codec))
    assert codec.encode(view, middle(codec)) == expected


@EVERY
def test_describes_itself(codec: Codec) -> None:
    """Its encoder with a version, for memory files, and a default quality it accepts."""
    assert codec.name == "original" or any(c.isdigit() for c in codec.encoder)
    assert (codec.default_quality is None) == (codec.qualities is None)
    codec.check_quality(codec.default_quality)


@EVERY
@pytest.mark.parametrize("quality", [0, 101, -5, None, "50", 50.0, True])
def test_refuses_a_quality_it_does_not_have(codec: Codec, quality: Any) -> None:
    """The message names the codec and the range, and shows the value as it was given."""
    rule = "must be a whole number from 1 to 100" if codec.qualities else "has no quality"
    if codec.qualities is None and quality is None:
        codec.check_quality(quality)
        return
    with pytest.raises(UsageError, match=f"codec {codec.name} {rule}, got {quality!r}"):
        codec.encode(pixels(0), quality)


@EVERY
@pytest.mark.parametrize(
    "image", [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8)]
)
def test_refuses_what_is_not_rgb_uint8(codec: Codec, image: np.ndarray) -> None:
    """The message states the expected shape."""
    with pytest.raises(UsageError, match="RGB uint8 of shape"):
        codec.encode(image, middle(codec))


@EVERY
def test_refuses_a_truncated_stream(codec: Codec) -> None:
    """Half a stream is an error, not half an image."""
    stream = codec.encode(pixels(5, 64, 64), middle(codec))
    with pytest.raises(ImageError):
        codec.decode(stream[: len(stream) // 2])


@EVERY
def test_a_memory_gives_back_the_exact_files(codec: Codec, tmp_path: Path) -> None:
    """Also if it stores what they have in common once."""
    images = [pixels(seed, 40, 40 + seed) for seed in range(3)]
    memory = ReplayMemory("1MB", codec=codec.name, quality=middle(codec))
    memory.add({0: images})
    memory.save(tmp_path / "m.mrdc")
    loaded = ReplayMemory.load(tmp_path / "m.mrdc")
    assert audit(tmp_path / "m.mrdc").problems == []
    for index, image in enumerate(images):
        assert loaded.encoded(index) == codec.encode(image, middle(codec))


def test_an_unknown_name_lists_the_choices() -> None:
    """A typo gets the list and the likely name."""
    with pytest.raises(
        UsageError, match=r"unknown codec 'jpg' .*'jpeg'\?\): choose from original, jpeg"
    ):
        CODECS.find("jpg")


@pytest.mark.parametrize("module", ["mrdc.codec", "mrdc.data"])
def test_torch_is_not_imported(module: str) -> None:
    """It takes seconds that commands without training need not spend."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
