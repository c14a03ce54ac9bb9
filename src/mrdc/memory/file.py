"""The memory file: a safetensors file that is mapped, checked and written atomically.

Arrays: `offsets`, `digests`, `labels`, `ranks`, `tables`, `kept`, `sources` and, last,
`payload` (all encoded images end to end). Files with boxes also have `box_counts` and
`boxes` after `ranks`. Metadata: `format`, `memory` (JSON) and `sha256`, the hash of the
header (with that field zeroed) and of every array but the payload. `digests` holds the
SHA-256 of each image, so this one hash covers the whole file, yet checking it reads only
the index.
"""

import base64
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.files import whole_file
from mrdc.codec.jpeg import join
from mrdc.data.scenes import Boxes
from mrdc.memory.boxes import box_problems
from mrdc.memory.budget import Budget

FORMAT = "mrdc-memory-1"
ZEROS = b"0" * 64  # placeholder of the digest
DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "F32": np.dtype("<f4"),
    "U8": np.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ARRAYS = ("offsets", "digests", "labels", "ranks", "tables", "kept", "sources", "payload")
WITH_BOXES = (*ARRAYS[:4], "box_counts", "boxes", *ARRAYS[4:])


class MemoryFile:
    """A memory file opened for reading; the payload stays on disk.

    Raises:
        MemoryFileError: missing, not a memory file, cut short, or an index
            that does not match its checksum.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        raw = self._read_header()
        header, start = json.loads(raw), 8 + len(raw)
        metadata = header.pop("__metadata__", {})
        if metadata.get("format") != FORMAT or tuple(header) not in (ARRAYS, WITH_BOXES):
            raise MemoryFileError(f"{path}: not a memory file of mrdc, or damaged")
        self.sha256: str = metadata.get("sha256", "")
        index = np.memmap(self.path, "u1", "r")[start:][: header["payload"]["data_offsets"][0]]
        if index_digest(raw.replace(self.sha256.encode(), ZEROS), [index]) != self.sha256:
            raise MemoryFileError(f"{path}: the index does not match its checksum: damaged")
        self.arrays = {name: self._array(start, entry) for name, entry in header.items()}
        self.meta: dict[str, Any] = json.loads(metadata["memory"])
        self.tables = [base64.b64decode(table) for table in self.meta["tables"]]

    def _read_header(self) -> bytes:
        """The JSON header; safetensors refuses one that is malformed or does not span the file."""
        path = self.path
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise MemoryFileError(f"{path}: not a regular file, so not a memory file")
            with path.open("rb") as file, safe_open(path, framework="numpy"):
                return file.read(int.from_bytes(file.read(8), "little"))
        except FileNotFoundError:
            raise MemoryFileError(f"{path}: no such memory file") from None
        except SafetensorError as error:
            raise MemoryFileError(
                f"{path}: not a memory file, or cut short or damaged ({error})"
            ) from None
        except OSError as error:
            raise MemoryFileError(f"{path}: cannot be read ({error.strerror})") from None

    def _array(self, start: int, entry: dict[str, Any]) -> NDArray[Any]:
        begin, end = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        if begin == end:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, "r", start + begin, shape)

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
    def sources(self) -> list[str]:
        """Id of each image, in file order."""
        return split_names(self.arrays["sources"].tobytes())

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Names of the box classes by label; empty without boxes."""
        return tuple(self.meta.get("box_classes", ()))

    @property
    def boxes(self) -> list[Boxes]:
        """Boxes of each image, in file order; empty without boxes.

        Raises:
            MemoryFileError: invalid boxes.
        """
        if "boxes" not in self.arrays:
            return []
        counts, rows = self.arrays["box_counts"], np.array(self.arrays["boxes"])
        problems = box_problems(counts, rows, self.sources, len(self.box_classes))
        if problems:
            raise MemoryFileError(f"{self.path}: {problems[0]}")
        return np.split(rows, np.cumsum(counts))[:-1]

    def stream(self, index: int) -> bytes:
        """An image as a whole file, with its tables."""
        begin, end = self.arrays["offsets"][index : index + 2]
        body = self.arrays["payload"][begin:end].tobytes()
        table = self.arrays["tables"][index]
        return body if table < 0 else join(self.tables[table], body)

    def intact(self, index: int) -> bool:
        """Check an image against its stored SHA-256."""
        return hashlib.sha256(self.stream(index)).digest() == self.digest(index)

    def digest(self, index: int) -> bytes:
        """SHA-256 stored for an image."""
        found: bytes = self.arrays["digests"][index].tobytes()
        return found


def index_digest(header: bytes, index: Iterable[NDArray[Any]]) -> str:
    """SHA-256 of the header, with its digest zeroed, and of the arrays before the payload."""
    digest = hashlib.sha256(header)
    for array in index:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def index_entry(source: str) -> int:
    """Bytes of the index for one image, without its boxes."""
    return 8 + 32 + 4 + 4 + 2 + 1 + len(os.fsencode(source)) + 1


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

    Args:
        arrays: every array of the file but the payload.
        payload: the stored bytes, in order, `payload_bytes` in total.
        meta: the JSON metadata.
        tables: shared JPEG headers that the array `tables` refers to.
    """
    layout: dict[str, dict[str, Any]] = {}
    position, names = 0, WITH_BOXES if "boxes" in arrays else ARRAYS
    for name in names:
        array = arrays.get(name)
        size = payload_bytes if array is None else array.nbytes
        layout[name] = {
            "dtype": "U8" if array is None else NAMES[array.dtype],
            "shape": [size] if array is None else list(array.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    raw = _header(layout, meta, tables)
    index = [arrays[name] for name in names[:-1]]
    digest = index_digest(raw, index)
    with whole_file(path) as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw.replace(ZEROS, digest.encode(), 1))
        for array in index:
            file.write(np.ascontiguousarray(array).data)
        for piece in payload:
            file.write(piece)
    return digest


def head_bytes(file_bytes: int, meta: dict[str, Any], tables: list[bytes], boxes: bool) -> int:
    """Most bytes a file of `file_bytes` needs besides images and their index entries."""
    largest = {"dtype": "I64", "shape": [file_bytes], "data_offsets": [file_bytes] * 2}
    layout = dict.fromkeys(WITH_BOXES if boxes else ARRAYS, largest)
    for wide in {"digests", "boxes"} & layout.keys():
        layout[wide] = largest | {"shape": [file_bytes, 32]}
    last_offset = 8
    return 8 + len(_header(layout, meta, tables)) + last_offset


def _header(layout: dict[str, dict[str, Any]], meta: dict[str, Any], tables: list[bytes]) -> bytes:
    """The JSON header, its digest still zeros."""
    encoded = [base64.b64encode(table).decode() for table in tables]
    metadata = {
        "format": FORMAT,
        "sha256": ZEROS.decode(),
        "memory": json.dumps({**meta, "tables": encoded}, sort_keys=True),
    }
    raw = json.dumps({"__metadata__": metadata, **layout}, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)
