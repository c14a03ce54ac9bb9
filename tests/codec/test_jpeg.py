"""Shared JPEG tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mrdc.codec.image
import mrdc.codec.jpeg
from mrdc.codec.image import decode
from mrdc.codec.jpeg import Jpeg, JpegOptimised, join, split
from tests.conftest import jpeg, pixels


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 100), st.integers(0, 99))
def test_join_undoes_split(height: int, width: int, quality: int, seed: int) -> None:
    """Bit-exact for any size and quality."""
    stream = jpeg(seed, quality, height, width)
    assert join(*split(stream)) == stream


@given(st.integers(1, 100))
def test_images_of_all_sizes_share_the_tables_of_a_quality(quality: int) -> None:
    """The codec knows them before it has seen an image; they are most of a small file."""
    tables = Jpeg().tables(quality)
    assert len(tables) > 600
    for seed, size in enumerate([(8, 8), (31, 17), (64, 48)]):
        assert split(jpeg(seed, quality, *size))[0] == tables


@pytest.mark.parametrize(
    "stream", [b"", b"\xff\xd8", b"PNG", b"\xff\xd8\xff\xe0\0\x04ab", bytes(99)]
)
def test_other_streams_are_not_split(stream: bytes) -> None:
    """Anything but a baseline JPEG comes back unchanged."""
    assert split(stream) == (b"", stream)


def test_optimised_tables_are_smaller() -> None:
    """Fewer bytes than plain JPEG of the same quality."""
    image = pixels(0, 64, 64)
    assert len(JpegOptimised().encode(image, 50)) < len(Jpeg().encode(image, 50))


def test_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow encodes 4:2:0 with shared tables, and decodes exactly the same pixels."""
    monkeypatch.setattr(mrdc.codec.jpeg, "simplejpeg", None)
    monkeypatch.setattr(mrdc.codec.image, "simplejpeg", None)
    codec, simple = Jpeg(), pytest.importorskip("simplejpeg")
    stream = codec.encode(pixels(1, 40, 56), 50)
    assert split(stream)[0] == codec.tables(50)
    assert join(*split(stream)) == stream
    assert codec.encoder.startswith("Pillow")
    assert simple.decode_jpeg_header(stream)[3] == "420"
    np.testing.assert_array_equal(decode(stream), simple.decode_jpeg(stream))
