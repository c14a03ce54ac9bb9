"""Check what a memory file says, before anything relies on it.

A right checksum proves that a file is what somebody wrote, not that it makes sense. `read_header`
checks where the arrays are, `check_index` what is in them and in the metadata. Both read no more
than the header and the index, and allocate in proportion to these.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import MemoryFileError, UsageError
from mrdc.codec.headers import is_header
from mrdc.codec.scaled import split_scale
from mrdc.memory.budget import Budget
from mrdc.memory.names import DIGEST, Names

FORMAT = "mrdc-memory-2"
DTYPES = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "F32": "<f4", "U8": "|u1"}
KINDS = {
    "offsets": "I64", "digests": "U8", "labels": "I32", "ranks": "I32", "box_counts": "I32",
    "boxes": "F32", "value_sizes": "I32", "tables": "I16", "encodings": "I16", "kept": "U8",
    "sources": "U8", "payload": "U8",
}  # arrays in file order  # fmt: skip
BOXES = frozenset({"box_counts", "boxes"})
OPTIONAL = BOXES | {"value_sizes"}
COLUMNS = {"digests": DIGEST, "boxes": 5}
FREE = ("sources", "payload", "boxes")  # of any length; the others have a row per image
TABLE_BYTES = 4096  # most bytes of tables that a JPEG can need
HEADER_BYTES = 100_000_000  # most that safetensors reads
LEVELS = 64  # most levels of lists and objects in the metadata
WORD = 200  # most characters of a codec, an encoder or a version
MANY = 2**53  # most images that a class has seen
Entries = dict[str, dict[str, Any]]


def read_header(raw: bytes, size: int) -> tuple[Entries, dict[str, str]]:
    """Arrays by name, and metadata, from the JSON header of a file with `size` bytes of arrays.

    Raises:
        MemoryFileError: not the header of a memory file.
    """
    header = read_json(raw)
    metadata = header.pop("__metadata__", {})
    written = metadata.get("format") if isinstance(metadata, dict) else None
    if written != FORMAT:
        if str(written).startswith(FORMAT[:-1]):
            raise MemoryFileError(f"has the format {written}; this version of mrdc reads {FORMAT}")
        raise MemoryFileError("not a memory file of mrdc")
    _refuse(_header_problems(header, metadata, size))
    return header, metadata


def read_json(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object with finite numbers and at most `LEVELS` levels."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not shallow(found):
        raise MemoryFileError("the header is not a JSON object: damaged or forged")
    return found


def shallow(value: object, levels: int = LEVELS) -> bool:
    """Whether a JSON value is nested at most this many levels deep."""
    if not isinstance(value, dict | list):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(shallow(part, levels - 1) for part in parts)


def read_tables(meta: Mapping[str, Any]) -> list[bytes]:
    """The headers that images share."""
    given = meta.get("tables")
    try:
        tables = [base64.b64decode(table, validate=True) for table in given or []]
    except (binascii.Error, TypeError, ValueError):
        tables = [b""]
    _refuse(["tables are not headers of images"] if not all(map(_is_table, tables)) else [])
    return tables


def check_index(
    arrays: Mapping[str, NDArray[Any]], payload: int, meta: Mapping[str, Any], tables: int
) -> None:
    """Check arrays and metadata, given the bytes of the payload and the number of tables.

    Raises:
        MemoryFileError: they do not make sense.
    """
    check_meta(meta)
    _refuse(_array_problems(arrays, payload, meta, tables))
    if "boxes" in arrays:
        names, classes = Names(arrays["sources"]), len(meta["box_classes"])
        _refuse(box_problems(arrays["box_counts"], arrays["boxes"], names, classes))


def check_meta(meta: Mapping[str, Any]) -> None:
    """Check the metadata of a memory.

    Raises:
        MemoryFileError: it does not make sense.
    """
    _refuse(_meta_problems(meta))


def check_new(meta: Mapping[str, Any]) -> None:
    """Check the metadata of a memory that is about to be written.

    Raises:
        UsageError: the file could not be opened again.
    """
    for problem in _meta_problems(json.loads(json_text(meta))):
        raise UsageError(f"the memory cannot be saved: {problem}")


def json_text(header: Mapping[str, Any], compact: bool = False) -> str:
    """The header of a memory, or the metadata in it, as JSON that `read_json` takes.

    Raises:
        UsageError: there are other values in it.
    """
    separators = (",", ":") if compact else None
    try:
        text = json.dumps(header, sort_keys=not compact, allow_nan=False, separators=separators)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"notes and names must be JSON values: {error}") from None
    if not shallow(header):
        raise UsageError(f"notes must be JSON values, and the header at most {LEVELS} levels deep")
    return text


def layout_of(present: Collection[str]) -> tuple[str, ...]:
    """Names of the arrays in file order; the optional ones if they are present."""
    return tuple(name for name in KINDS if name in present or name not in OPTIONAL)


def _refuse(problems: "Iterator[str] | list[str]") -> None:
    """Raise the first problem, if there is one."""
    for problem in problems:
        raise MemoryFileError(f"{problem}: damaged or forged")


def _header_problems(header: Entries, metadata: dict[str, Any], size: int) -> Iterator[str]:
    """Wrong names, types, shapes and places of arrays, which lie end to end."""
    if not all(isinstance(value, str) for value in metadata.values()) or "memory" not in metadata:
        yield "the metadata is not text"
    if not re.fullmatch("[0-9a-f]{64}", metadata.get("sha256", "")):
        yield "there is no checksum"
    if tuple(header) != layout_of(header) or 0 < len(BOXES & header.keys()) < len(BOXES):
        yield "the arrays are not those of a memory file"
    place, images = 0, _rows(header.get("labels"))
    for name, entry in header.items():
        rows = _rows(entry)
        expected = [rows] + ([COLUMNS[name]] if name in COLUMNS else [])
        kind, width = KINDS.get(name, "U8"), math.prod(expected[1:])
        if rows < 0 or entry != _entry(kind, expected, place):
            yield f"the array {name!r} has a wrong type, shape or place"
            return
        if name not in FREE and rows != images + (name == "offsets"):
            yield f"the array {name!r} has {rows:,} rows for {images:,} images"
        place += rows * width * np.dtype(DTYPES[kind]).itemsize
    if place != size:
        how = "cut short" if place > size else "too long"
        yield f"{how}, as the arrays take {place:,} bytes of {size:,}"


def _entry(kind: str, shape: list[int], place: int) -> dict[str, Any]:
    """An array in the header, if it begins at `place`."""
    size = math.prod(shape) * np.dtype(DTYPES[kind]).itemsize
    return {"dtype": kind, "shape": shape, "data_offsets": [place, place + size]}


def _rows(entry: object) -> int:
    """Number of rows that a header gives for an array; -1 if it gives none."""
    shape = entry.get("shape") if isinstance(entry, dict) else None
    first = shape[0] if isinstance(shape, list) and shape else None
    return first if whole(first, 2**62) else -1  # type: ignore[return-value]


def _meta_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    """Wrong types and values in the metadata."""
    if not _word(meta.get("mrdc")):
        yield "mrdc must be a short word"
    yield from _encoding_problems(meta)
    if meta.get("accounting") not in ("packed", "file"):
        yield "accounting must be packed or file"
    if not isinstance(meta.get("fade"), bool):
        yield "fade must be true or false"
    notes = meta.get("notes")
    if not isinstance(notes, dict) or not _texts(notes.get("skipped") or []):
        yield "notes must be an object, and skipped a list of texts"
    if not _texts(meta.get("box_classes", [])):
        yield "box_classes must be a list of texts"
    yield from _class_problems(meta.get("classes"))
    yield from _budget_problems(meta)


def _encoding_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    """Wrong encodings, of new images or of those in the file."""
    if not _codec(meta.get("codec")):
        yield "codec must be a short word, perhaps with a scale"
    if not _quality(meta.get("quality", -1)):
        yield "quality must be a whole number or null"
    encodings = meta.get("encodings")
    if not isinstance(encodings, list):
        yield "encodings must be a list"
        return
    for entry in encodings:
        if not isinstance(entry, dict) or entry.keys() != {"codec", "quality", "encoder"}:
            yield "an encoding must have a codec, a quality and an encoder"
        elif not _codec(entry["codec"]) or not _quality(entry["quality"]):
            yield "an encoding has a wrong codec or quality"
        elif not _word(entry["encoder"]):
            yield "an encoder must be a short word"


def _class_problems(classes: object) -> Iterator[str]:
    """Wrong classes."""
    if not isinstance(classes, list) or not all(isinstance(entry, dict) for entry in classes):
        yield "classes must be a list of objects"
        return
    for entry in classes:
        numbers = whole(entry.get("label")) and whole(entry.get("items"), low=1)
        if not numbers or not whole(entry.get("duplicates"), MANY):
            yield "a class must have a label, items and duplicates"
        elif not whole(entry.get("seen"), MANY, low=entry["items"]):
            yield "a class must have seen at least the images it holds"
        if not isinstance(entry.get("name"), str):
            yield "a class must have a name"
    if len({entry["label"] for entry in classes}) < len(classes):
        yield "two classes have the same label"


def _budget_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    """A budget that is invalid, or contradicts itself."""
    given = meta.get("budget")
    unit = given.get("unit") if isinstance(given, dict) else None
    if not isinstance(given, dict) or unit not in ("class", "phase", "originals", "bytes"):
        yield "the budget has no unit"
        return
    mean = given.get("original_bytes")
    counted = _positive(mean) or (mean is None and unit == "bytes")
    if not counted or not _positive(given.get("amount")):
        yield "the budget has no amount"
        return
    total = Budget(given["amount"], unit, mean).total_bytes(len(meta["classes"]))
    if given.get("bytes") != total or meta.get("whole_file") is not (unit == "bytes"):
        yield "the budget contradicts itself"


def _array_problems(
    arrays: Mapping[str, NDArray[Any]], payload: int, meta: Mapping[str, Any], tables: int
) -> Iterator[str]:
    """Wrong values in the index."""
    items = [entry["items"] for entry in meta["classes"]]
    labels, images = [entry["label"] for entry in meta["classes"]], len(arrays["labels"])
    if sum(items) != images:
        yield f"the classes have {sum(items):,} images, the index {images:,}"
        return
    ends = np.cumsum([0, *items])
    ranks = np.arange(images) - np.repeat(ends[:-1], items)
    if not np.array_equal(arrays["labels"], np.repeat(labels, items)):
        yield "the labels do not match the classes"
    if not np.array_equal(arrays["ranks"], ranks):
        yield "the ranks of a class are not 0, 1, 2, ..."
    offsets = arrays["offsets"]
    sizes = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != payload or (sizes <= 0).any():
        yield "the images do not cover the payload end to end"
    values = arrays.get("value_sizes")
    if values is not None and ((values < 0) | (values >= sizes)).any():
        yield "the values beside an image take more bytes than there are"
    table = arrays["tables"]
    if (table < -1).any() or (table >= tables).any():
        yield f"an image refers to a table that is not one of {tables}"
    made = arrays["encodings"]
    if (made < 0).any() or (made >= len(meta["encodings"])).any():
        yield f"an image refers to an encoding that is not one of {len(meta['encodings'])}"
    if (arrays["kept"] > 1).any():
        yield "an image is neither kept nor encoded"
    names = arrays["sources"]
    if np.count_nonzero(names == 0) != images or (images and names[-1] != 0):
        yield f"there are not as many sources as the {images:,} images"
    if ("boxes" in arrays) != bool(meta.get("box_classes")):
        yield "there are boxes without classes, or classes without boxes"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def whole(value: object, most: int = 2**31 - 1, low: int = 0) -> bool:
    """Whether a JSON value is a whole number in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= most


def _positive(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < 2**63  # type: ignore[operator]


def _word(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= WORD and value.isprintable()


def _codec(value: object) -> bool:
    """Whether a value may name a codec, perhaps with a scale."""
    try:
        return _word(value) and bool(split_scale(str(value))[0])
    except UsageError:
        return False


def _quality(value: object) -> bool:
    return value is None or whole(value)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_table(table: bytes) -> bool:
    return len(table) <= TABLE_BYTES and is_header(table)


def box_problems(
    counts: NDArray[Any], rows: NDArray[Any], sources: Names | Sequence[str], classes: int
) -> list[str]:
    """List what is wrong with boxes: `counts` for each image, and the `rows` of all images."""
    if rows.ndim != 2 or rows.shape[1] != 5:
        return [f"boxes must have the shape (n, 5), got {rows.shape}"]
    images = len(sources)
    if counts.shape != (images,) or (counts < 0).any() or counts.sum() != len(rows):
        return [f"box counts of {images} images do not add up to the {len(rows)} boxes"]
    wrong = {
        "a number is not finite": ~np.isfinite(rows).all(axis=1),
        "a negative size": (rows[:, 2] < rows[:, 0]) | (rows[:, 3] < rows[:, 1]),
        f"a label is not one of {classes} box_classes": ~np.isin(rows[:, 4], np.arange(classes)),
    }
    owners = np.repeat(np.arange(images), counts)
    return [
        f"boxes of {sources[int(owners[bad.argmax()])]}: {what}"
        for what, bad in wrong.items()
        if bad.any()
    ]
