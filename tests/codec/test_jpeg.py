"""Shared JPEG tables."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mrdc.codec.image
import mrdc.codec.jpeg
from mrdc.codec.image import decode
from mrdc.codec.jpeg import Jpeg, JpegOptimised, join, plain_sides, split
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


# Streams that any decoder reads alike


def saved(mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(0, 20, 30)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_sides_of_a_plain_stream_are_in_its_header(subsampling: str) -> None:
    assert plain_sides(saved(subsampling=subsampling, optimize=True)) == (20, 30)


@pytest.mark.parametrize(
    "stream",
    [
        saved("L"),
        saved("CMYK"),
        saved(progressive=True),
        saved(keep_rgb=True),
        saved(exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
        b"",
        b"\xff\xd8",
        saved()[:170],
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_other_streams_are_not_plain(stream: bytes) -> None:
    """Grey, CMYK, progressive, RGB, rotated, cut short, or not a JPEG."""
    assert plain_sides(stream) is None
