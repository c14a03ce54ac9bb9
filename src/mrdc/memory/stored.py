"""A memory on disk: one file, or a folder of parts with a manifest.

    stored = open_memory(path)
    for label, part, begin, end in stored.runs: ...   # images of a class, one after another
        part.file                                     # a MemoryFile, opened when first needed

Opening a folder reads its manifest and looks for the parts. A part is opened, and its index
checked against the manifest, when one of its images is first needed.
"""

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.store_path import as_path
from mrdc.memory.access import identity, sizes_in
from mrdc.memory.budget import Budget
from mrdc.memory.file import MemoryFile
from mrdc.memory.manifest import MANIFEST, NAME, Manifest, PartEntry, read_manifest

OPENED = 256  # most parts of a memory that are mapped at once; each needs a file descriptor


class Part:
    """A part of a memory, opened when it is needed."""

    def __init__(self, memory: "StoredMemory", number: int):
        self.memory, self.number = memory, number

    @property
    def file(self) -> MemoryFile:
        """The part as a memory file, its index checked."""
        return self.memory.file(self.number)

    def __len__(self) -> int:
        return sum(items for _, items in self.memory.classes(self.number))


class Run(NamedTuple):
    """Consecutive images of a class within a part."""

    label: int
    part: Part
    begin: int
    end: int


class StoredMemory(ABC):
    """A memory file or folder, opened for reading; pickles as its path.

    Attributes:
        meta: metadata of the whole memory, as in a memory file.
        sha256: identifies the contents.
        part_size: most bytes of a part; None for one file.
        payload_bytes: of all images and their values.
        file_bytes: of all files.
    """

    meta: dict[str, Any]
    tables: list[bytes]
    sha256: str
    part_size: int | None = None
    payload_bytes: int
    file_bytes: int

    def __init__(self, path: Path):
        self.path, self.absolute = path, path.absolute()

    @abstractmethod
    def file(self, number: int) -> MemoryFile:
        """A part as a memory file, its index checked."""

    @abstractmethod
    def classes(self, number: int) -> Sequence[Sequence[int]]:
        """Label and number of images of each class in a part."""

    @property
    @abstractmethod
    def parts(self) -> list[Part]:
        """The parts, in order; one file is one part."""

    def __len__(self) -> int:
        return sum(entry["items"] for entry in self.meta["classes"])

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (self.absolute, self.sha256)

    def is_at(self, path: Path) -> bool:
        """Whether a path, which exists, is where the memory was opened."""
        return self.absolute.exists() and self.absolute.samefile(path)

    @property
    def runs(self) -> Iterator[Run]:
        """All images, in order."""
        for part in self.parts:
            begin = 0
            for label, items in self.classes(part.number):
                yield Run(label, part, begin, begin + items)
                begin += items

    def files(self) -> Iterator[tuple[int, MemoryFile]]:
        """Every part, with the index of its first image in the memory."""
        first = 0
        for part in self.parts:
            yield first, part.file
            first += len(part)

    @property
    def budget(self) -> Budget:
        """The budget the memory was filled under."""
        entry = self.meta["budget"]
        return Budget(entry["amount"], entry["unit"], entry["original_bytes"])

    @property
    def image_bytes(self) -> int:
        """Bytes of images and values, and of the tables they share, each once."""
        return self.payload_bytes + sum(map(len, self.tables))

    @property
    def class_names(self) -> dict[int, str]:
        """Names of the classes by label."""
        return {entry["label"]: entry["name"] for entry in self.meta["classes"]}

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Names of the box classes by label; empty without boxes."""
        return tuple(self.meta.get("box_classes", ()))


class _OneFile(StoredMemory):
    """A memory in one file, which stays mapped, even if it is removed."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._file = MemoryFile(path)
        self.meta, self.tables = self._file.meta, self._file.tables
        self.sha256, self.file_bytes = self._file.sha256, self._file.file_bytes
        self.payload_bytes = self._file.payload_bytes

    @property
    def parts(self) -> list[Part]:
        return [Part(self, 0)]

    def file(self, number: int) -> MemoryFile:
        return self._file

    def classes(self, number: int) -> Sequence[Sequence[int]]:
        return [(entry["label"], entry["items"]) for entry in self.meta["classes"]]


class _Folder(StoredMemory):
    """A memory in parts, of which the most recently used ones stay mapped."""

    def __init__(self, path: Path):
        super().__init__(path)
        found = read_manifest(path)
        self._entries = found.parts
        self.meta, self.tables, self.sha256 = dict(found.meta), list(found.tables), found.sha256
        self.part_size = found.part_size
        self.payload_bytes = sum(entry.payload_bytes for entry in found.parts)
        self.file_bytes = found.bytes + sum(entry.bytes for entry in found.parts)
        self._opened: OrderedDict[int, MemoryFile] = OrderedDict()
        self._checked: dict[int, tuple[int, ...]] = {}  # what was checked, by number
        _look_for_parts(path, found)

    @property
    def parts(self) -> list[Part]:
        return [Part(self, number) for number in range(len(self._entries))]

    def classes(self, number: int) -> Sequence[Sequence[int]]:
        return self._entries[number].classes

    def file(self, number: int) -> MemoryFile:
        file = self._opened.get(number)
        file = self._open(number) if file is None else file
        with suppress(KeyError):  # another thread was faster
            self._opened[number] = file
            self._opened.move_to_end(number)
            while len(self._opened) > OPENED:
                self._opened.popitem(last=False)
        return file

    def _open(self, number: int) -> MemoryFile:
        """Open a part; its index is not read again if this very file was checked before."""
        entry = self._entries[number]
        path = self.absolute / entry.file
        found = identity(path)
        if found is None:
            _missing(self.path, entry.file, "replaced or deleted since the memory was opened")
        file = MemoryFile(path, checked=self._checked.get(number) == found)
        _check_part(file, entry)
        self._checked[number] = found
        return file


def _look_for_parts(folder: Path, manifest: Manifest) -> None:
    """Refuse a memory that lacks parts, or has parts of another length.

    Raises:
        MemoryFileError: the first part that is missing or wrong.
    """
    sizes = {name: size for name, size in sizes_in(folder).items() if NAME.fullmatch(name)}
    wanted = {part.file for part in manifest.parts}
    for part in manifest.parts:
        if part.file not in sizes:
            other = sizes and not wanted & sizes.keys()
            why = "the manifest is of another memory" if other else "it was moved or deleted"
            _missing(folder, part.file, why)
        if sizes[part.file] != part.bytes:
            raise MemoryFileError(
                f"{folder / part.file}: {sizes[part.file]:,} bytes, but the manifest says "
                f"{part.bytes:,}: cut short or replaced"
            )


def _missing(folder: Path, name: str, why: str) -> NoReturn:
    raise MemoryFileError(f"{folder}: the part {name} is missing: {why}")


def _check_part(file: MemoryFile, entry: PartEntry) -> None:
    """Refuse a sound memory file that is not the part the manifest describes."""
    classes = [[item["label"], item["items"]] for item in file.meta["classes"]]
    same = file.sha256 == entry.sha256 and file.payload_bytes == entry.payload_bytes
    if not same or classes != [list(pair) for pair in entry.classes]:
        raise MemoryFileError(
            f"{file.path}: not the part that the manifest describes, but one of another memory"
        )


def open_memory(path: str | os.PathLike[str]) -> StoredMemory:
    """Open a memory file, or a folder of parts.

    Raises:
        MemoryFileError: it is missing, damaged or something else.
    """
    path = as_path(path)
    return _Folder(path) if path.is_dir() else _OneFile(path)


def _open_again(path: Path, sha256: str) -> StoredMemory:
    memory = open_memory(path)
    if memory.sha256 != sha256:
        raise MemoryFileError(f"{path}: replaced since the memory was pickled")
    return memory


def size_on_disk(path: Path) -> int:
    """Bytes of a memory file, or of a manifest and its parts."""
    if not path.is_dir():
        return path.stat().st_size
    found = sizes_in(path).items()
    return sum(size for name, size in found if name == MANIFEST or NAME.fullmatch(name))
