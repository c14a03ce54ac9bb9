"""Audit a memory file: check every byte and checksum."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mrdc._utils.errors import MemoryFileError, MrdcError
from mrdc._utils.store_path import as_path
from mrdc._utils.threads import ordered, workers
from mrdc.data.photo import to_pixels
from mrdc.memory.file import MemoryFile
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
    """Check the index and the budget of a memory file, and decode every image."""
    path = as_path(path)
    if not path.is_file():
        raise MemoryFileError(f"{path}: no such memory file")
    size = path.stat().st_size
    try:
        file = MemoryFile(path)
    except MemoryFileError as error:
        return Audit(0, 0, 0, size, [str(error)])
    budget = file.meta["budget"]["bytes"]
    problems = _index_problems(file)
    with workers(None) as pool:
        for _, problem in ordered(pool, partial(_image_problem, file), range(len(file))):
            progress(1)
            problems += [problem] if problem else []
    used, what = (size, "file") if file.meta["whole_file"] else (file.image_bytes, "images")
    if used > budget:
        problems.append(f"{used:,} bytes of {what} exceed the budget of {budget:,}")
    return Audit(len(file), file.image_bytes, budget, size, problems)


def _index_problems(file: MemoryFile) -> list[str]:
    """Problems of an index that opening the file does not look for."""
    arrays, problems = file.arrays, []
    pairs = np.column_stack([arrays["labels"], arrays["digests"]])
    if len(np.unique(pairs, axis=0)) != len(pairs):
        problems.append("a class holds the same image twice")
    return problems


def _image_problem(file: MemoryFile, index: int) -> str | None:
    if not file.intact(index):
        return f"image {index}: its bytes do not match their SHA-256"
    try:
        to_pixels(file.load(index), f"image {index}")
        unpack(file.values(index))
    except MemoryFileError as error:
        return f"image {index}: {error}"
    except MrdcError as error:
        return str(error)
    return None
