"""Write memory files: whole or not at all."""

import base64
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import OutputError, UsageError
from mrdc._utils.files import whole_file
from mrdc.data.scenes import Boxes
from mrdc.memory.file import ZEROS, index_digest
from mrdc.memory.names import DIGEST, Names
from mrdc.memory.validate import (
    DTYPES,
    FORMAT,
    HEADER_BYTES,
    box_problems,
    json_text,
    layout_of,
)

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_memory(
    path: Path | Callable[[str], Path],
    arrays: dict[str, NDArray[Any]],
    payload: Iterable[bytes | memoryview],
    payload_bytes: int,
    meta: dict[str, Any],
    tables: list[bytes],
) -> str:
    """Write a memory file atomically and return the SHA-256 of its index.

    Args:
        path: the file, or a function that names it by the SHA-256.
        arrays: every array but the payload; the array `tables` refers to `tables`.
        tables: headers that images share.
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
            f"{path(ZEROS.decode()) if callable(path) else path}: names, notes and tables would "
            f"take {len(raw):,} bytes, but the header of a "
            f"memory file holds {HEADER_BYTES:,}: shorten the names, or store fewer classes"
        )
    digest = index_digest(raw, index)
    with whole_file(path(digest) if callable(path) else path) as file:
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
        layout[wide] = largest | {"shape": [file_bytes, DIGEST]}
    return 8 + len(_header(layout, meta, tables)) + 8  # the last offset


def _header(layout: dict[str, dict[str, Any]], meta: dict[str, Any], tables: list[bytes]) -> bytes:
    """The JSON header, its digest still zeros."""
    encoded = [base64.b64encode(table).decode() for table in tables]
    text = json_text({**meta, "tables": encoded})
    metadata = {"format": FORMAT, "sha256": ZEROS.decode(), "memory": text}
    raw = json.dumps({"__metadata__": metadata, **layout}, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def box_arrays(
    sources: Names, boxes: Mapping[str, Boxes], classes: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Arrays of the memory file for the boxes of these images, in order; none without boxes."""
    if not classes and not boxes:
        return {}
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
