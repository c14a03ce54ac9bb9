"""The manifest of a memory in parts: `manifest.json` in its folder.

A JSON object with `format`, `part_size`, `memory` (the metadata of a memory file, for all parts
together), `parts`, and `sha256`: the hash of the text with 64 zeros in its place. The text has the
hash of every part's index, which has the hash of every image, so this hash identifies the memory.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from mrdc._utils.errors import MemoryFileError, OutputError
from mrdc._utils.files import whole_file
from mrdc.memory.access import open_bytes
from mrdc.memory.validate import (
    HEADER_BYTES,
    MANY,
    check_meta,
    json_text,
    read_json,
    read_tables,
    whole,
)

MANIFEST = "manifest.json"
FORMAT = "mrdc-folder-1"
ZEROS = "0" * 64  # placeholder of the digest
NAME = re.compile(r"part-\d{5,}-[0-9a-f]{12}\.mrdc")
FIELDS = {"format", "sha256", "part_size", "memory", "parts"}


@dataclass(frozen=True)
class PartEntry:
    """Record of a part, which is itself a memory file."""

    file: str  # its name, which has the first digits of its hash
    sha256: str  # of its index, as in its header
    bytes: int
    payload_bytes: int  # of images and their values
    items: int
    classes: Sequence[Sequence[int]]  # label and number of images, in order


def part_name(number: int, sha256: str) -> str:
    """The name of a part; other contents have another name."""
    return f"part-{number:05d}-{sha256[:12]}.mrdc"


@dataclass(frozen=True)
class Manifest:
    """A checked manifest."""

    meta: Mapping[str, Any]  # of the memory, as in a memory file
    tables: Sequence[bytes]  # shared by images
    part_size: int
    parts: Sequence[PartEntry]
    sha256: str
    bytes: int  # of the manifest itself


def write_manifest(
    folder: Path,
    meta: Mapping[str, Any],
    tables: Sequence[bytes],
    part_size: int,
    parts: Sequence[PartEntry],
) -> str:
    """Write the manifest, which makes these parts the memory; returns its SHA-256."""
    text = manifest_text(meta, tables, part_size, parts)
    if len(text) > HEADER_BYTES:
        raise OutputError(
            f"{folder / MANIFEST}: would take {len(text):,} bytes, but may take "
            f"{HEADER_BYTES:,}: shorten names and notes, or raise the part size"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    with whole_file(folder / MANIFEST) as file:
        file.write(text.replace(ZEROS, digest, 1).encode())
    return digest


def manifest_text(
    meta: Mapping[str, Any], tables: Sequence[bytes], part_size: int, parts: Sequence[PartEntry]
) -> str:
    """The manifest, its digest still zeros."""
    encoded = [base64.b64encode(table).decode() for table in tables]
    about = {
        "format": FORMAT,
        "sha256": ZEROS,
        "part_size": part_size,
        "memory": {**meta, "tables": encoded},
        "parts": [asdict(part) for part in parts],
    }
    return json_text(about, compact=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a folder.

    Raises:
        MemoryFileError: there is none, or it does not make sense.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise MemoryFileError(f"{folder}: not a memory, as it has no {MANIFEST}")
    data = open_bytes(path)
    if len(data) > HEADER_BYTES:
        raise MemoryFileError(f"{path}: too long for a manifest: damaged or forged")
    raw = data[:].tobytes()
    try:
        return _checked(read_json(raw), raw)
    except MemoryFileError as error:
        raise MemoryFileError(f"{path}: {error}") from None


def is_foreign(path: Path) -> bool:
    """Whether there is a file that no version of mrdc has written, even if it is damaged."""
    try:
        return path.exists() and FORMAT[:-1].encode() not in open_bytes(path)[:100].tobytes()
    except MemoryFileError:
        return True  # empty, or a folder


def _checked(about: dict[str, Any], raw: bytes) -> Manifest:
    if about.get("format") != FORMAT:
        raise MemoryFileError("not the manifest of a memory")
    digest = str(about.get("sha256"))
    zeroed = raw.replace(digest.encode(), ZEROS.encode(), 1)
    if hashlib.sha256(zeroed).hexdigest() != digest:
        raise MemoryFileError("does not match its checksum: damaged")
    for problem in _problems(about):
        raise MemoryFileError(f"{problem}: damaged or forged")
    meta = about["memory"]
    check_meta(meta)
    parts = [PartEntry(**entry) for entry in about["parts"]]
    if _classes(parts) != [(entry["label"], entry["items"]) for entry in meta["classes"]]:
        raise MemoryFileError("the parts do not have the images of the classes: damaged or forged")
    return Manifest(meta, read_tables(meta), about["part_size"], parts, digest, len(raw))


def _problems(about: Mapping[str, Any]) -> Iterator[str]:
    """Wrong fields of a manifest, besides the metadata."""
    if about.keys() != FIELDS or not whole(about["part_size"], MANY, low=1):
        yield "wrong fields, or no part size"
    elif not isinstance(about["memory"], dict) or not isinstance(about["parts"], list):
        yield "no metadata, or no list of parts"
    else:
        for number, entry in enumerate(about["parts"]):
            if not _is_part(entry, number):
                yield f"part {number} is not described as it should be"


def _is_part(entry: Any, number: int) -> bool:
    """Whether an entry has the fields of a part, and these agree with each other."""
    if not isinstance(entry, dict) or entry.keys() != PartEntry.__dataclass_fields__.keys():
        return False
    sizes = [entry[name] for name in ("items", "payload_bytes", "bytes")]
    digest, classes = entry["sha256"], entry["classes"]
    if not all(whole(size, MANY, low=1) for size in sizes) or sizes != sorted(sizes):
        return False
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return False
    pairs = isinstance(classes, list) and all(
        isinstance(pair, list) and len(pair) == 2 and whole(pair[0]) and whole(pair[1], MANY, 1)
        for pair in classes
    )
    return (
        pairs
        and entry["file"] == part_name(number, digest)
        and sum(items for _, items in classes) == entry["items"]
    )


def _classes(parts: Sequence[PartEntry]) -> list[tuple[int, int]]:
    """Label and number of images of each class, over all parts."""
    runs = groupby(((*pair,) for part in parts for pair in part.classes), key=lambda pair: pair[0])
    return [(label, sum(items for _, items in run)) for label, run in runs]
