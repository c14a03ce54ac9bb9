"""Memories in parts equal a single file, even after failures."""

import errno
import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import re
import shutil
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from mrdc.memory.folder import writing
from mrdc.memory.manifest import MANIFEST, ZEROS, read_manifest
from mrdc.memory.names import Names
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.segments import Saved
from mrdc.memory.split import split
from mrdc.memory.stored import open_memory
from tests.conftest import jpeg

PART = 30_000


def filled(classes: int = 3, images: int = 220, **options: Any) -> ReplayMemory:
    """A memory of three parts or so, with boxes and values beside some images."""
    memory = ReplayMemory("120kB", "jpeg", 30, part_size=PART, **options)
    memory.class_names = {label: f"class {label} \u00e9" for label in range(classes)}
    for label in range(classes):
        made = [jpeg(1000 * label + n, 95, 12, 12) for n in range(images)]
        values = {label: {"n": list(range(images))}} if label == 1 else None
        memory.add({label: made}, values=values)
    return memory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved memory, not to be changed."""
    path = tmp_path_factory.mktemp("parts") / "m"
    filled().save(path)
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of a memory, to be changed."""
    shutil.copytree(made, tmp_path / "m")
    return tmp_path / "m"


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.mrdc"))


def contents(memory: ReplayMemory) -> list[Any]:
    """Everything that a memory holds."""
    names = [name for label in memory.labels for name in memory.sources(label)]
    images = [(memory.encoded(n), memory.values(n)) for n in range(len(memory))]
    return [memory.targets.tolist(), memory.ranks.tolist(), names, images, memory.classes]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


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


# Failures


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and give it a valid checksum."""
    about = json.loads((folder / MANIFEST).read_text())
    change(about)
    about["sha256"] = ZEROS
    text = json.dumps(about)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(text.replace(ZEROS, digest, 1))


def refused(folder: Path, message: str) -> None:
    """Loading fails with a message; so does the audit, which reports it."""
    with pytest.raises(MemoryFileError, match=message):
        ReplayMemory.load(folder)
    assert any(re.search(message, problem) for problem in audit(folder).problems)


def test_a_missing_part_is_named(folder: Path) -> None:
    gone = parts(folder)[1]
    gone.unlink()
    refused(folder, f"{gone.name} is missing: it was moved or deleted")


def test_a_part_cut_short_is_named(folder: Path) -> None:
    part = parts(folder)[1]
    part.write_bytes(part.read_bytes()[:-1])
    refused(folder, f"{part.name}: .* but the manifest says .*: cut short or replaced")


def test_a_manifest_of_another_memory_is_found(folder: Path, tmp_path: Path) -> None:
    filled(images=210).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / MANIFEST, folder / MANIFEST)
    refused(folder, "is missing: the manifest is of another memory")


def test_a_part_of_another_memory_is_found(folder: Path) -> None:
    """When its first image is read, and by the audit, which also checks the other parts."""
    first, second = parts(folder)[:2]
    data = first.read_bytes()
    size = second.stat().st_size
    second.write_bytes(data[:size].ljust(size, b"x"))
    with pytest.raises(MemoryFileError, match=rf"{second.name}: (cut short|too long)"):
        [ReplayMemory.load(folder).encoded(n) for n in range(500)]
    assert len(audit(folder).problems) == 1
    shutil.copy(first, second)
    forge(folder, lambda about: about["parts"][1].update(bytes=len(data)))
    with pytest.raises(MemoryFileError, match=f"{second.name}: not the part that the manifest"):
        [ReplayMemory.load(folder).encoded(n) for n in range(500)]
    assert "but one of another memory" in audit(folder).problems[0]


def test_an_image_that_is_there_twice_is_found(tmp_path: Path) -> None:
    """The audit finds it even if the copies are in different parts."""
    memory = filled(classes=1, images=400)
    images = memory._classes[0]
    twice = (*images.segments, *images.part(3, 4).segments)
    memory._replace({0: replace(images, segments=twice, seen=401)})
    memory.save(tmp_path / "m")
    assert read_manifest(tmp_path / "m").parts[0].items < 400
    assert audit(tmp_path / "m").problems == ["a class holds the same image twice"]


def test_every_flipped_byte_is_found(folder: Path) -> None:
    """In the manifest when the memory is opened; in a part by the audit."""
    rng = np.random.default_rng(0)
    good = (folder / MANIFEST).read_bytes()
    for place in range(0, len(good), 7):
        broken = bytearray(good)
        broken[place] ^= 1 << int(rng.integers(7))
        (folder / MANIFEST).write_bytes(broken)
        with pytest.raises(MemoryFileError, match=r"manifest\.json: "):
            open_memory(folder)
    (folder / MANIFEST).write_bytes(good)
    part = parts(folder)[1]
    sound = part.read_bytes()
    for place in rng.integers(len(sound), size=12).tolist():
        part.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        problems = audit(folder).problems
        assert problems and all(part.name in problem for problem in problems)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda a: a.update(format="mrdc-folder-9"), "not the manifest of a memory"),
        (lambda a: a.update(part_size=0), "no part size"),
        (lambda a: a.update(more=1), "wrong fields"),
        (lambda a: a.update(parts={}), "no list of parts"),
        (lambda a: a["parts"][0].update(file="../m.mrdc"), "part 0 is not described"),
        (lambda a: a["parts"][1].update(items=True), "part 1 is not described"),
        (lambda a: a["parts"][1].update(sha256="0"), "part 1 is not described"),
        (lambda a: a["parts"][1].update(bytes=2), "part 1 is not described"),
        (lambda a: a["parts"][1].update(classes=[[0, "x"]]), "part 1 is not described"),
        (lambda a: a["parts"].pop(), "parts do not have the images of the classes"),
        (lambda a: a["parts"].reverse(), "part 0 is not described"),
        (lambda a: a["memory"].update(budget=None), "the budget has no unit"),
        (lambda a: a["memory"].update(tables=["x"]), "tables are not JPEG headers"),
    ],
)
def test_forged_manifests_are_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    """A valid checksum does not make a manifest sensible."""
    forge(folder, change)
    refused(folder, f"manifest.json: .*{problem}")


def test_a_full_disk_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While writing the second part: the old memory is kept, the first new part removed."""
    before, memory = bytes_in(folder), ReplayMemory.load(folder)
    memory.remove(0)
    plain, count = os.fsync, [0]

    def full(descriptor: int) -> None:
        count[0] += 1
        if count[0] > 2:  # the first part and its folder are synced
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match=r"part-\S+: cannot be written \(No space left"):
            memory.save(folder)
    assert bytes_in(folder) == before
    memory.save(folder)
    assert audit(folder).problems == [] and len(ReplayMemory.load(folder)) == len(memory)


@pytest.mark.parametrize("moment", ["part", "manifest"])
def test_a_killed_write_leaves_the_old_memory(folder: Path, moment: str) -> None:
    """Its leftovers are removed by the next write, and by nothing else."""
    before, expected = bytes_in(folder), contents(ReplayMemory.load(folder))
    killed = multiprocessing.get_context("fork").Process(target=_killed, args=(folder, moment))
    killed.start()
    killed.join()
    assert killed.exitcode == 9
    assert before.items() <= bytes_in(folder).items() and len(bytes_in(folder)) > len(before)
    memory = ReplayMemory.load(folder)
    assert contents(memory) == expected
    (folder / "notes.txt").touch()
    memory.save(folder)
    assert bytes_in(folder) == before | {"notes.txt": b""}


def _killed(folder: Path, moment: str) -> None:
    """Save another memory, and die before a file gets its final name."""
    plain = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if moment == "manifest" and target.name != MANIFEST:
            return plain(self, target)
        os._exit(9)

    Path.replace = replace  # type: ignore[method-assign, assignment]
    filled(images=200).save(folder)


def test_two_writers_do_not_mix(folder: Path, tmp_path: Path) -> None:
    """The second is refused at once; a nested write in the same thread is allowed."""
    before, memory = bytes_in(folder), ReplayMemory.load(folder)
    problems = list[str]()

    def write() -> None:
        try:
            memory.save(folder)
        except OutputError as error:
            problems.append(str(error))

    with writing(folder):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        memory.save(folder)
    assert "another process is writing this memory; wait for it" in problems[0]
    assert bytes_in(folder) == before
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "new"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_files_and_folders_do_not_replace_each_other(folder: Path, tmp_path: Path) -> None:
    memory = ReplayMemory.load(folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file: is a file, but with a part size"):
        memory.save(tmp_path / "file")
    memory.part_size = None
    with pytest.raises(OutputError, match="m: is a folder, but without a part size"):
        memory.save(folder)
    assert (tmp_path / "file").read_text() == "mine"


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
