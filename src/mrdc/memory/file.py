"""The memory file: a safetensors file that is read by range and checked.

Arrays: those in `validate.KINDS`, without the `OPTIONAL` ones that the file does not need. The
last one, `payload`, has all encoded images end to end, each followed by the values beside it.
Metadata: `format`, `memory` (JSON) and `sha256`, the hash of the header (with that field
zeroed) and of every array but the payload. `digests` holds half the SHA-256 of each image and its
values, so this one hash covers the whole file, yet checking it reads only the index.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import MemoryFileError
from mrdc._utils.store_path import as_path
from mrdc.data.scenes import Boxes
from mrdc.memory.access import open_bytes
from mrdc.memory.encode import Encoding
from mrdc.memory.names import Names
from mrdc.memory.rows import Rows
from mrdc.memory.validate import (
    DTYPES,
    HEADER_BYTES,
    check_index,
    read_header,
    read_json,
    read_tables,
)

ZEROS = b"0" * 64  # placeholder of the digest


class MemoryFile(Rows):
    """A memory file opened for reading, its index checked; the payload stays where it is.

    `checked`: this very file was checked before, so its index need not be read again.
    """

    def __init__(self, path: str | os.PathLike[str], checked: bool = False):
        self.path = as_path(path)
        self._bytes = open_bytes(self.path)
        self.file_bytes = len(self._bytes)
        try:
            self._open(checked)
        except MemoryFileError as error:
            raise MemoryFileError(f"{path}: {error}") from None

    def _open(self, checked: bool) -> None:
        """Check header and index, and find the arrays."""
        raw = self._read_header()
        start = 8 + len(raw)
        header, metadata = read_header(raw, self.file_bytes - start)
        self.sha256: str = metadata["sha256"]
        begin, end = header.pop("payload")["data_offsets"]
        self._payload, self.payload_bytes = start + begin, end - begin
        index = self._bytes[start : self._payload]
        zeroed = raw.replace(self.sha256.encode(), ZEROS, 1)
        if not checked and index_digest(zeroed, [index]) != self.sha256:
            raise MemoryFileError("the index does not match its checksum: damaged")
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, entry in header.items():
            data = index[slice(*entry["data_offsets"])]
            self.arrays[name] = data.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        self.meta: dict[str, Any] = read_json(metadata["memory"])
        self.tables = read_tables(self.meta)
        if not checked:
            check_index(self.arrays, self.payload_bytes, self.meta, len(self.tables))

    def _read_header(self) -> bytes:
        """The JSON header."""
        length = int.from_bytes(self._bytes[:8].tobytes(), "little")
        raw = self._bytes[8 : 8 + min(length, HEADER_BYTES)].tobytes()
        if len(raw) != length or not raw.startswith(b"{"):
            raise MemoryFileError("not a memory file, or cut short or damaged")
        return raw

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    @property
    def box_classes(self) -> tuple[str, ...]:
        """Names of the box classes by label; empty without boxes."""
        return tuple(self.meta.get("box_classes", ()))

    @property
    def class_names(self) -> dict[int, str]:
        """Names of the classes by label."""
        return {entry["label"]: entry["name"] for entry in self.meta["classes"]}

    @property
    def boxes(self) -> list[Boxes]:
        """Boxes of each image, in file order; empty without boxes."""
        if "boxes" not in self.arrays:
            return []
        rows = np.array(self.arrays["boxes"])
        return np.split(rows, np.cumsum(self.arrays["box_counts"]))[:-1]

    @property
    def sources(self) -> list[str]:
        """Id of each image, in file order."""
        return list(self.names)

    # Rows

    @property
    def table_list(self) -> Sequence[bytes]:
        return self.tables

    @cached_property
    def encoding_list(self) -> Sequence[Encoding]:
        return [Encoding(**entry) for entry in self.meta["encodings"]]

    @cached_property
    def names(self) -> Names:
        return Names(self.arrays["sources"])

    @property
    def sizes(self) -> NDArray[Any]:
        return np.diff(self.arrays["offsets"])

    @cached_property
    def _zeros(self) -> NDArray[Any]:
        """Sizes of values in a file without values; takes no memory."""
        return np.broadcast_to(np.int32(0), len(self))

    def column(self, name: str) -> NDArray[Any]:
        return self.arrays.get(name, self._zeros)

    def stored(self, row: int) -> bytes:
        offsets = self.arrays["offsets"]
        begin, end = int(offsets[row]), int(offsets[row + 1])
        return self._bytes[self._payload + begin : self._payload + end].tobytes()

    def expected(self, row: int) -> bytes | None:
        return bytes(self.arrays["digests"][row])


def index_digest(header: bytes, index: Iterable[NDArray[Any]]) -> str:
    """SHA-256 of the header, with its digest zeroed, and of the arrays before the payload."""
    digest = hashlib.sha256(header)
    for array in index:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
