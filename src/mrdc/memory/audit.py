"""Audit a memory: check every byte and checksum."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from mrdc._utils.errors import MemoryFileError, MrdcError
from mrdc._utils.store_path import as_path
from mrdc._utils.threads import ordered, workers
from mrdc.codec.headers import join
from mrdc.codec.jpeg_progressive import scans_intact
from mrdc.codec.scaled import restored
from mrdc.data.photo import to_pixels
from mrdc.memory.encode import image_digest
from mrdc.memory.file import MemoryFile
from mrdc.memory.manifest import MANIFEST
from mrdc.memory.names import DIGEST
from mrdc.memory.stored import Part, StoredMemory, open_memory, size_on_disk
from mrdc.memory.values import unpack


@dataclass(frozen=True)
class Audit:
    """Result of an audit; an intact file has no problems."""

    items: int
    payload_bytes: int
    budget_bytes: int
    file_bytes: int
    problems: list[str]

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.problems, **self.__dict__}


def audit(
    path: str | os.PathLike[str], progress: Callable[[int], None] = lambda count: None
) -> Audit:
    """Check the index and the budget of a memory, and decode every image."""
    path = as_path(path)
    if not path.exists():
        raise MemoryFileError(f"{path}: no such memory file")
    if path.is_dir() and not (path / MANIFEST).exists():
        raise MemoryFileError(f"{path}: not a memory, as it has no {MANIFEST}")
    try:
        memory = open_memory(path)
    except MemoryFileError as error:
        return Audit(0, 0, 0, size_on_disk(path), [str(error)])
    budget = memory.meta["budget"]["bytes"]
    problems = [problem for part in memory.parts for problem in _part_problems(part, progress)]
    if not problems and _has_duplicates(memory):
        problems.append("a class holds the same image twice")
    whole, size = memory.meta["whole_file"], memory.file_bytes
    used, what = (size, "file") if whole else (memory.image_bytes, "images")
    if used > budget:
        problems.append(f"{used:,} bytes of {what} exceed the budget of {budget:,}")
    return Audit(len(memory), memory.image_bytes, budget, size, problems)


def _part_problems(part: Part, progress: Callable[[int], None]) -> list[str]:
    """Problems of a part: its index, and every image."""
    try:
        file = part.file
    except MemoryFileError as error:
        return [str(error)]
    where = f"{file.path.name}: " if part.memory.part_size else ""
    found = []
    with workers(None) as pool:
        for _, problem in ordered(pool, partial(_image_problem, file), range(len(file))):
            progress(1)
            found += [f"{where}{problem}"] if problem else []
    return found


def _has_duplicates(memory: StoredMemory) -> bool:
    """Whether a class holds two images with the same digest."""
    for _, runs in groupby(memory.runs, key=lambda run: run.label):
        rows = np.concatenate([r.part.file.arrays["digests"][r.begin : r.end] for r in runs])
        digests = rows.view(f"V{DIGEST}")[:, 0]
        starts = rows[:, :8].copy().view("<u8")[:, 0]  # equal for equal digests, quick to sort
        known, counts = np.unique(starts, return_counts=True)
        similar = digests[np.isin(starts, known[counts > 1])]
        if len(np.unique(similar)) < len(similar):
            return True
    return False


def _image_problem(file: MemoryFile, index: int) -> str | None:
    tables, body, values = file.pieces(index)
    stream = join(tables, body)
    if file.expected(index) != image_digest(stream, values):
        return f"image {index}: its bytes do not match their SHA-256"
    try:
        if file.has_scans(index) and not scans_intact(stream):
            return f"image {index}: its scans do not match the checksums written with it"
        to_pixels(restored(stream, file.scale(index)), f"image {index}")
        unpack(values)
    except MemoryFileError as error:
        return f"image {index}: {error}"
    except MrdcError as error:
        return str(error)
    return None
