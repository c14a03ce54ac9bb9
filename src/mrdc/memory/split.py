"""Cut a memory into parts: which images go where, and what that costs."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrdc._utils.errors import UsageError
from mrdc.memory.budget import Budget
from mrdc.memory.manifest import PartEntry, manifest_text, part_name
from mrdc.memory.validate import MANY
from mrdc.memory.write import head_bytes

Cut = dict[int, tuple[int, int]]  # ranks in a part, from and to, by label
LEAST = 8  # a part must hold at least this many times its head
RUN = len("[2147483647,9007199254740992],")  # most bytes of a class in an entry of the manifest
SLACK = 8  # most bytes of padding


def part_meta(meta: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Metadata of a part of at most `size` bytes, without its classes."""
    budget = asdict(Budget(float(size), "bytes")) | {"bytes": size}
    return {**meta, "budget": budget, "whole_file": True, "classes": [], "notes": {}}


def split(
    costs: Iterable[tuple[int, NDArray[np.int64]]],
    part_size: int,
    meta: Mapping[str, Any],
    tables: Sequence[bytes],
    optional: Collection[str],
) -> Iterator[Cut]:
    """Fill one part after another, in order; a part holds at least one image.

    Depends on nothing but the arguments, so a memory always has the same parts.

    Args:
        costs: label, and bytes of each image with its index entry, of every class in order.
        meta: metadata of the whole memory.
        tables: shared by images; every part is charged for all of them.
        optional: the optional arrays that the memory has.
    """
    room = part_size - _head(part_size, meta, tables, optional)
    heads = class_heads(meta)
    cut, left = Cut(), room
    for label, of_class in costs:
        sums, begin = np.concatenate([[0], np.cumsum(of_class)]), 0
        while begin < len(of_class):
            most = left - heads[label] + sums[begin]
            end = int(np.searchsorted(sums, most, side="right")) - 1
            if end <= begin and not cut:
                end = begin + 1
            if end > begin:
                cut[label] = (begin, end)
                left -= heads[label] + int(sums[end] - sums[begin])
                begin = end
            if begin < len(of_class):
                yield cut
                cut, left = Cut(), room
    if cut:
        yield cut


def folder_bytes(
    total: int,
    part_size: int,
    meta: Mapping[str, Any],
    tables: Sequence[bytes],
    optional: Collection[str],
) -> int:
    """Most bytes that a folder of `total` bytes needs besides images and their index entries.

    Two parts in a row hold more than a part has room for, or they would be one. That bounds
    their number.

    Raises:
        UsageError: parts of this size would be little more than their headers.
    """
    heads = class_heads(meta).values()
    head, largest = _head(part_size, meta, tables, optional), max(heads, default=0)
    entry = PartEntry(part_name(10**9, "0" * 64), "0" * 64, MANY, MANY, MANY, ())
    each = head + largest + len(json.dumps(asdict(entry))) + RUN
    room = part_size - head - 2 * largest
    if room < LEAST * each:
        needed = head + 2 * largest + LEAST * each
        raise UsageError(
            f"part size {part_size:,} is too small for what every part needs besides images: "
            f"make it {needed:,} bytes or more"
        )
    parts = 2 * max(total, 0) // room + 1
    manifest = len(manifest_text(meta, tables, part_size, ())) + RUN * len(heads)
    return manifest + parts * each + sum(heads)


def class_heads(meta: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of each class in the header of a part, where it is JSON within JSON."""
    return {
        entry["label"]: len(json.dumps(json.dumps(entry, sort_keys=True)))
        for entry in meta["classes"]
    }


def _head(
    part_size: int, meta: Mapping[str, Any], tables: Sequence[bytes], optional: Collection[str]
) -> int:
    """Most bytes of a part besides images, their index entries and its classes."""
    return head_bytes(part_size, part_meta(meta, part_size), list(tables), optional) + SLACK
