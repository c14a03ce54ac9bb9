"""Images: damaged, cut, mislabelled, or claiming to be huge."""

import io
import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, features

from mrdc._utils.errors import ImageError
from mrdc.codec.image import decode
from tests.campaign.harness import Area, Case, FaultError
from tests.conftest import pixels

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
NEEDS = {"WEBP": "webp", "JPEG2000": "jpg_2000", "AVIF": "avif"}
STRANGE = (
    b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"SIMPLE  =", b"GIF89a",
    b"P6 99999999 99999999 255\n", b"P5\n-1 -1\n255\n", b"<svg/>", bytes(1000), b"BM" + bytes(60),
)  # fmt: skip


def files() -> list[bytes]:
    """A small image in every format that this machine can write."""
    made = []
    for number, kind in enumerate(FORMATS):
        if kind not in NEEDS or features.check(NEEDS[kind]):
            for more in ({}, {"progressive": True}) if kind == "JPEG" else ({},):
                buffer = io.BytesIO()
                Image.fromarray(pixels(number, 24, 20)).save(buffer, kind, **more)
                made.append(buffer.getvalue())
    return made


def bomb(random: Random) -> bytes:
    """A PNG that claims any size and has little data."""
    sides = [random.choice((0, 1, 5000, 30000, 2**31 - 1)) for _ in range(2)]
    header = struct.pack(">IIBBBBB", *sides, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(random.choice((10, 10**6))))
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def damaged(data: bytes, random: Random) -> bytes:
    """A copy with some bytes changed, removed, repeated or cut off."""
    broken = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 20))):
        if not broken:
            break
        place, act = random.randrange(len(broken)), random.random()
        if act < 0.5:
            broken[place] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
        elif act < 0.7:
            del broken[place : place + random.randint(1, 9)]
        elif act < 0.85:
            broken[place:place] = broken[place : place + random.randint(1, 60)]
        else:
            del broken[place:]
    return bytes(broken)


def prepare(folder: Path) -> Case:
    sound = files()

    def case(random: Random) -> None:
        kind = random.random()
        data = random.choice(STRANGE) if kind < 0.05 else bomb(random)
        if kind > 0.1:
            data = damaged(random.choice(sound), random)
        try:
            found = decode(data, "x")
        except ImageError:
            return
        if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] != 3:
            raise FaultError(f"decoded to {found.dtype} {found.shape}")

    return case


AREA = Area("images", prepare)
