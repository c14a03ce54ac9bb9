"""Values stored with images: in the file, within the budget."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mrdc._utils.errors import MemoryFileError, UsageError
from mrdc.memory.audit import audit
from mrdc.memory.budget import Budget
from mrdc.memory.export import export
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from mrdc.memory.values import pack, unpack
from mrdc.memory.write import write_memory
from tests.conftest import jpeg

NUMBERS = st.sampled_from(["?", "i1", "<i2", ">i4", "i8", "u1", "f2", "<f4", ">f8"]).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0))
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
).filter(lambda value: value not in (float("inf"), -float("inf")))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), NUMBERS | st.text() | st.integers() | st.lists(st.booleans())))
def test_values_survive_packing(values: dict[str, Any]) -> None:
    """Arrays with their type and shape, JSON values as they are."""
    found = unpack(pack(values))
    assert found.keys() == values.keys()
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value)
            assert found[name].dtype == value.dtype.newbyteorder("<")
        else:
            assert found[name] == value


def with_logits(budget: str | Budget = "1MB", images: int = 6) -> ReplayMemory:
    """Two classes whose images have logits and a task."""
    memory = ReplayMemory(budget, "jpeg", 50)
    for label in range(2):
        memory.extend(
            label,
            [jpeg(100 * label + n) for n in range(images)],
            values={"logits": logits(label, images), "task": [label] * images},
        )
    return memory


def logits(label: int, images: int) -> torch.Tensor:
    return torch.arange(images * 10.0).reshape(images, 10) + 1000 * label


def test_values_survive_saving(tmp_path: Path) -> None:
    """By image, also after other classes come without any."""
    memory = with_logits()
    memory.add({2: [jpeg(900)]})
    memory.save(tmp_path / "a")
    loaded = ReplayMemory.load(tmp_path / "a")
    assert loaded.values(7)["task"] == 1
    np.testing.assert_array_equal(loaded.values(7)["logits"], logits(1, 6)[1])
    assert loaded.values(12) == {}
    assert audit(tmp_path / "a").problems == []
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_values_are_sampled_with_their_images() -> None:
    """As tensors, in the order of the labels; an image without the value is reported."""
    memory = with_logits()
    _, labels, found, tasks = memory.sample(8, values=("logits", "task"))
    assert found.shape == (8, 10) and torch.equal(tasks, labels)
    assert torch.equal(labels, (found[:, 0] >= 1000).long())
    memory.add({2: [jpeg(900)]})
    with pytest.raises(UsageError, match="1 of 13 images have no value 'logits'"):
        memory.sample(13, values=("logits",))


@pytest.mark.parametrize("budget", [Budget(6000, "bytes"), Budget(4000, "originals", 1.0)])
def test_values_are_charged(budget: Budget, tmp_path: Path) -> None:
    """To any budget: 40 bytes of logits and their description leave room for fewer images."""
    plain, beside = ReplayMemory(budget, "jpeg", 50), with_logits(budget, images=30)
    plain.add({label: [jpeg(100 * label + n) for n in range(30)] for label in range(2)})
    assert len(beside) < len(plain)
    assert beside.nbytes <= 4000 or beside.whole_file
    beside.save(tmp_path / "a")
    assert audit(tmp_path / "a").problems == []


def test_values_are_exported(tmp_path: Path) -> None:
    """In the .json of a WebDataset sample."""
    with_logits(images=2).save(tmp_path / "a")
    export(open_memory(tmp_path / "a"), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as tar:
        text = tar.extractfile("00000003.json").read()  # type: ignore[union-attr]
    assert json.loads(text)["values"] == {"task": 1, "logits": logits(1, 2)[1].tolist()}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1], "got 1 values 'x' for 2 images"),
        ([{1, 2}, 3], "values x: Object of type set is not JSON serializable; give an array"),
        ([float("nan"), 1], "Out of range float values are not JSON compliant"),
        (np.array(["a", "b"]), "value 'x' has the type <U1: give an array of numbers"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "bfloat16 tensor: convert it to float16"),
    ],
)
def test_other_values_are_refused(column: Any, message: str) -> None:
    """The memory stays empty."""
    memory = ReplayMemory("1MB")
    with pytest.raises(UsageError, match=message):
        memory.add({0: [jpeg(0), jpeg(1)]}, values={0: {"x": column}})
    assert len(memory) == 0


@pytest.mark.parametrize(
    "data", [b"x", b"[]", b"[{},{}]\0more", b'[{},{"a":["<f4",3]}]\0abc', b'[{},{"a":["O",1]}]\0',
             b'[{},{"a":["<f4",-1]}]\0', b"[" * 9999, b'[3,{}]\0'],
)  # fmt: skip
def test_damaged_values_are_found(data: bytes, tmp_path: Path) -> None:
    """When read, and by the audit, even with a valid checksum."""
    with pytest.raises(MemoryFileError, match="values beside an image are damaged"):
        unpack(data)
    memory = ReplayMemory("1MB")
    memory.add({0: [jpeg(0)]}, values={0: {"x": [1]}})
    memory.save(tmp_path / "a")
    sound = MemoryFile(tmp_path / "a")
    index = {name: np.array(array) for name, array in sound.arrays.items()}
    body = sound.stored(0)[: -int(index["value_sizes"][0])]
    index["value_sizes"][0], index["offsets"][1] = len(data), len(body + data)
    index["digests"][0] = np.frombuffer(digest(sound, data), "u1")
    meta = {name: value for name, value in sound.meta.items() if name != "tables"}
    write_memory(tmp_path / "a", index, [body, data], len(body + data), meta, sound.tables)
    assert "image 0: values beside an image are damaged" in audit(tmp_path / "a").problems[0]


def digest(file: MemoryFile, values: bytes) -> bytes:
    """The checksum of the first image with other values."""
    from mrdc.memory.encode import image_digest

    return image_digest(file.stream(0), values)
