"""Decoding of image files of every kind."""

import io
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from mrdc._utils.errors import ImageError
from mrdc.codec import image as module
from mrdc.codec.image import Room, decode, upright
from tests.conftest import jpeg, pixels

RAMP = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (8, 1))  # (8, 64), left dark, right bright


def file(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def test_grey_becomes_three_equal_channels() -> None:
    """PNG and JPEG alike."""
    for data in (file(Image.fromarray(RAMP)), file(Image.fromarray(RAMP), "JPEG", quality=100)):
        got = decode(data)
        assert got.shape == (8, 64, 3)
        assert np.abs(got.astype(int) - RAMP[:, :, None]).max() <= 2


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize(("highest", "fine"), [(200, False), (256, True), (65535, True), (0, True)])
def test_wide_integers_are_read_as_16_bit_unless_they_cannot_be(
    highest: int, fine: bool, bits: int
) -> None:
    """Values of 8 bits would all become black."""
    kind, form = (np.uint16, "PNG") if bits == 16 else (np.int32, "TIFF")
    data = file(Image.fromarray(np.array([[0, highest]], kind)), form)
    if fine:
        assert decode(data)[0, 1, 0] == highest >> 8
    else:
        with pytest.raises(ImageError, match=f"{bits}-bit pixels up to 200; save it with 8 bits"):
            decode(data)


def test_palettes_and_alpha() -> None:
    """Indices become colours; transparent pixels, GIF-style too, are laid over white."""
    picture = Image.fromarray(pixels(0)).quantize(16)
    np.testing.assert_array_equal(decode(file(picture)), np.asarray(picture.convert("RGB")))
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, :, 3] = (0, 128, 255)
    np.testing.assert_array_equal(decode(file(Image.fromarray(rgba)))[0, :, 0], [255, 127, 0])
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 200, 100, 0])
    picture.putpixel((1, 0), 1)
    got = decode(file(picture, transparency=0))
    np.testing.assert_array_equal(got[0], [[255, 255, 255], [200, 100, 0]])


def test_cmyk_and_sixteen_bit_grey() -> None:
    """CMYK is not inverted; 65535 is white and 32768 is mid grey, nothing is clipped."""
    rgb = Image.new("RGB", (16, 16), (200, 30, 60))
    got = decode(file(rgb.convert("CMYK"), "JPEG", quality=95))
    assert np.abs(got[8, 8].astype(int) - (200, 30, 60)).max() < 12
    deep = Image.fromarray(np.array([[0, 32768, 65535]], np.uint16))
    np.testing.assert_array_equal(decode(file(deep))[0, :, 0], [0, 128, 255])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(format: str, orientation: int) -> None:
    """All eight, against Pillow's transpositions."""
    turns = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_270],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_90],
    }
    picture = Image.fromarray(pixels(1, 24, 40))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file(picture, format, exif=exif, quality=95)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    for turn in turns.get(orientation, []):
        expected = expected.transpose(turn)
    np.testing.assert_array_equal(decode(data), np.asarray(expected))


def test_upright_detects_exif() -> None:
    """Only streams that certainly need no rotation take the fast path."""
    exif = Image.Exif()
    exif[0x0112] = 6
    assert upright(jpeg(0))
    assert upright(file(Image.fromarray(RAMP), "JPEG", xmp=b"<xmp>a title</xmp>"))
    assert not upright(file(Image.fromarray(RAMP), "JPEG", exif=exif))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Metadata", "ignore:Truncated")
@given(
    orientation=st.none() | st.integers(0, 12),
    endian=st.sampled_from("<>"),
    tags=st.dictionaries(st.sampled_from([0x010F, 0x0131, 0x9C9B]), st.text("ab", max_size=9)),
    cut=st.integers(0, 40) | st.none(),
)
@settings(max_examples=60)
def test_exif_blocks_that_turn_nothing_do_not_slow_decoding_down(
    orientation: int | None, endian: Literal["<", ">"], tags: dict[int, str], cut: int | None
) -> None:
    """Cameras write them: only other orientations, and blocks cut short, are left to Pillow."""
    exif = Image.Exif()
    exif.endian = endian
    for tag, value in tags.items():
        exif[tag] = value
    if orientation is not None:
        exif[0x0112] = orientation
    block = exif.tobytes()
    data = file(Image.fromarray(RAMP), "JPEG", exif=block[:cut])
    with Image.open(io.BytesIO(data)) as picture:
        expected = np.array(ImageOps.exif_transpose(picture).convert("RGB"))
    assert np.array_equal(decode(data), expected)
    assert upright(data) == (orientation in (None, 1)) or cut is not None
    assert not (upright(data) and expected.shape[:2] != RAMP.shape)


def test_an_exif_block_in_parts_is_left_to_pillow() -> None:
    data = file(Image.fromarray(RAMP), "JPEG", exif=Image.Exif())
    part = b"\xff\xe1" + (8).to_bytes(2, "big") + b"Exif\0\0"
    assert not upright(data[:2] + part + part + data[2:])


def test_xmp_orientation_is_applied() -> None:
    """As in Pillow, and so in most readers."""
    mark = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    block = b'<x:xmpmeta xmlns:x="adobe:ns:meta/">' + mark + b"</x:xmpmeta>"
    data = file(Image.fromarray(pixels(1, 24, 40)), "JPEG", xmp=block)
    assert decode(data).shape == (40, 24, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"bad\.jpg: the file is empty \(0 bytes\)"),
        (b"hello, I am text", r"bad\.jpg: not an image file"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", r"bad\.jpg: not an image file"),
        (b"SIMPLE  =                    T".ljust(2880), r"bad\.jpg: not an image file"),
        (b"\xff\xd8\xff\xe0 not really", r"bad\.jpg: "),
        (jpeg(0, 90, 64, 64)[:700], r"bad\.jpg: the image is damaged"),
        (
            file(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"),
            r"bad\.jpg: floating-point pixels",
        ),
    ],
)
def test_bad_files_are_refused(data: bytes, message: str) -> None:
    """Every message begins with the file's name."""
    with pytest.raises(ImageError, match=message):
        decode(data, "bad.jpg")


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_bomb_is_refused_before_it_is_decoded(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is checked on the header."""
    monkeypatch.setattr(module, "MAX_PIXELS", 500)
    with pytest.raises(ImageError, match=r"big: 64 x 8 = 512 pixels; at most 500"):
        decode(file(Image.fromarray(RAMP), format), "big")


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    """Each costs as much time as a whole image; a usual progressive file has about ten."""
    data = file(Image.fromarray(pixels(0)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    decode(data)
    many = data[:last] + 100 * data[last:-2] + data[-2:]
    with pytest.raises(ImageError, match=r"slow: a JPEG with \d+ scans; at most 100 are allowed"):
        decode(many, "slow")


def test_threads_share_the_room_for_decoding() -> None:
    """Never more than the limit is in use; an image larger than the limit is decoded alone."""
    room, most = Room(10), list[int]()

    def use(size: int) -> None:
        with room.take(size):
            most.append(room.used)
            time.sleep(0.001)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, [4, 7, 25, 3, 3, 3, 9, 1, 25, 5, 5] * 3))
    assert room.used == 0
    assert all(used <= 10 or used == 25 for used in most)
    assert max(used for used in most if used <= 10) > 9  # it is used together


def test_flawed_but_complete_jpegs_are_read() -> None:
    """Stray bytes before the end marker are tolerated."""
    data = jpeg(0, 90, 32, 32)
    assert decode(data[:-2] + b"\0\0\0\0" + data[-2:]).shape == (32, 32, 3)
