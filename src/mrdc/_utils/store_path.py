"""Paths in object stores: the part of pathlib that reading a source or a memory needs."""

import errno
import io
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path, PosixPath
from typing import IO, Any

from mrdc._utils import stores

AHEAD = 1 << 22  # bytes that a file reads at a time, or more


def as_path(given: str | os.PathLike[str]) -> Path:
    """A local path, or a StorePath for a URL."""
    if isinstance(given, Path):
        return given
    text = os.fspath(given)
    return StorePath(text) if stores.is_url(text) else Path(text)


class Tree:
    """All objects below a path, from one listing."""

    def __init__(self, root: "StorePath"):
        self.root, self.files = root.parts, stores.listing(str(root))
        self.folders: dict[str, dict[str, None]] = {}  # names in each folder, by its place
        for place in self.files:
            while place and (folder := place.rpartition("/"))[2] not in self._names(folder[0]):
                self._names(folder[0])[folder[2]] = None
                place = folder[0]

    def _names(self, place: str) -> dict[str, None]:
        return self.folders.setdefault(place, {})

    def place(self, path: "StorePath") -> str | None:
        """The name of a path in the tree; None if it lies outside."""
        depth = len(self.root)
        return "/".join(path.parts[depth:]) if path.parts[:depth] == self.root else None


class StorePath(PosixPath):
    """The path of a URL. It can be looked at and read; `stores.put` writes.

    A `listed` path and those below it know from one listing what exists.
    """

    _tree: Tree | None = None

    def __str__(self) -> str:
        return "/".join([f"{self.parts[0]}/", *self.parts[1:]])

    def __truediv__(self, name: str | os.PathLike[str]) -> "StorePath":
        return self._made(*self.parts, name)

    @property
    def parent(self) -> "StorePath":
        return self._made(*self.parts[: max(2, len(self.parts) - 1)])

    def _made(self, *parts: str | os.PathLike[str]) -> "StorePath":
        made = StorePath(*parts)
        made._tree = self._tree
        return made

    def listed(self) -> "StorePath":
        """This path, with everything below it listed."""
        made = StorePath(*self.parts)
        made._tree = Tree(self)
        return made

    def absolute(self) -> "StorePath":
        return self

    def resolve(self, strict: bool = False) -> "StorePath":
        return self

    def samefile(self, other: str | os.PathLike[str]) -> bool:
        return str(self) == os.fspath(other)

    # What is there

    def _known(self) -> tuple[Tree, str] | None:
        """The listing that this path is in, and its name there; None if there is none."""
        place = self._tree.place(self) if self._tree else None
        return None if self._tree is None or place is None else (self._tree, place)

    def size(self) -> int | None:
        """Bytes of the object; None if there is none."""
        if known := self._known():
            return known[0].files.get(known[1])
        found = stores.find(str(self))
        return None if found is None else found.size

    def is_file(self) -> bool:
        return self.size() is not None

    def is_dir(self) -> bool:
        if known := self._known():
            return known[1] in known[0].folders
        return stores.is_folder(str(self))

    def is_symlink(self) -> bool:
        return False

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if (size := self.size()) is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(self))
        return os.stat_result((stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, size, 0, 0, 0))

    def iterdir(self) -> Generator["StorePath", None, None]:
        """Objects and folders in this folder, which must be in a listing."""
        if known := self._known():
            tree, place = known
            yield from (self / name for name in tree.folders.get(place, ()))

    def steps(self) -> Iterator[tuple[str, list[str], dict[str, int | None]]]:
        """Like `os.walk`: each folder, names of folders in it, and sizes of files by name."""
        if known := self._known():
            tree, place = known
            below = [f"{place}/{name}".lstrip("/") for name in tree.folders.get(place, ())]
            files = {n.rpartition("/")[2]: tree.files.get(n) for n in below if n in tree.files}
            folders = [n.rpartition("/")[2] for n in below if n in tree.folders]
            yield str(self), folders, files
            for name in folders:  # the caller may have removed some
                yield from (self / name).steps()

    # What is in it

    def open(  # type: ignore[override]
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open an object for reading, by requests for parts of it."""
        assert mode in ("r", "rb"), "written by stores.put"
        binary = io.BufferedReader(_Ranges(str(self), self.stat().st_size), AHEAD)
        return binary if mode == "rb" else io.TextIOWrapper(binary, encoding, errors, newline)


class _Ranges(io.RawIOBase):
    """The bytes of an object, read where they are needed."""

    def __init__(self, url: str, size: int):
        self._url, self._size, self._place = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        self._place = place + {os.SEEK_CUR: self._place, os.SEEK_END: self._size}.get(whence, 0)
        return self._place

    def readinto(self, into: Any) -> int:
        data = self._read(len(into))
        into[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._read(self._size)

    def _read(self, count: int) -> bytes:
        start, stop = self._place, min(self._size, self._place + count)
        if start >= stop:
            return b""
        data, self._place = stores.read(self._url, start, stop), stop
        return data
