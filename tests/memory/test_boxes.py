"""Boxes in a memory: stored with their images, in one file under one budget."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from mrdc._utils.errors import BudgetError, MemoryFileError, UsageError
from mrdc.data.photo import Photo
from mrdc.data.scenes import Boxes
from mrdc.memory.audit import audit
from mrdc.memory.budget import Budget
from mrdc.memory.export import export
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from mrdc.memory.write import write_memory
from tests.conftest import jpeg

CLASSES = ("cat", "dog")


def boxes(*rows: tuple[float, ...]) -> Boxes:
    return np.array(rows, np.float32).reshape(-1, 5)


def photo(number: int) -> Photo:
    return Photo(f"{number}.jpg", lambda: jpeg(number))


def with_boxes(budget: int | str | Budget = "1MB", images: int = 6, each: int = 1) -> ReplayMemory:
    """A memory of one class, whose image n has n boxes, or n * `each`."""
    memory = ReplayMemory(budget, "jpeg", 50)
    memory.boxes = {
        f"{n}.jpg": boxes(*[(1, 2, 3 + n, 4 + k, k % 2) for k in range(n * each)])
        for n in range(images)
    }
    memory.box_classes = CLASSES
    memory.add({0: [photo(n) for n in range(images)]})
    return memory


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with_boxes().save(tmp_path / "a.mrdc")
    return tmp_path / "a.mrdc"


def test_boxes_survive_saving(file: Path) -> None:
    """By source, as two more arrays, also for an image without any; they go with their images."""
    loaded, before = ReplayMemory.load(file), with_boxes()
    assert loaded.box_classes == CLASSES
    assert loaded.boxes.keys() == before.boxes.keys()
    for name, rows in before.boxes.items():
        np.testing.assert_array_equal(loaded.boxes[name], rows)
        assert loaded.boxes[name].flags.writeable
    loaded.save(file.with_name("again"))
    assert file.with_name("again").read_bytes() == file.read_bytes()
    with safe_open(file, framework="numpy") as found:
        assert found.get_tensor("box_counts").tolist() == [0, 1, 2, 3, 4, 5]
        assert found.get_tensor("boxes")[1].tolist() == [1, 2, 5, 4, 0]
    loaded.rebudget(Budget(loaded.nbytes - 1, "originals", 1.0))
    loaded.save(file)
    assert ReplayMemory.load(file).boxes.keys() == {f"{n}.jpg" for n in range(5)}


def test_files_without_boxes_have_no_arrays_for_them(tmp_path: Path) -> None:
    """They have no box classes and no COCO export, either."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({0: [jpeg(0)]})
    memory.save(tmp_path / "a")
    found = MemoryFile(tmp_path / "a")
    assert not {"box_counts", "boxes"} & set(found.arrays)
    assert "box_classes" not in found.meta
    loaded = ReplayMemory.load(tmp_path / "a")
    assert (loaded.boxes, loaded.box_classes) == ({}, ())
    with pytest.raises(UsageError, match="have no boxes, which format coco needs; choose folder"):
        export(open_memory(tmp_path / "a"), tmp_path / "out", "coco")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ({"box_counts": [0, 1, 2, 3, 4, 4]}, "box counts of 6 images do not add up to the 15"),
        ({"box_counts": [0, 1, 2, 3, 10, -1]}, "box counts of 6 images do not add up"),
        ({"boxes": (2, 0, np.nan)}, "boxes of 2.jpg: a number is not finite"),
        ({"boxes": (0, 2, 0.5)}, "boxes of 1.jpg: a negative size"),
        ({"boxes": (1, 4, 2)}, "boxes of 2.jpg: a label is not one of 2 box_classes"),
        ({"boxes": (1, 4, 0.5)}, "boxes of 2.jpg: a label is not one of 2 box_classes"),
    ],
)
def test_invalid_boxes_in_a_file_are_found(
    spoil: dict[str, Any], problem: str, file: Path, tmp_path: Path
) -> None:
    """Even with a valid checksum; such files are neither loaded nor exported."""
    sound = MemoryFile(file)
    arrays = {name: np.array(array) for name, array in sound.arrays.items()}
    payload = b"".join(map(sound.stored, range(len(sound))))
    if "boxes" in spoil:
        row, column, value = spoil["boxes"]
        arrays["boxes"][row, column] = value
    else:
        arrays["box_counts"] = np.array(spoil["box_counts"], "<i4")
    meta = {name: value for name, value in sound.meta.items() if name != "tables"}
    write_memory(file, arrays, [payload], len(payload), meta, sound.tables)
    assert any(problem in found for found in audit(file).problems)
    with pytest.raises(MemoryFileError, match=problem):
        ReplayMemory.load(file)
    with pytest.raises(MemoryFileError, match=problem):
        export(open_memory(file), tmp_path / "out", "coco")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 4), np.float32), r"boxes of 1\.jpg must have the shape \(n, 5\), got \(1, 4"),
        (boxes((0, 0, 2, 2, 2)), r"boxes of 1\.jpg: a label is not one of 2 box_classes"),
        (boxes((0, 0, np.inf, 2, 0)), r"boxes of 1\.jpg: a number is not finite"),
        (boxes((5, 0, 2, 2, 0)), r"boxes of 1\.jpg: a negative size"),
    ],
)
def test_invalid_boxes_are_not_saved(rows: Boxes, message: str, file: Path) -> None:
    """The old file is kept."""
    memory, before = ReplayMemory.load(file), file.read_bytes()
    memory.boxes["1.jpg"] = rows
    with pytest.raises(UsageError, match=message):
        memory.save(file)
    memory = with_boxes()
    memory.box_classes = ()
    with pytest.raises(UsageError, match="not one of 0 box_classes"):
        memory.save(file)
    assert file.read_bytes() == before


def test_a_budget_in_originals_is_not_charged_for_boxes() -> None:
    """As in the paper."""
    budget = Budget(4000, "originals", 1.0)
    plain = ReplayMemory(budget, "jpeg", 50)
    plain.add({0: [photo(n) for n in range(6)]})
    boxed = with_boxes(budget, each=50)
    assert (boxed.sources(0), boxed.nbytes) == (plain.sources(0), plain.nbytes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    budget=st.integers(3_000, 20_000), each=st.integers(0, 60), smaller=st.integers(3_000, 9_000)
)
def test_a_budget_in_bytes_bounds_the_file(budget: int, each: int, smaller: int) -> None:
    """Boxes included, also after a change of budget; or a refusal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        try:
            memory = with_boxes(budget, images=12, each=each)
            memory.save(path)
            assert path.stat().st_size <= budget
            memory.rebudget(smaller)
        except BudgetError:
            return
        memory.save(path)
        assert path.stat().st_size <= smaller
        assert audit(path).problems == []
