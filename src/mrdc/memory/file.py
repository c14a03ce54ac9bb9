"""The memory file: a safetensors file that is mapped, checked and written atomically.

Arrays: those in `validate.KINDS`, without the `OPTIONAL` ones that the file has no use for. The
last one, `payload`, has all encoded images end to end, each followed by the values beside it.
Metadata: `format`, `memory` (JSON) and `sha256`, the hash of the header (with that field
zeroed) and of every array but the payload. `digests` holds the SHA-256 of each image and its
values, so this one hash covers the whole file, yet checking it reads only the index.
"""

import base64
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mrdc._utils.errors import MemoryFileError, OutputError, UsageError
from mrdc._utils.files import whole_file
from mrdc._utils.store_path import StorePath, as_path
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import join
from mrdc.codec.scaled import restored, stored_scale
from mrdc.data.scenes import Boxes
from mrdc.memory.budget import Budget
from mrdc.memory.remote import RemoteFile
from mrdc.memory.validate import (
    DTYPES,
    FORMAT,
    HEADER_BYTES,
    LEVELS,
    box_problems,
    check_index,
    layout_of,
    read_header,
    read_json,
    read_tables,
    shallow,
)

ZEROS = b"0" * 64  # placeholder of the digest
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ENTRY = 8 + 32 + 4 + 4 + 2 + 2 + 1  # bytes of the index for one image, besides its name


class MemoryFile:
    """A memory file opened for reading, its index checked; the payload stays on disk."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = as_path(path)
        raw = self._read_header()
        try:
            self._open(raw)
        except MemoryFileError as error:
            raise MemoryFileError(f"{path}: {error}") from None

    def _open(self, raw: bytes) -> None:
        """Check header and index, and map the arrays."""
        start, whole = 8 + len(raw), self._bytes
        header, metadata = read_header(raw, len(whole) - start)
        self.sha256: str = metadata["sha256"]
        payload = start + header.pop("payload")["data_offsets"][0]
        index = whole[start:payload]
        if index_digest(raw.replace(self.sha256.encode(), ZEROS, 1), [index]) != self.sha256:
            raise MemoryFileError("the index does not match its checksum: damaged")
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, entry in header.items():
            data = index[slice(*entry["data_offsets"])]
            self.arrays[name] = data.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        rest = whole.after(payload) if isinstance(whole, RemoteFile) else whole[payload:]
        self.arrays["payload"] = cast(NDArray[Any], rest)
        self.meta: dict[str, Any] = read_json(metadata["memory"])
        self.tables = read_tables(self.meta)
        check_index(self.arrays, self.meta, len(self.tables))

    def _read_header(self) -> bytes:
        """The JSON header; safetensors refuses one that is malformed or does not span the file."""
        path = self.path
        if isinstance(path, StorePath):
            self._bytes: RemoteFile | NDArray[np.uint8] = RemoteFile(path)
            length = int.from_bytes(self._bytes[:8].tobytes(), "little")
            if length > min(HEADER_BYTES, len(self._bytes) - 8):
                raise MemoryFileError(f"{path}: not a memory file, or cut short or damaged")
            return self._bytes[8 : 8 + length].tobytes()
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise MemoryFileError(f"{path}: not a regular file, so not a memory file")
            with path.open("rb") as file, safe_open(path, framework="numpy"):
                self._bytes = np.memmap(path, np.uint8, "r")
                return file.read(int.from_bytes(file.read(8), "little"))
        except FileNotFoundError:
            raise MemoryFileError(f"{path}: no such memory file") from None
        except SafetensorError as error:
            raise MemoryFileError(
                f"{path}: not a memory file, or cut short or damaged ({error})"
            ) from None
        except OSError as error:
            raise MemoryFileError(f"{path}: cannot be read ({error.strerror})") from None

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    @property
    def budget(self) -> Budget:
        """The budget the file was filled under."""
        entry = self.meta["budget"]
        return Budget(entry["amount"], entry["unit"], entry["original_bytes"])

    @property
    def image_bytes(self) -> int:
        """Bytes of the encoded images and the tables they share."""
        return self.arrays["payload"].nbytes + sum(map(len, self.tables))

    @property
    def class_names(self) -> dict[int, str]:
        """Names of the classes by label."""
        return {entry["label"]: entry["name"] for entry in self.meta["classes"]}

    @property
    def sources(self) -> list[str]:
        """Id of each image, in file order."""
        return split_names(self.arrays["sources"].tobytes())

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Names of the box classes by label; empty without boxes."""
        return tuple(self.meta.get("box_classes", ()))

    @property
    def boxes(self) -> list[Boxes]:
        """Boxes of each image, in file order; empty without boxes."""
        if "boxes" not in self.arrays:
            return []
        rows = np.array(self.arrays["boxes"])
        return np.split(rows, np.cumsum(self.arrays["box_counts"]))[:-1]

    def stream(self, index: int) -> bytes:
        """An image as a whole file, with its tables."""
        body, table = self._parts(index)[0], self.arrays["tables"][index]
        return body if table < 0 else join(self.tables[table], body)

    def values(self, index: int) -> bytes:
        """The values beside an image, as stored."""
        return self._parts(index)[1]

    def load(self, index: int) -> bytes | Pixels:
        """An image as training sees it: a whole file, or pixels if it was shrunk."""
        return restored(self.stream(index), self.scale(index))

    def scale(self, index: int) -> float:
        """By how much an image was shrunk; 1 if it was not."""
        codec = self.meta["encodings"][self.arrays["encodings"][index]]["codec"]
        return stored_scale(codec, bool(self.arrays["kept"][index]))

    def intact(self, index: int) -> bool:
        """Check an image and its values against their stored SHA-256."""
        return self.digest(index) == image_digest(self.stream(index), self.values(index))

    def digest(self, index: int) -> bytes:
        """SHA-256 stored for an image and its values."""
        return bytes(self.arrays["digests"][index])

    def _parts(self, index: int) -> tuple[bytes, bytes]:
        """Stored bytes of an image, and of the values beside it."""
        begin, end = map(int, self.arrays["offsets"][index : index + 2])
        values = int(self.arrays["value_sizes"][index]) if "value_sizes" in self.arrays else 0
        stored = self.arrays["payload"][begin:end].tobytes()
        return stored[: len(stored) - values], stored[len(stored) - values :]


def image_digest(stream: bytes, values: bytes) -> bytes:
    """SHA-256 of an image as a whole file, followed by the values beside it."""
    return hashlib.sha256(stream + values).digest()


def index_digest(header: bytes, index: Iterable[NDArray[Any]]) -> str:
    """SHA-256 of the header, with its digest zeroed, and of the arrays before the payload."""
    digest = hashlib.sha256(header)
    for array in index:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class IndexCost:
    """Bytes of the index for an image: what a budget in bytes is charged besides its body."""

    boxes: Mapping[str, Boxes] | None = None  # by source; None in a file without boxes
    values: bool = False  # whether the file has values

    def __call__(self, source: str) -> int:
        boxes = 0 if self.boxes is None else 4 + 20 * len(self.boxes.get(source, ()))
        return ENTRY + len(os.fsencode(source)) + 1 + boxes + 4 * self.values

    def all(self, names: bytes) -> NDArray[np.int64]:
        """The bytes for every image, from their joined names."""
        ends = np.flatnonzero(np.frombuffer(names, "u1") == 0)
        costs = np.diff(ends, prepend=-1) + ENTRY + 4 * self.values
        if self.boxes is not None:
            costs += [4 + 20 * len(self.boxes.get(name, ())) for name in split_names(names)]
        return costs.astype(np.int64)


def join_names(names: Iterable[str]) -> bytes:
    """Names as bytes, each followed by a NUL."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def split_names(data: bytes) -> list[str]:
    """Undo `join_names`."""
    return [os.fsdecode(name) for name in data.split(b"\0")[:-1]]


def write_memory(
    path: Path,
    arrays: dict[str, NDArray[Any]],
    payload: Iterable[bytes | memoryview],
    payload_bytes: int,
    meta: dict[str, Any],
    tables: list[bytes],
) -> str:
    """Write a memory file atomically and return the SHA-256 of its index.

    `arrays` has every array but the payload; its array `tables` refers to the shared JPEG
    headers in `tables`.
    """
    layout: dict[str, dict[str, Any]] = {}
    position, names = 0, layout_of(arrays)
    for name in names:
        array = arrays.get(name)
        size = payload_bytes if array is None else array.nbytes
        layout[name] = {
            "dtype": "U8" if array is None else NAMES[array.dtype.str],
            "shape": [size] if array is None else list(array.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    raw, index = _header(layout, meta, tables), [arrays[name] for name in names[:-1]]
    if len(raw) > HEADER_BYTES:
        raise OutputError(
            f"{path}: names, notes and tables would take {len(raw):,} bytes, but the header of a "
            f"memory file holds {HEADER_BYTES:,}: shorten the names, or store fewer classes"
        )
    digest = index_digest(raw, index)
    with whole_file(path) as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw.replace(ZEROS, digest.encode(), 1))
        for array in index:
            file.write(np.ascontiguousarray(array).data)
        for piece in payload:
            file.write(piece)
    return digest


def head_bytes(
    file_bytes: int, meta: dict[str, Any], tables: list[bytes], optional: Collection[str]
) -> int:
    """Most bytes a file of `file_bytes` needs besides images and their index entries."""
    largest = {"dtype": "I64", "shape": [file_bytes], "data_offsets": [file_bytes] * 2}
    layout = dict.fromkeys(layout_of(optional), largest)
    for wide in {"digests", "boxes"} & layout.keys():
        layout[wide] = largest | {"shape": [file_bytes, 32]}
    return 8 + len(_header(layout, meta, tables)) + 8  # the last offset


def _header(layout: dict[str, dict[str, Any]], meta: dict[str, Any], tables: list[bytes]) -> bytes:
    """The JSON header, its digest still zeros."""
    encoded = [base64.b64encode(table).decode() for table in tables]
    try:
        text = json.dumps({**meta, "tables": encoded}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"notes and names must be JSON values: {error}") from None
    if not shallow(meta.get("notes")):
        raise UsageError(f"notes must be JSON values of at most {LEVELS} levels")
    metadata = {"format": FORMAT, "sha256": ZEROS.decode(), "memory": text}
    raw = json.dumps({"__metadata__": metadata, **layout}, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def box_arrays(
    sources: list[str], boxes: Mapping[str, Boxes], classes: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Arrays of the memory file for the boxes of these images, in order; none without boxes."""
    none = np.empty((0, 5), "<f4")
    rows = [np.asarray(boxes.get(source, none), "<f4") for source in sources]
    for source, of_image in zip(sources, rows, strict=True):
        if of_image.ndim != 2 or of_image.shape[1] != 5:
            raise UsageError(f"boxes of {source} must have the shape (n, 5), got {of_image.shape}")
    counts, every = np.array([len(r) for r in rows], "<i4"), np.concatenate([none, *rows])
    if not classes and not len(every):
        return {}
    if problems := box_problems(counts, every, sources, len(classes)):
        raise UsageError(problems[0])
    return {"box_counts": counts, "boxes": every}
