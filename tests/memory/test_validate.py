"""Invalid files with a valid checksum are refused when they are opened."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrdc._utils.errors import MemoryFileError, OutputError, UsageError
from mrdc.memory.audit import audit
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from tests.campaign.forge import DEEP, Parts
from tests.conftest import jpeg


@pytest.fixture
def path(tmp_path: Path) -> Path:
    memory = ReplayMemory("20kB", "jpeg", 30)
    memory.boxes = {"0/1": np.array([[0, 1, 8, 9, 1]], np.float32)}
    memory.box_classes = ("cat", "dog")
    values = {0: {"task": [1, 2, 3, 4]}}
    images = {label: [jpeg(10 * label + n, 95, 12, 12) for n in range(4)] for label in range(2)}
    memory.add(images, values=values)
    memory.save(tmp_path / "a.mrdc")
    return tmp_path / "a.mrdc"


def in_meta(*place: Any) -> Callable[[Parts], None]:
    """Set a part of the metadata: keys, then the value."""

    def change(parts: Parts) -> None:
        *keys, last, value = place
        found = parts.meta
        for key in keys:
            found = found[key]
        found[last] = value

    return change


def in_array(name: str, place: Any, value: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts.array(name)[place] = value

    return change


def in_header(name: str, key: str, value: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts.header[name][key] = value

    return change


def without_sources(parts: Parts) -> None:
    """Remove the array's bytes, and move the payload forward."""
    begin, end = parts.header["sources"]["data_offsets"]
    del parts.data[begin:end]
    parts.header["sources"] |= {"shape": [0], "data_offsets": [begin, begin]}
    size = parts.header["payload"]["shape"][0]
    parts.header["payload"]["data_offsets"] = [begin, begin + size]


MANY = {"label": 0, "items": 10**8, "seen": 10**8, "duplicates": 0, "name": "0"}
FORGERIES: list[tuple[Callable[[Parts], None], str]] = [
    (in_meta("classes", 0, MANY), "the classes have 100,000,004 images, the index 8"),
    (in_meta("classes", 0, "items", -1), "a class must have a label, items and duplicates"),
    (in_meta("classes", 0, "items", True), "a class must have a label, items and duplicates"),
    (in_meta("classes", 1, "label", 0), "two classes have the same label"),
    (in_meta("classes", 1, "label", 9), "the labels do not match the classes"),
    (in_meta("classes", 1, "name", 3), "a class must have a name"),
    (in_meta("classes", 1, "seen", 3), "a class must have seen at least the images it holds"),
    (in_meta("classes", 1, "seen", None), "a class must have seen at least the images it holds"),
    (in_meta("classes", {}), "classes must be a list of objects"),
    (in_meta("codec", "jpeg@7"), "codec must be a short word, perhaps with a scale"),
    (in_meta("encodings", 3), "encodings must be a list"),
    (in_meta("encodings", []), "an image refers to an encoding that is not one of 0"),
    (in_meta("encodings", [3]), "an encoding must have a codec, a quality and an encoder"),
    (in_meta("encodings", 0, "more", 3), "an encoding must have a codec, a quality and an encoder"),
    (in_meta("encodings", 0, "codec", "jpeg@nan"), "an encoding has a wrong codec or quality"),
    (in_meta("encodings", 0, "codec", "@0.5"), "an encoding has a wrong codec or quality"),
    (in_meta("encodings", 0, "quality", "x"), "an encoding has a wrong codec or quality"),
    (in_meta("encodings", 0, "encoder", "\x1b[31mred"), "an encoder must be a short word"),
    (in_meta("accounting", "\x1b]0;title\x07"), "accounting must be packed or file"),
    (in_meta("quality", 1.5), "quality must be a whole number or null"),
    (in_meta("notes", None), "notes must be an object"),
    (in_meta("notes", {"skipped": [3]}), "skipped a list of texts"),
    (in_meta("notes", float("nan")), "the header is not a JSON object"),
    (in_meta("budget", None), "the budget has no unit"),
    (in_meta("budget", "amount", 10**400), "the budget has no amount"),
    (in_meta("budget", "amount", -1.0), "the budget has no amount"),
    (in_meta("budget", "bytes", 10**12), "the budget contradicts itself"),
    (in_meta("whole_file", 1), "the budget contradicts itself"),
    (in_meta("tables", ["AAAA"]), "tables are not headers of images"),
    (in_meta("tables", ["é"]), "tables are not headers of images"),
    (in_meta("tables", 3), "tables are not headers of images"),
    (in_meta("tables", []), "an image refers to a table that is not one of 0"),
    (in_meta("box_classes", "cat"), "box_classes must be a list of texts"),
    (in_meta("box_classes", []), "boxes without classes"),
    (in_meta("box_classes", ["cat"]), "a label is not one of 1 box_classes"),
    (lambda parts: setattr(parts, "meta", "[" * 10**5), "the header is not a JSON object"),
    (lambda parts: setattr(parts, "meta", [1]), "the header is not a JSON object"),
    (in_array("offsets", 3, 0), "the images do not cover the payload end to end"),
    (in_array("offsets", -1, 10**9), "the images do not cover the payload end to end"),
    (in_array("ranks", 2, 7), "the ranks of a class are not 0, 1, 2, ..."),
    (in_array("labels", 0, 1), "the labels do not match the classes"),
    (in_array("tables", 0, 5), "an image refers to a table that is not one of"),
    (in_array("encodings", 0, 1), "an image refers to an encoding that is not one of 1"),
    (in_array("encodings", 0, -1), "an image refers to an encoding that is not one of 1"),
    (in_array("value_sizes", 0, 10**6), "the values beside an image take more bytes than there"),
    (in_array("value_sizes", 0, -1), "the values beside an image take more bytes than there"),
    (in_array("kept", 0, 2), "an image is neither kept nor encoded"),
    (in_array("sources", 0, 0), "not as many sources as the 8 images"),
    (without_sources, "not as many sources as the 8 images"),
    (in_array("boxes", (0, 2), -5.0), "a negative size"),
]


@pytest.mark.parametrize(("change", "problem"), FORGERIES)
def test_a_forged_file_is_refused(
    change: Callable[[Parts], None], problem: str, path: Path
) -> None:
    """Despite a valid checksum, by everything that opens it."""
    parts = Parts.of(path)
    change(parts)
    path.write_bytes(parts.join())
    assert problem in audit(path).problems[0]
    for opening in (MemoryFile, ReplayMemory.load):
        with pytest.raises(MemoryFileError, match=r"a\.mrdc: "):
            opening(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (in_header("labels", "shape", [2, 4]), "has 9 rows for 2 images"),
        (in_header("digests", "shape", [4, 64]), "the array 'digests' has a wrong type, shape"),
        (in_header("kept", "dtype", "I8"), "the array 'kept' has a wrong type, shape"),
        (lambda parts: parts.header.pop("kept"), r"a\.mrdc: "),
    ],
)
def test_arrays_of_another_kind_are_refused(
    change: Callable[[Parts], None], problem: str, path: Path
) -> None:
    """Whether safetensors or our own checks notice."""
    parts = Parts.of(path)
    change(parts)
    path.write_bytes(parts.join())
    with pytest.raises(MemoryFileError, match=problem):
        MemoryFile(path)


def test_an_empty_checksum_is_refused(path: Path) -> None:
    """It would be replaced between all bytes of the header."""
    path.write_bytes(Parts.of(path).join(checksum=""))
    with pytest.raises(MemoryFileError, match="there is no checksum"):
        MemoryFile(path)


def test_a_header_that_safetensors_cannot_read_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The existing file is kept."""
    memory, before = ReplayMemory.load(path), path.read_bytes()
    monkeypatch.setattr("mrdc.memory.write.HEADER_BYTES", 500)
    with pytest.raises(OutputError, match="the header of a memory file holds 500"):
        memory.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("note", [float("nan"), object(), json.loads(DEEP)])
def test_notes_that_could_not_be_read_are_not_written(note: Any) -> None:
    memory = ReplayMemory("20kB", "jpeg", 30)
    memory.notes = {"mine": note}
    with pytest.raises(UsageError, match="must be JSON values"):
        memory.add({0: [jpeg(0)]})
