"""What every codec in the table must do."""

import numpy as np
import pytest

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import CODECS, Codec, lookup
from mrdc.codec.image import decode
from tests.conftest import pixels

EVERY = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))


def middle(codec: Codec) -> int | None:
    return None if codec.qualities is None else 50


@EVERY
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (16, 16), (33, 64), (100, 9)])
def test_round_trip_keeps_the_shape(codec: Codec, shape: tuple[int, int]) -> None:
    """Decoding gives RGB uint8 of the size that went in."""
    image = pixels(0, *shape)
    back = codec.decode(codec.encode(image, middle(codec)))
    assert back.dtype == np.uint8
    assert back.shape == image.shape


@EVERY
def test_a_memory_reads_it_as_it_reads_photos(codec: Codec) -> None:
    """What is stored is decoded by what it is, whatever codec has made it."""
    stream = codec.encode(pixels(0, 16, 16), middle(codec))
    assert np.array_equal(decode(stream), codec.decode(stream))


@EVERY
def test_round_trip_is_faithful_at_its_best(codec: Codec) -> None:
    """The best quality changes pixels by a few grey levels at most; lossless ones not at all."""
    image = pixels(1, 64, 64)
    best = None if codec.qualities is None else codec.qualities[-1]
    back = codec.decode(codec.encode(image, best))
    error = np.abs(back.astype(int) - image).mean()
    assert error == 0 if codec.qualities is None else error < 12


@EVERY
def test_quality_orders_size_and_error(codec: Codec) -> None:
    """More quality takes more bytes and changes less."""
    if codec.qualities is None:
        pytest.skip("has no quality")
    image = pixels(2, 96, 96)
    streams = [codec.encode(image, quality) for quality in (5, 30, 60, 95)]
    sizes = [len(stream) for stream in streams]
    errors = [np.abs(codec.decode(stream).astype(int) - image).mean() for stream in streams]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4
    assert errors == sorted(errors, reverse=True)


@EVERY
def test_bytes_are_deterministic(codec: Codec) -> None:
    """The same pixels and quality give the same bytes."""
    image = pixels(3, 48, 40)
    assert codec.encode(image, middle(codec)) == codec.encode(image.copy(), middle(codec))


@EVERY
def test_layout_in_memory_does_not_matter(codec: Codec) -> None:
    """A view with odd strides encodes as its contiguous copy does."""
    view = pixels(4, 40, 80)[:, ::2]
    expected = codec.encode(np.ascontiguousarray(view), middle(codec))
    assert codec.encode(view, middle(codec)) == expected


@EVERY
def test_names_its_encoder_and_version(codec: Codec) -> None:
    """A memory file can say what made its bytes."""
    assert codec.encoder
    assert codec.name == "original" or any(c.isdigit() for c in codec.encoder)


@EVERY
@pytest.mark.parametrize("quality", [0, 101, -5, None])
def test_refuses_a_quality_it_does_not_have(codec: Codec, quality: int | None) -> None:
    """The message names the codec and the range."""
    if codec.qualities is None:
        with pytest.raises(UsageError, match=f"codec {codec.name} has no quality, got 50"):
            codec.encode(pixels(0), 50)
    else:
        with pytest.raises(UsageError, match=f"codec {codec.name} must be .* from 1 to 100"):
            codec.encode(pixels(0), quality)


@EVERY
@pytest.mark.parametrize(
    "image", [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8)]
)
def test_refuses_what_is_not_rgb_uint8(codec: Codec, image: np.ndarray) -> None:
    """The message says what came."""
    with pytest.raises(UsageError, match="RGB uint8 of shape"):
        codec.encode(image, middle(codec))


@EVERY
def test_refuses_a_cut_stream(codec: Codec) -> None:
    """Half a stream is an error, not half an image."""
    stream = codec.encode(pixels(5, 64, 64), middle(codec))
    with pytest.raises(ImageError):
        codec.decode(stream[: len(stream) // 2])


def test_lookup_lists_the_choices_and_guesses() -> None:
    """A typo gets the list and the likely name."""
    with pytest.raises(
        UsageError, match=r"unknown codec 'jpg': choose from original, jpeg.*'jpeg'\?"
    ):
        lookup(CODECS, "jpg", "codec")
