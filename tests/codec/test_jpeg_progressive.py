"""Scans of progressive JPEGs: where they end, how they are cut and checked."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mrdc.codec.image
import mrdc.codec.jpeg_progressive
from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.codec.jpeg import END, join, split
from mrdc.codec.jpeg_progressive import SCANS, SEAL, cut, scan_ends, scans_intact
from tests.conftest import jpeg, pixels

CODEC = CODECS["jpeg-progressive"]
SIDES, LEVELS = st.integers(1, 70), st.integers(1, SCANS)


def encoded(height: int = 40, width: int = 56, quality: int = 75) -> bytes:
    return CODEC.encode(pixels(height, height, width), quality)


@given(SIDES, SIDES, st.integers(1, 100), LEVELS)
def test_any_cut_is_a_jpeg_of_the_same_size(
    height: int, width: int, quality: int, scans: int
) -> None:
    """It has that many scans, decodes without a warning, and Pillow alone accepts it."""
    part = cut(encoded(height, width, quality), scans)
    assert len(scan_ends(part)) == scans
    assert decode(part).shape == (height, width, 3)
    with Image.open(io.BytesIO(part)) as image:
        image.load()
        assert image.size == (width, height) and image.info["progressive"]


@given(SIDES, LEVELS, LEVELS)
def test_a_cut_of_a_cut_is_the_direct_cut(side: int, first: int, second: int) -> None:
    """The bytes do not depend on the number of steps."""
    stream = encoded(side)
    assert cut(cut(stream, first), second) == cut(stream, min(first, second))


@given(SIDES, LEVELS)
def test_a_cut_keeps_the_scans_in_order(side: int, scans: int) -> None:
    """A cut is a prefix of the file plus an end marker, no longer than one with more scans."""
    stream = encoded(side)
    part = cut(stream, scans)
    assert part.endswith(END) and stream.startswith(part[:-2])
    assert scan_ends(part) == scan_ends(stream)[:scans]
    assert scans == 1 or len(cut(stream, scans - 1)) < len(part)


def test_more_scans_are_more_faithful() -> None:
    """Each of the scans that a memory may cut lowers the error."""
    image = pixels(3, 96, 96)
    stream = CODEC.encode(image, 75)
    errors = [np.square(decode(cut(stream, k)) - image.astype(float)).mean() for k in range(5, 11)]
    assert errors == sorted(set(errors), reverse=True)


def test_a_marker_within_a_table_is_no_scan() -> None:
    """Segments are skipped by their length: a comment that looks like scans has none."""
    stream = encoded()
    comment = b"\xff\xfe\x00\x0a" + b"\xff\xda\xff\xd9" * 2
    commented = stream[:2] + comment + stream[2:]
    assert scan_ends(commented) == [end + len(comment) for end in scan_ends(stream)]


@given(LEVELS, st.data())
def test_a_changed_byte_breaks_the_checksum_of_its_scan(scans: int, data: st.DataObject) -> None:
    """A cut file is checked against what was written, header and every remaining scan."""
    part = cut(encoded(), scans)
    assert scans_intact(part)
    sums = part.index(SEAL) + len(SEAL)
    unused = range(sums + 4 * scans, sums + 4 * SCANS)  # checksums of scans that are gone
    place = data.draw(st.integers(0, len(part) - 3).filter(lambda place: place not in unused))
    changed = bytearray(part)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert not scans_intact(bytes(changed))


def test_scans_of_another_file_or_order_do_not_match() -> None:
    """Checksums include all earlier scans, so none can be left out, swapped or replaced."""
    stream, other = encoded(), CODEC.encode(pixels(9, 40, 56), 75)
    ends, theirs = scan_ends(stream), scan_ends(other)
    assert not scans_intact(stream[: ends[1]] + stream[ends[2] :])
    assert not scans_intact(stream[: ends[2]] + other[theirs[2] : theirs[3]] + END)
    plain = io.BytesIO()
    Image.fromarray(pixels(0)).save(plain, "JPEG", progressive=True)
    assert not scans_intact(plain.getvalue())


@pytest.mark.parametrize(
    "stream",
    [b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"PNG", jpeg(0), encoded()[:-2], encoded()[:400]],
)
def test_other_streams_have_no_scans(stream: bytes) -> None:
    """A baseline JPEG, or a file cut anywhere else, is refused."""
    with pytest.raises(ImageError, match="not a whole progressive JPEG"):
        cut(stream, 5)


def test_a_cut_keeps_at_least_a_scan() -> None:
    """A header alone is not an image."""
    with pytest.raises(UsageError, match="scans must be at least 1, got 0"):
        cut(encoded(), 0)


@given(SIDES, SIDES, LEVELS)
def test_cuts_share_the_header_of_their_quality(height: int, width: int, scans: int) -> None:
    """A memory stores it once; the body of a cut is a prefix of the full body."""
    stream, tables = encoded(height, width), CODEC.tables(75)
    part = cut(stream, scans)
    assert split(part)[0] == tables
    assert split(stream)[1].startswith(split(part)[1])
    assert join(*split(part)) == part


def test_another_encoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The levels of a fading memory stand for certain scans."""
    monkeypatch.setattr(mrdc.codec.jpeg_progressive, "SCANS", 9)
    with pytest.raises(UsageError, match=r"an encoder that writes 9 scans.*this Pillow writes 10"):
        encoded()


def test_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decodes the same pixels at every number of scans."""
    stream = encoded(60, 90)
    fast = [decode(cut(stream, scans)) for scans in range(1, SCANS + 1)]
    monkeypatch.setattr(mrdc.codec.image, "simplejpeg", None)
    slow = [decode(cut(stream, scans)) for scans in range(1, SCANS + 1)]
    np.testing.assert_array_equal(fast, slow)
