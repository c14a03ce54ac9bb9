"""Shared AVIF headers."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mrdc.codec.avif import Avif, fields, join, split
from mrdc.codec.image import decode
from tests.conftest import pixels


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 100))
def test_join_undoes_split(height: int, width: int, quality: int) -> None:
    """Bit-exact for any size and quality."""
    stream = Avif().encode(pixels(1, height, width), quality)
    assert join(*split(stream)) == stream


def test_images_of_all_sizes_share_a_header() -> None:
    """The codec knows it before it has seen an image; all but 5 of its bytes are saved."""
    header = Avif().tables(30)
    assert len(header) > 200
    for height, width in [(8, 8), (31, 300), (500, 400)]:  # the last has another level
        stream = Avif().encode(pixels(0, height, width), 30)
        found, body = split(stream)
        assert found == header
        assert len(body) == len(stream) - len(header) - len(b"sizemdat") + 5
        assert decode(join(header, body)).shape == (height, width, 3)


def test_other_files_are_not_split() -> None:
    """Other formats, pictures with more than one part, and damaged files come back unchanged."""
    clear, buffer = Image.fromarray(np.zeros((16, 16, 4), np.uint8), "RGBA"), io.BytesIO()
    clear.save(buffer, "AVIF")
    stream = Avif().encode(pixels(0, 16, 16), 50)
    damaged = (stream + b"x", stream[:-1], stream[:50])
    for other in (b"", b"\0\0\0\x08ftyp", buffer.getvalue(), *damaged):
        assert split(other) == (b"", other)


@pytest.mark.parametrize("body", [b"", b"\0", bytes(5)])
def test_a_short_body_gives_a_damaged_file(body: bytes) -> None:
    """The checksum of the image, not an exception, then says that it is damaged."""
    assert join(Avif().tables(50), body).endswith(b"mdat")


def test_a_header_without_its_boxes_is_none() -> None:
    header = Avif().tables(50)
    assert fields(header) is not None
    for end in range(0, len(header) - 60, 7):
        assert fields(header[:end]) is None
    nested = b"\0\0\0\x0cmeta\0\0\0\0" * 5000
    assert fields(b"\0\0\0\x08ftyp" + nested) is None
