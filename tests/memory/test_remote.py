"""Memory files in an object store: read in blocks, written whole."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mrdc._utils import stores
from mrdc._utils.errors import MemoryFileError, OutputError, StoreError
from mrdc._utils.store_path import as_path
from mrdc.memory import remote
from mrdc.memory.audit import audit
from mrdc.memory.edit import rebudget
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from tests.conftest import jpeg
from tests.memory.memories import filled, streams
from tests.stores import break_store, objects, upload
from tests.stores import bucket as bucket


def test_a_memory_comes_back(bucket: str, tmp_path: Path) -> None:
    """Bytes, values and settings; the object is the file."""
    memory = ReplayMemory("1MB", "jpeg", 50, class_names={4: "cat"})
    memory.add({4: [jpeg(n) for n in range(6)]}, values={4: {"logits": np.eye(6)}})
    memory.save(tmp_path / "a.mrdc")
    memory.save(f"{bucket}/a.mrdc")
    data = (tmp_path / "a.mrdc").read_bytes()
    assert stores.read(f"{bucket}/a.mrdc", 0, len(data)) == data
    found = ReplayMemory.load(f"{bucket}/a.mrdc")
    assert streams(found) == streams(memory) and found.classes == ["cat"]
    assert np.array_equal(found.values(3)["logits"], np.eye(6)[3])
    assert audit(f"{bucket}/a.mrdc") == audit(tmp_path / "a.mrdc")


def test_opening_reads_the_index_and_images_their_blocks(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block is read once, however it is accessed."""
    monkeypatch.setattr(remote, "BLOCK", 1000)
    memory = filled()
    memory.save(f"{bucket}/a.mrdc")
    size = stores.sizes([f"{bucket}/a.mrdc"])[f"{bucket}/a.mrdc"]
    reads: list[tuple[int, int]] = []
    working = stores.read

    def read(url: str, start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return working(url, start, stop)

    monkeypatch.setattr(stores, "read", read)
    file = MemoryFile(f"{bucket}/a.mrdc")
    payload = size - file.payload_bytes
    assert max(stop for _, stop in reads) <= payload + 1000 < size
    opened = ReplayMemory.load(f"{bucket}/a.mrdc")
    reads.clear()
    assert streams(opened) == streams(opened) == streams(memory)
    assert len(set(reads)) == len(reads) <= (size - payload) // 1000 + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders(workers: int, bucket: str) -> None:
    """Forked workers read the store by themselves."""
    memory = filled()
    memory.save(f"{bucket}/a.mrdc")
    opened = ReplayMemory.load(f"{bucket}/a.mrdc")
    loader = DataLoader(opened, 4, num_workers=workers)
    images = torch.stack([memory[index][0] for index in range(len(memory))])
    assert torch.equal(torch.cat([batch for batch, _ in loader]), images)


def test_a_memory_that_is_replaced_by_itself(bucket: str) -> None:
    """Its images are then read from the new file."""
    filled().save(f"{bucket}/a.mrdc")
    memory = ReplayMemory.load(f"{bucket}/a.mrdc")
    memory.remove(0)
    before = streams(memory)
    memory.save(f"{bucket}/a.mrdc")
    assert streams(memory) == streams(ReplayMemory.load(f"{bucket}/a.mrdc")) == before


def test_a_memory_that_another_process_replaces(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image mixes bytes of two files."""
    monkeypatch.setattr(remote, "BLOCK", 1000)
    filled().save(f"{bucket}/a.mrdc")
    memory = ReplayMemory.load(f"{bucket}/a.mrdc")
    filled().save(f"{bucket}/a.mrdc")
    with pytest.raises(MemoryFileError, match=r"a\.mrdc: replaced since it was opened"):
        streams(memory)


def test_what_is_not_a_memory(bucket: str, tmp_path: Path) -> None:
    """Missing, empty, cut short, or something else."""
    with pytest.raises(MemoryFileError, match="none: no such memory file"):
        ReplayMemory.load(f"{bucket}/none")
    filled().save(tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for number, data in enumerate((b"", b"1234", whole[:100], whole[:-1], b"x" * 500)):
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(MemoryFileError, match=f"b{number}: .*(not a memory|bytes of|JSON)"):
            MemoryFile(upload(tmp_path / "b", f"{bucket}/b{number}"))


def test_a_lost_connection(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While it is read, and while it is written."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(remote, "BLOCK", 1000)
    memory = filled()
    memory.save(f"{bucket}/a.mrdc")
    with monkeypatch.context() as patch:
        break_store(patch, "cat_file", after=5)
        with pytest.raises(StoreError, match=r"a\.mrdc: the store cannot be used"):
            audit(f"{bucket}/a.mrdc")
    break_store(monkeypatch, "pipe_file")
    with pytest.raises(OutputError, match="it is kept as") as caught:
        memory.save(f"{bucket}/b.mrdc")
    kept = Path(str(caught.value).rpartition(" ")[2])
    assert streams(ReplayMemory.load(kept)) == streams(memory)
    assert objects() == ["/bucket/a.mrdc"]


def test_a_memory_fades_in_a_store(bucket: str) -> None:
    """Cut images go to a local temporary file."""
    memory = ReplayMemory("1MB", "jpeg-progressive", 75)
    memory.add({0: [jpeg(n) for n in range(6)]})
    path = as_path(f"{bucket}/a.mrdc")
    memory.save(path)
    rebudget(path, str(path.stat().st_size - 500), None, force=False, fade=True)
    found = ReplayMemory.load(path)
    assert len(found) == 6 and min(found.scans()) < 10


def many() -> ReplayMemory:
    """A memory of several parts."""
    memory = ReplayMemory("2MB", "original", part_size="24kB")
    memory.add({label: [jpeg(100 * label + n) for n in range(20)] for label in range(3)})
    return memory


def test_parts_come_back_and_are_replaced(bucket: str, tmp_path: Path) -> None:
    """The same parts as in a local folder; parts of an older generation are removed."""
    memory = many()
    memory.save(tmp_path / "m")
    memory.save(f"{bucket}/m")
    local = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    assert len(local) > 2
    assert objects() == sorted(f"/bucket/m/{name}" for name in local)
    found = ReplayMemory.load(f"{bucket}/m")
    assert streams(found) == streams(memory)
    assert audit(f"{bucket}/m") == audit(tmp_path / "m")
    memory.remove(memory.labels[0])
    memory.save(f"{bucket}/m")
    again = ReplayMemory.load(f"{bucket}/m")
    assert streams(again) == streams(memory)
    assert len(objects()) < len(local)


def test_the_manifest_of_something_else_is_not_replaced(bucket: str, tmp_path: Path) -> None:
    """As in a local folder."""
    (tmp_path / "a.json").write_text('{"name": "my app"}')
    upload(tmp_path / "a.json", f"{bucket}/app/manifest.json")
    with pytest.raises(OutputError, match=r"app: its manifest\.json is not one of a memory"):
        many().save(f"{bucket}/app")


def test_lost_part_is_named(bucket: str) -> None:
    many().save(f"{bucket}/m")
    part = next(name for name in objects() if name.endswith(".mrdc"))
    stores.remove([f"memory:/{part}", f"{bucket}/never-there"])
    with pytest.raises(MemoryFileError, match=r"part .* is missing: it was moved or deleted"):
        ReplayMemory.load(f"{bucket}/m")
