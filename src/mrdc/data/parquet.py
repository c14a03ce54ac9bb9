"""Labelled images in Parquet files, and in Arrow files that `datasets` writes; needs pyarrow.

Images are read when they are needed: from a mapped Arrow file, or with their row group of a Parquet
file. The row groups read last are kept, up to 256 MB.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

from mrdc._utils.errors import DataError, ImageError
from mrdc._utils.store_path import StorePath, as_path
from mrdc._utils.stores import is_url
from mrdc.data.columns import Loader, arrow, class_names, find_columns, rows_of
from mrdc.data.images import Columns, Entry, ImageSet, by_number, gather
from mrdc.data.photo import check_bytes

MAX_GROUP = 1 << 30  # bytes of images in a row group
KEPT = 1 << 28  # bytes of row groups that are kept
ROWS = 64  # read at a time while opening a file
Part = tuple[Any, Any, Callable[[int], Loader]]  # images and classes of some rows, and loaders
Table = tuple[Any, Callable[[str, str], Iterator[Part]]]  # schema, and parts of two columns


def read_table(path: Path, prefix: str = "", columns: Columns | None = None) -> ImageSet:
    """Open the images of a Parquet or Arrow file; an id is `prefix` and the number of the row.

    Classes that the schema names are all there, even if they have no image.
    """
    arrow()
    is_arrow = path.suffix.lower() == ".arrow"
    if isinstance(path, StorePath) and is_arrow:
        raise DataError(f"{path}: Arrow files are mapped, so they must be local; copy it")
    with _errors(path):
        schema, parts = _open_arrow(path) if is_arrow else _open_parquet(path)
        image, label = find_columns(path, schema, columns)
        names = class_names(schema, label)
        prefix = prefix or f"{path.name}/"
        entries: list[Entry] = []
        for images, labels, load in parts(image, label):
            entries += rows_of(path, prefix, len(entries), images, labels, names, load)
    if not entries:
        raise DataError(f"{path}: has no rows")
    return gather(entries, names or sorted({name for name, _, _ in entries}, key=by_number))


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the file."""
    try:
        yield
    except (arrow().ArrowException, OSError) as error:
        line = str(error).strip().partition("\n")[0]
        raise DataError(f"{path}: cannot be read ({line})") from None


# Parquet: images are read with their row group


def _parquet(path: str) -> Any:
    """A Parquet file; of one in an object store, only what is asked for is read."""
    source = as_path(path).open("rb") if is_url(path) else path
    return arrow("pyarrow.parquet").ParquetFile(source)


def _open_parquet(path: Path) -> Table:
    file = _parquet(str(path))
    return file.schema_arrow, partial(_parquet_parts, path, file)


def _parquet_parts(path: Path, file: Any, image: str, label: str) -> Iterator[Part]:
    for group in range(file.num_row_groups):
        _check_group(path, file.metadata.row_group(group), image)
        start = 0
        for batch in file.iter_batches(ROWS, row_groups=[group], columns=[image, label]):
            load = partial(_parquet_loader, str(path), image, group, start)
            yield batch.column(image), batch.column(label), load
            start += len(batch)


def _check_group(path: Path, group: Any, image: str) -> None:
    parts = map(group.column, range(group.num_columns))
    found = (one for one in parts if one.path_in_schema.split(".")[0] == image)
    total = sum(one.total_uncompressed_size for one in found)
    if total > MAX_GROUP:
        raise DataError(
            f"{path}: {total:,} bytes of images in one row group, at most {MAX_GROUP:,} can be "
            "read; write it again with a row_group_size of about 100"
        )


def _parquet_loader(path: str, image: str, group: int, start: int, row: int) -> Loader:
    return partial(_from_parquet, path, image, group, start + row)


class Groups:
    """The row groups read last, up to a number of bytes; for all threads."""

    def __init__(self, most: int):
        self.most, self._lock = most, Lock()
        self._kept: OrderedDict[tuple[str, str, int], Any] = OrderedDict()

    def find(self, path: str, column: str, group: int) -> Any:
        """The images of a row group."""
        key = (path, column, group)
        with self._lock:
            if key not in self._kept:
                file = _parquet(path)
                self._kept[key] = file.read_row_group(group, columns=[column]).column(0)
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._nbytes() > self.most:
                self._kept.popitem(last=False)
            return self._kept[key]

    def unlock(self) -> None:
        """Forget a lock that was held when this process was forked."""
        self._lock = Lock()

    def _nbytes(self) -> int:
        return sum(images.nbytes for images in self._kept.values())


GROUPS = Groups(KEPT)
if hasattr(os, "register_at_fork"):  # another thread may hold the lock
    os.register_at_fork(after_in_child=GROUPS.unlock)


def _from_parquet(path: str, column: str, group: int, row: int) -> bytes:
    try:
        return _bytes(GROUPS.find(path, column, group)[row], f"{path}: row {row} of group {group}")
    except (arrow().ArrowException, OSError) as error:
        raise ImageError(f"{path}: cannot be read ({error})") from None


def _bytes(value: Any, name: str) -> bytes:
    """The bytes of one image, a struct or a binary value."""
    data = value["bytes"] if hasattr(value, "keys") else value
    buffer = data.as_buffer()
    check_bytes(buffer.size, name)
    return bytes(buffer)


# Arrow: batches are mapped


def _stamp(path: Path) -> int:
    return os.stat(path).st_mtime_ns


@lru_cache(maxsize=512)
def _batches(path: str, stamp: int) -> list[Any]:
    """The record batches of a stream, as `datasets` writes it, or of a file; mapped, not read."""
    mapped, ipc = arrow().memory_map(path), arrow("pyarrow.ipc")
    try:
        found = list(ipc.open_stream(mapped))
    except arrow().ArrowInvalid:
        reader = ipc.open_file(mapped)
        found = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    if not found:
        raise DataError(f"{path}: has no rows")
    return found


def _open_arrow(path: Path) -> Table:
    stamp = _stamp(path)
    return _batches(str(path), stamp)[0].schema, partial(_arrow_parts, path, stamp)


def _arrow_parts(path: Path, stamp: int, image: str, label: str) -> Iterator[Part]:
    for number, batch in enumerate(_batches(str(path), stamp)):
        load = partial(_arrow_loader, str(path), stamp, image, number)
        yield batch.column(image), batch.column(label), load


def _arrow_loader(path: str, stamp: int, image: str, number: int, row: int) -> Loader:
    return partial(_from_arrow, path, stamp, image, number, row)


def _from_arrow(path: str, stamp: int, column: str, number: int, row: int) -> bytes:
    return _bytes(_batches(path, stamp)[number].column(column)[row], f"{path}: row {row}")
