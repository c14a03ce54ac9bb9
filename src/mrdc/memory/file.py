"""The memory file: one safetensors file, mapped, checked and written whole.

Arrays: `offsets`, `digests`, `labels`, `ranks`, `tables`, `kept`, `sources` and, last,
`payload` (all encoded images end to end); images with boxes also have `box_counts` and
`boxes`, behind `ranks`. Metadata: `format`, `memory` (JSON)
and `sha256`, taken over the header with that field zeroed and over every array
but the payload. Since `digests` holds the SHA-256 of each image, that one hash
vouches for the whole file, yet checking it reads only the index.
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

FORMAT = "mrdc-memory-1"
ZEROS = b"0" * 64  # where the digest will stand
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
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise MemoryFileError(f"{path}: not a regular file, so no memory file")
            with self.path.open("rb") as file, safe_open(self.path, framework="numpy"):
                # safetensors has refused a header that is malformed or does not span the file
                length = int.from_bytes(file.read(8), "little")
                raw = file.read(length)
        except FileNotFoundError:
            raise MemoryFileError(f"{path}: no such memory file") from None
        except SafetensorError as error:
            raise MemoryFileError(
                f"{path}: not a memory file, or cut short or damaged ({error})"
            ) from None
        except OSError as error:
            raise MemoryFileError(f"{path}: cannot be read ({error.strerror})") from None
        header = json.loads(raw)
        metadata = header.pop("__metadata__", {})
        if metadata.get("format") != FORMAT or tuple(header) not in (ARRAYS, WITH_BOXES):
            raise MemoryFileError(f"{path}: not a memory file of mrdc, or damaged")
        self.sha256: str = metadata.get("sha256", "")
        index = np.memmap(self.path, "u1", "r")[8 + length :][
            : header["payload"]["data_offsets"][0]
        ]
        if index_digest(raw.replace(self.sha256.encode(), ZEROS), [index]) != self.sha256:
            raise MemoryFileError(f"{path}: the index does not match its checksum: damaged")
        self.arrays = {name: self._array(8 + length, entry) for name, entry in header.items()}
        self.meta: dict[str, Any] = json.loads(metadata["memory"])
        self.tables = [base64.b64decode(table) for table in self.meta["tables"]]

    def _array(self, start: int, entry: dict[str, Any]) -> NDArray[Any]:
        begin, end = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        if begin == end:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, "r", start + begin, shape)

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    @property
    def image_bytes(self) -> int:
        """What the budget is charged: encoded images and the tables they share."""
        return self.arrays["payload"].nbytes + sum(map(len, self.tables))

    @property
    def sources(self) -> list[str]:
        """Where each image came from, in the order of the file."""
        return split_names(self.arrays["sources"].tobytes())

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Names of what is in the boxes, by label; none where the images have no boxes."""
        return tuple(self.meta.get("box_classes", ()))

    @property
    def boxes(self) -> list[Boxes]:
        """Boxes of each image, in the order of the file; none where images have no boxes.

        Raises:
            MemoryFileError: boxes that cannot be.
        """
        if "boxes" not in self.arrays:
            return []
        counts, rows = self.arrays["box_counts"], np.array(self.arrays["boxes"])
        problems = box_problems(counts, rows, self.sources, len(self.box_classes))
        if problems:
            raise MemoryFileError(f"{self.path}: {problems[0]}")
        return np.split(rows, np.cumsum(counts))[:-1]

    def stream(self, index: int) -> bytes:
        """The whole encoded image: tables put back, as a file would hold it."""
        begin, end = self.arrays["offsets"][index : index + 2]
        body = self.arrays["payload"][begin:end].tobytes()
        table = self.arrays["tables"][index]
        return body if table < 0 else join(self.tables[table], body)

    def intact(self, index: int) -> bool:
        """Whether an image still has the SHA-256 it was stored with."""
        return hashlib.sha256(self.stream(index)).digest() == self.digest(index)

    def digest(self, index: int) -> bytes:
        """SHA-256 that an image was stored with."""
        found: bytes = self.arrays["digests"][index].tobytes()
        return found


class Mapped:
    """The payload of a memory file, read where it lies; pickles as the file's name."""

    def __init__(self, file: MemoryFile):
        self._file = file

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        return self._file.arrays["payload"][part]

    def digest(self, index: int) -> bytes:
        """SHA-256 that an image was stored with."""
        return self._file.digest(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._file.path.absolute(), self._file.sha256)


def _reopen(path: Path, sha256: str) -> Mapped:
    file = MemoryFile(path)
    if file.sha256 != sha256:
        raise MemoryFileError(f"{path}: replaced since the memory was pickled")
    return Mapped(file)


def index_digest(header: bytes, index: Iterable[NDArray[Any]]) -> str:
    """SHA-256 of the header, its own digest zeroed, and of what stands before the payload."""
    digest = hashlib.sha256(header)
    for array in index:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def index_entry(source: str) -> int:
    """Bytes of the index that one image takes, without its boxes."""
    return 8 + 32 + 4 + 4 + 2 + 1 + len(os.fsencode(source)) + 1


def box_entry(count: int) -> int:
    """Bytes of the index that the boxes of one image take."""
    return 4 + 20 * count


def box_problems(
    counts: NDArray[Any], rows: NDArray[Any], sources: list[str], classes: int
) -> list[str]:
    """What is wrong with boxes, end to end, of which each image has so many."""
    if rows.ndim != 2 or rows.shape[1] != 5:
        return [f"boxes must have the shape (n, 5), got {rows.shape}"]
    images = len(sources)
    if counts.shape != (images,) or (counts < 0).any() or counts.sum() != len(rows):
        return [f"box counts of {images} images do not add up to the {len(rows)} boxes"]
    wrong = {
        "a number that is not finite": ~np.isfinite(rows).all(axis=1),
        "a negative size": (rows[:, 2] < rows[:, 0]) | (rows[:, 3] < rows[:, 1]),
        f"a label that is none of {classes} box_classes": ~np.isin(rows[:, 4], np.arange(classes)),
    }
    owners = np.repeat(np.arange(images), counts)
    return [
        f"boxes of {sources[owners[bad.argmax()]]}: {what}"
        for what, bad in wrong.items()
        if bad.any()
    ]


def join_names(names: Iterable[str]) -> bytes:
    """Names as one run of bytes, a NUL after each."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def split_names(data: bytes) -> list[str]:
    return [os.fsdecode(name) for name in data.split(b"\0")[:-1]]


def write_memory(
    path: Path,
    arrays: dict[str, NDArray[Any]],
    payload: Iterable[bytes | memoryview],
    payload_bytes: int,
    meta: dict[str, Any],
    tables: list[bytes],
) -> None:
    """Write a memory file in one piece, or not at all.

    Args:
        arrays: every array of the file but the payload.
        payload: the stored bytes, in order, `payload_bytes` in all.
        meta: what goes into the JSON metadata.
        tables: shared JPEG headers, to which the array `tables` points.
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
    digest = index_digest(raw, index).encode()
    with whole_file(path) as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw.replace(ZEROS, digest, 1))
        for array in index:
            file.write(np.ascontiguousarray(array).data)
        for piece in payload:
            file.write(piece)


def head_bytes(file_bytes: int, meta: dict[str, Any], tables: list[bytes], boxes: bool) -> int:
    """What a file of so many bytes has beside images and their index entries, at most."""
    largest = {"dtype": "I64", "shape": [file_bytes], "data_offsets": [file_bytes] * 2}
    layout = dict.fromkeys(WITH_BOXES if boxes else ARRAYS, largest)
    for wide in {"digests", "boxes"} & layout.keys():
        layout[wide] = largest | {"shape": [file_bytes, 32]}
    last_offset = 8
    return 8 + len(_header(layout, meta, tables)) + last_offset


def _header(layout: dict[str, dict[str, Any]], meta: dict[str, Any], tables: list[bytes]) -> bytes:
    """The JSON that the file begins with, its digest still zero."""
    encoded = [base64.b64encode(table).decode() for table in tables]
    metadata = {
        "format": FORMAT,
        "sha256": ZEROS.decode(),
        "memory": json.dumps({**meta, "tables": encoded}, sort_keys=True),
    }
    raw = json.dumps({"__metadata__": metadata, **layout}, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)
