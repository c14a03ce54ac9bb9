"""Memories in parts are written, read and edited like a single file."""

import gc
import json
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mrdc._utils.errors import MemoryFileError, OutputError, UsageError
from mrdc.memory import stored
from mrdc.memory.audit import audit
from mrdc.memory.edit import merge, rebudget, remove
from mrdc.memory.export import export
from mrdc.memory.file import MemoryFile
from mrdc.memory.manifest import MANIFEST
from mrdc.memory.names import Names
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.segments import Saved
from mrdc.memory.split import split
from mrdc.memory.stored import open_memory
from tests.conftest import jpeg
from tests.memory.folders import PART, bytes_in, contents, filled, parts
from tests.memory.folders import folder as folder
from tests.memory.folders import made as made


def test_a_folder_holds_what_a_file_holds(made: Path, tmp_path: Path) -> None:
    """Images, values, names and counts; every part is a sound memory file within its size."""
    memory, loaded = filled(), ReplayMemory.load(made)
    assert len(parts(made)) > 2 and loaded.part_size == PART
    assert contents(loaded) == contents(memory)
    assert (loaded.nbytes, loaded.budget) == (memory.nbytes, memory.budget)
    assert [loaded.seen(label) for label in loaded.labels] == [220] * 3
    for part in parts(made):
        assert audit(part).problems == [] and part.stat().st_size <= PART
    loaded.part_size = None
    loaded.save(tmp_path / "one.mrdc")
    assert contents(ReplayMemory.load(tmp_path / "one.mrdc")) == contents(memory)


def test_the_same_memory_has_the_same_parts(made: Path, tmp_path: Path) -> None:
    """Byte for byte, whether from RAM, an unnamed file, a folder or a file."""
    filled(spool=tmp_path).save(tmp_path / "spooled")
    loaded = ReplayMemory.load(made)
    loaded.save(tmp_path / "again")
    loaded.part_size = None
    loaded.save(tmp_path / "one.mrdc")
    back = ReplayMemory.load(tmp_path / "one.mrdc")
    back.part_size = PART
    back.save(tmp_path / "back")
    for other in ("spooled", "again", "back"):
        assert bytes_in(tmp_path / other) == bytes_in(made)


def test_one_budget_bounds_manifest_and_parts(tmp_path: Path) -> None:
    """The budget in bytes is used up, not exceeded; the audit adds up all files."""
    memory = ReplayMemory("60kB", "jpeg", 30, part_size=PART)
    images = {label: [jpeg(1000 * label + n, 95, 12, 12) for n in range(300)] for label in (0, 1)}
    memory.add(images)
    memory.save(tmp_path / "m")
    found = audit(tmp_path / "m")
    total = sum(map(len, bytes_in(tmp_path / "m").values()))
    assert (found.problems, found.file_bytes) == ([], total)
    assert len(memory) < 600 and 45_000 < total <= 60_000


@given(
    st.lists(st.lists(st.integers(1, 4000), min_size=1, max_size=30), max_size=6),
    st.integers(2500, 9000),
)
@settings(max_examples=60, deadline=None)
def test_a_split_keeps_order_and_fills_parts(costs: list[list[int]], part_size: int) -> None:
    """Every image is in one part, in order; no image would have fitted into the part before."""
    classes = [{"label": n, "items": len(c), "name": "x" * n} for n, c in enumerate(costs)]
    meta = {"classes": classes, "notes": {}}
    given_costs = [(n, np.array(c, np.int64)) for n, c in enumerate(costs)]
    cuts = list(split(given_costs, part_size, meta, [], []))
    ranks = [(n, r) for cut in cuts for n, ends in cut.items() for r in range(*ends)]
    assert ranks == [(n, r) for n, c in enumerate(costs) for r in range(len(c))]
    used = [sum(sum(costs[n][slice(*ends)]) for n, ends in cut.items()) for cut in cuts]
    for cut, now, after in zip(cuts, used, cuts[1:], strict=False):
        label, (begin, _) = next(iter(after.items()))
        single = sum(end - start for start, end in cut.values()) == 1
        assert single or now <= part_size
        assert now + costs[label][begin] + 2000 > part_size or single


def test_a_large_image_has_a_part_of_its_own(tmp_path: Path) -> None:
    """Even if it is larger than a part should be."""
    memory = ReplayMemory("2MB", "original", part_size="20kB")
    memory.add({0: [jpeg(0), jpeg(1, 95, 400, 400), jpeg(2)]})
    memory.save(tmp_path / "m")
    assert [open_memory(part).meta["classes"][0]["items"] for part in parts(tmp_path / "m")]
    assert audit(tmp_path / "m").problems == []
    assert all(audit(part).problems == [] for part in parts(tmp_path / "m"))
    assert max(part.stat().st_size for part in parts(tmp_path / "m")) > 20_000


@pytest.mark.parametrize("size", ["lots", "20/class", "0", "2kB"])
def test_impossible_part_sizes_are_refused(size: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(UsageError, match=r"write bytes such as 1GB|make it [\d,]+ bytes or more"):
        ReplayMemory("1MB", part_size=size).add({0: [jpeg(0)]})


def test_reading_opens_no_more_parts_than_it_needs(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None to open the memory; few stay mapped; an index is reread only if its file changed."""
    opened: list[tuple[str, bool]] = []

    def spy(path: Path, checked: bool = False) -> MemoryFile:
        opened.append((path.name, checked))
        return MemoryFile(path, checked)

    monkeypatch.setattr(stored, "MemoryFile", spy)
    monkeypatch.setattr(stored, "OPENED", 1)
    memory = ReplayMemory.load(made)
    assert (len(memory), len(memory.targets), memory.nbytes > 0, repr(memory) != "") and not opened
    first, last = parts(made)[0].name, parts(made)[-1].name
    for index in (0, 1, -1, 0):
        memory.encoded(index)
    assert opened == [(first, False), (last, False), (first, True)]


def test_workers_read_parts(made: Path) -> None:
    """They get the path, not the images."""
    memory = ReplayMemory.load(made)
    copied = pickle.dumps(memory)
    assert len(copied) < 5_000 and contents(pickle.loads(copied)) == contents(memory)
    loader = DataLoader(memory, batch_size=64, num_workers=1, multiprocessing_context="fork")
    images = torch.cat([x for x, _ in loader])
    assert torch.equal(images, torch.stack([memory[n][0] for n in range(len(memory))]))


def test_samples_and_batches_are_those_of_one_file(made: Path) -> None:
    """They do not depend on the form."""
    memory, loaded = filled(), ReplayMemory.load(made)
    for balanced in (False, True):
        ours, theirs = (m.sample(40, balanced=balanced, seed=3) for m in (memory, loaded))
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    for one, other in zip(memory.batches(50, 8), loaded.batches(50, 8), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_folders_are_edited_like_files(folder: Path, tmp_path: Path) -> None:
    """remove, rebudget, merge and export give the same results as for a file."""
    memory = ReplayMemory.load(folder)
    memory.part_size = None
    memory.save(tmp_path / "one.mrdc")
    remove(folder, ["class 1 \u00e9"], None, False)
    remove(tmp_path / "one.mrdc", ["class 1 \u00e9"], None, False)
    rebudget(folder, "40kB", tmp_path / "less", False)
    rebudget(tmp_path / "one.mrdc", "40kB", tmp_path / "less.mrdc", False)
    less, one = ReplayMemory.load(tmp_path / "less"), ReplayMemory.load(tmp_path / "less.mrdc")
    assert 0.8 * len(one) < len(less) <= len(one) and audit(tmp_path / "less").problems == []
    merge([folder, tmp_path / "one.mrdc"], tmp_path / "both", None, False)
    merge([tmp_path / "one.mrdc", folder], tmp_path / "both.mrdc", None, False)
    both = [ReplayMemory.load(tmp_path / name) for name in ("both", "both.mrdc")]
    assert both[0].part_size == PART and contents(both[0]) == contents(both[1])
    assert export(open_memory(folder), tmp_path / "out") == 440
    assert export(open_memory(tmp_path / "one.mrdc"), tmp_path / "out1") == 440
    listings = [(tmp_path / name / "manifest.csv").read_text() for name in ("out", "out1")]
    assert listings[0] == listings[1]


def test_the_manifest_of_something_else_is_not_replaced(made: Path, tmp_path: Path) -> None:
    """A folder of a web app or a browser extension, for example."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / MANIFEST).write_text('{"name": "my app"}')
    memory = ReplayMemory.load(made)
    with pytest.raises(OutputError, match=r"app: its manifest\.json is not one of a memory"):
        memory.save(tmp_path / "app")
    assert {path.name for path in (tmp_path / "app").iterdir()} == {MANIFEST}
    assert (tmp_path / "app" / MANIFEST).read_text() == '{"name": "my app"}'


def test_a_memory_is_changed_in_place(folder: Path) -> None:
    """Old parts are removed once the new ones, which the changed memory reads, are in place."""
    memory, before = ReplayMemory.load(folder), set(bytes_in(folder))
    memory.remove(0)
    expected = contents(memory)
    memory.save(folder)
    assert contents(memory) == contents(ReplayMemory.load(folder)) == expected
    listed = {entry["file"] for entry in json.loads((folder / MANIFEST).read_text())["parts"]}
    assert set(bytes_in(folder)) == listed | {MANIFEST} and not listed & before
    other = ReplayMemory.load(folder)
    memory.remove(1)
    memory.save(folder)
    with pytest.raises(MemoryFileError, match=r"part-\S+ is missing: replaced or deleted since"):
        other.encoded(0)


def test_a_memory_that_is_no_longer_used_is_closed(made: Path) -> None:
    """At once, not when the garbage collector runs."""
    memory = ReplayMemory.load(made)
    memory.encoded(0)
    file = weakref.ref(open_file(memory))
    gc.disable()
    try:
        del memory
        assert file() is None
    finally:
        gc.enable()


def open_file(memory: ReplayMemory) -> MemoryFile:
    segment = memory._find(0)[1].segments[0]
    assert isinstance(segment, Saved)
    return segment.part.file


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
@settings(deadline=None)
def test_names_are_found_without_splitting(names: list[str]) -> None:
    """Single names, consecutive ones and chosen ones, as in a list."""
    found, half = Names.of(names), len(names) // 2
    assert list(found) == [found[n] for n in range(len(found))] == names
    assert list(found.part(half, len(names))) == names[half:]
    assert list(found.take([*range(len(names))[::-1]])) == names[::-1]
    assert found.lengths.tolist() == [len(name.encode()) + 1 for name in names]
