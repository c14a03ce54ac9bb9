"""Codecs that shrink images, and memories that bring them back to size."""

import csv
from pathlib import Path

import numpy as np
import pytest

from mrdc._utils.errors import ImageError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.codec.scaled import resized, restored, scaled, split_scale
from mrdc.data.photo import to_pixels
from mrdc.memory.audit import audit
from mrdc.memory.export import export, in_file
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from tests.conftest import jpeg

IMAGE = decode(jpeg(0))


def test_streams_are_shrunk_and_come_back_to_size() -> None:
    """Half the sides, in a smaller file that any reader opens; decoding restores the size."""
    half = CODECS.find("jpeg@0.5")
    stream = half.encode(IMAGE, 90)
    height, width = IMAGE.shape[:2]
    assert decode(stream).shape == (round(height / 2), round(width / 2), 3)
    assert len(stream) < len(CODECS["jpeg"].encode(IMAGE, 90))
    again = half.decode(stream)
    assert np.abs(np.array(again.shape[:2]) - (height, width)).max() <= 1
    flat = np.full((40, 60, 3), 90, np.uint8)
    assert np.abs(half.decode(half.encode(flat, 90)).astype(int) - 90).max() <= 2
    assert half.tables(90) == CODECS["jpeg"].tables(90) != b""


def test_names() -> None:
    """A scale is part of the name, and the same codec is the same object."""
    assert CODECS.find("jpeg@0.5") is scaled(CODECS["jpeg"], 0.5)
    assert CODECS.find("jpeg@1") is CODECS["jpeg"] and scaled(CODECS["png"], 1) is CODECS["png"]
    assert split_scale("webp@0.75") == ("webp", 0.75) and split_scale("webp") == ("webp", 1.0)
    third = scaled(CODECS["jpeg"], 1 / 3)
    assert CODECS.find(third.name) is third


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jpeg@half", "codec 'jpeg@half': what follows the @ must be a scale, a number from"),
        ("jpeg@0", "a number from 0.01 to 1"),
        ("jpeg@nan", "a number from 0.01 to 1"),
        ("jpeg@2", "a number from 0.01 to 1"),
        ("original@0.5", "codec original changes no pixel, so it cannot have scale 0.5"),
        ("jpg@0.5", "unknown codec 'jpg'"),
    ],
)
def test_wrong_scales_are_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CODECS.find(name)


def test_a_scale_cannot_blow_up_an_image() -> None:
    """A file may claim any scale; the usual limit of pixels holds."""
    with pytest.raises(ImageError, match="pixels; at most"):
        resized(IMAGE, 1000.0)


def test_a_memory_knows_the_scale_of_every_image(tmp_path: Path) -> None:
    """One class at half size, one at full size; source bytes that were kept are not scaled."""
    small = CODECS["jpeg"].encode(IMAGE[:8, :8], 5)  # cannot be made smaller
    memory = ReplayMemory("1MB", "jpeg@0.5", 90)
    memory.add({0: [jpeg(1), small]})
    memory.codec = CODECS["jpeg"]
    memory.add({1: [jpeg(2)]})
    sizes = [tuple(image.shape[1:]) for image, _ in map(memory.__getitem__, range(3))]
    assert sizes == [IMAGE.shape[:2], (8, 8), IMAGE.shape[:2]]
    memory.save(tmp_path / "a.mrdc")
    file, loaded = MemoryFile(tmp_path / "a.mrdc"), ReplayMemory.load(tmp_path / "a.mrdc")
    assert [file.scale(index) for index in range(3)] == [0.5, 1.0, 1.0]
    assert [entry["codec"] for entry in file.meta["encodings"]] == ["jpeg@0.5", "jpeg"]
    for index, photo in enumerate(loaded.examples().photos):
        assert np.array_equal(photo.pixels(), to_pixels(file.load(index), ""))
        assert np.array_equal(photo.pixels(), memory[index][0].permute(1, 2, 0).numpy())
    assert audit(tmp_path / "a.mrdc").problems == []
    export(open_memory(tmp_path / "a.mrdc"), tmp_path / "out")
    with (tmp_path / "out" / "manifest.csv").open() as listing:
        rows = list(csv.DictReader(listing))
    assert [row["scale"] for row in rows] == ["0.5", "1", "1"]
    stored = decode((tmp_path / "out" / rows[0]["file"]).read_bytes())
    assert stored.shape[0] == round(IMAGE.shape[0] / 2)
    assert np.array_equal(restored(file.stream(2), 1.0), file.stream(2))


def test_exported_boxes_match_the_exported_file() -> None:
    boxes = np.array([[2.0, 4.0, 6.0, 8.0, 3.0]], np.float32)
    assert in_file(boxes, 0.5) == [[1.0, 2.0, 3.0, 4.0, 3.0]]


def test_images_that_are_not_rgb_are_refused() -> None:
    """Before they are shrunk, which would fail in its own way."""
    for image in (np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3))):
        with pytest.raises(UsageError, match="image must be RGB uint8"):
            CODECS.find("jpeg@0.5").encode(image, 50)  # type: ignore[arg-type]
