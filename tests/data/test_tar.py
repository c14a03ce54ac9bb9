"""WebDataset tars, well-formed and hostile."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mrdc._utils.errors import DataError, ImageError
from mrdc.data import open_images, photo
from tests.conftest import jpeg

HUGE = 2**80


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header that may lie about its size."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def signed(block: bytes) -> bytes:
    """A changed header with a valid checksum."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def body(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(name: str, data: bytes) -> bytes:
    return header(name, len(data)) + body(data)


def sparse(name: str, claimed: int) -> bytes:
    """A member in GNU's old sparse format: 512 bytes of data, and holes."""
    block = header(name, 512, tarfile.GNUTYPE_SPARSE)
    table = b"%011o\0%011o\0" % (0, 512) + bytes(72)
    block = block[:386] + table + bytes(1) + b"%011o\0" % claimed + block[495:]
    return signed(block) + bytes(512)


def pax(records: dict[str, str], after: bytes) -> bytes:
    """An extended header with these records, and the member it describes."""
    lines = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 2
        length = len(rest) + len(str(length))
        lines += str(length).encode() + rest
    return header("pax", len(lines), tarfile.XHDTYPE) + body(lines) + after


GOOD = member("a.jpg", jpeg(0)) + member("a.cls", b"cat")
SPARSE_1_0 = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "b.cls"}
END = bytes(1024)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sparse("b.cls", 1_500_000_000), r"b\.cls is sparse, a plain file is needed"),
        (sparse("b.jpg", 2**40), r"b\.jpg is sparse"),
        (pax(SPARSE_1_0 | {"GNU.sparse.realsize": "9" * 12}, member("x", b"y\n")), "complete tar"),
        (pax({"GNU.sparse.map": "1,a", "GNU.sparse.size": "4"}, GOOD), "complete tar"),
        (header("b.jpg", HUGE), r"b\.jpg claims 1,208,925,819,614,629,174,706,176 bytes"),
        (header("b.cls", 2**33), r"b\.cls claims 8,589,934,592 bytes"),
        (header("b.jpg", -1024), "complete tar"),
        (header("x", 2**33, tarfile.XHDTYPE), "a header of 8,589,934,592 bytes"),
        (header("x", HUGE, tarfile.GNUTYPE_LONGNAME), "a header of 1,208,925"),
        (header("x", 512, tarfile.GNUTYPE_LONGNAME) * 4000, "complete tar"),
        (member("b.cls", b"x" * 5000), r"b\.cls has 5,000 bytes; a class takes at most 4,096"),
        (b"\1" * 512 + member("b.jpg", b""), f"bad header at byte {len(GOOD):,}"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_hostile_tar_is_refused(data: bytes, message: str, first: bool, tmp_path: Path) -> None:
    """One message, without allocating what a header claims."""
    path = tmp_path / "x.tar"
    path.write_bytes(data + GOOD + END if first else GOOD + data + END)
    with pytest.raises(DataError, match=r"x\.tar: .*" + ("" if first else message)):
        open_images(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 5000, "no class name in it"),
        (b'{"class": ' * 5000, "no class name in it"),
        (b'{"class": 3}', "no class name in it"),
        (b" " * 1_100_000, "larger than 1.0 MB"),
    ],
)
def test_a_json_without_a_class_name_is_listed(text: bytes, reason: str, tmp_path: Path) -> None:
    """It may be deeply nested or long."""
    path = tmp_path / "x.tar"
    path.write_bytes(member("a.json", text) + GOOD + END)
    images = open_images(path)
    assert images.classes == ("cat",)
    assert images.ignored == [f"a.json: {reason}"]


def test_a_member_too_large_for_an_image_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to members of tars and to single files."""
    path = tmp_path / "x.tar"
    path.write_bytes(GOOD + END)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.jpg").write_bytes(jpeg(0))
    monkeypatch.setattr(photo, "MAX_BYTES", 100)
    for source, name in ((path, r"a\.jpg"), (tmp_path, r"a/b\.jpg")):
        with pytest.raises(ImageError, match=rf"{name}: [\d,]+ bytes; an image has at most 100"):
            open_images(source).all_photos[0].load()


def make_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_a_webdataset_tar(tmp_path: Path) -> None:
    """Image and .cls by key; numbers sort as numbers; a .json may name the class."""
    members = {"a/0000.txt": b"caption", "a/0001.json": b"[]", "a/0003.json": b'{"class": "cat"}'}
    for number, label in enumerate(["10", "9", "10", "7"]):
        members[f"a/{number:04d}.jpg"] = jpeg(number)
        members[f"a/{number:04d}.cls"] = label.encode()
    images = open_images(make_tar(tmp_path / "x.tar", members))
    assert images.classes == ("9", "10", "cat")
    assert [photo.load() for photo in images.photos[1]] == [jpeg(0), jpeg(2)]
    assert images.ignored == [
        "a/0000.txt: not an image (by its ending)",
        "a/0001.json: no class name in it",
    ]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.jpg": b"x"}, r"a\.jpg has no \.cls file"),
        ({"a.cls": b"1"}, "no image with a .cls"),
        ({"a.jpg": b"x", "a.png": b"y", "a.cls": b"1"}, r"two images for one sample: a\.jpg and a"),
    ],
)
def test_incomplete_samples(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    """An image needs its class, and a sample has one image."""
    with pytest.raises(DataError, match=message):
        open_images(make_tar(tmp_path / "x.tar", members))


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:700], lambda data: b"\x1f\x8b" + data, lambda data: b""]
)
def test_a_cut_compressed_or_empty_tar(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """All get the same message."""
    path = tmp_path / "x.tar"
    path.write_bytes(spoil(GOOD + END))
    with pytest.raises(DataError, match="not an uncompressed, complete tar"):
        open_images(path)
