"""Memories in parts after damage, a full disk, a kill or two writers at once."""

import errno
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrdc._utils.errors import MemoryFileError, OutputError
from mrdc.memory.audit import audit
from mrdc.memory.folder import writing
from mrdc.memory.manifest import MANIFEST, ZEROS, read_manifest
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from tests.memory.folders import bytes_in, contents, filled, parts
from tests.memory.folders import folder as folder
from tests.memory.folders import made as made


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
        (lambda a: a["memory"].update(tables=["x"]), "tables are not headers of images"),
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
