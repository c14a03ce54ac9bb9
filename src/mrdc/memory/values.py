"""Values beside an image: arrays by name, such as logits, and JSON values.

As stored: a JSON list of two objects, the plain values and the dtype and shape of each array;
a zero byte; the arrays, one after another.
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from mrdc._utils.errors import MemoryFileError, UsageError

ALLOWED = "an array of numbers, or a JSON value"
DTYPE = re.compile(r"[<|][biuf][1248]")


def rows_of(columns: Mapping[str, Any], count: int) -> list[bytes]:
    """The values of each of `count` images as they are stored, from columns by name.

    Raises:
        UsageError: a column of another length, or a value that cannot be stored.
    """
    for name, column in columns.items():
        if len(column) != count:
            raise UsageError(f"got {len(column)} values {name!r} for {count} images")
    if not columns:
        return [b""] * count
    return [pack({name: column[row] for name, column in columns.items()}) for row in range(count)]


def pack(values: Mapping[str, Any]) -> bytes:
    """The values of one image as they are stored."""
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise UsageError(f"the name of a value must be text, got {name!r}")
        found = _array(name, value)
        if found is None or found.ndim == 0:
            plain[name] = value if found is None else found.item()
        else:
            arrays[name] = found
    shapes = {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}
    try:
        head = json.dumps([plain, shapes], separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"values {', '.join(plain)}: {error}; give {ALLOWED}") from None
    return head.encode() + b"\0" + b"".join(array.tobytes() for array in arrays.values())


def _array(name: str, value: Any) -> "np.ndarray[Any, Any] | None":
    """An array or tensor as a little-endian array; None for other values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            raise UsageError(f"value {name!r} is a bfloat16 tensor: convert it to float16 first")
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    if not DTYPE.fullmatch(little.dtype.str):
        raise UsageError(f"value {name!r} has the type {array.dtype}: give {ALLOWED}")
    return little.reshape(array.shape)


def unpack(data: bytes) -> dict[str, Any]:
    """Undo `pack`; {} for no bytes.

    Raises:
        MemoryFileError: the bytes are not values.
    """
    if not data:
        return {}
    head, _, raw = data.partition(b"\0")
    try:
        found: dict[str, Any]
        found, shapes = json.loads(head)
        for name, (dtype, *shape) in shapes.items():
            if not DTYPE.fullmatch(dtype) or not all(type(n) is int and n >= 0 for n in shape):
                raise ValueError(f"no dtype and shape: {dtype} {shape}")
            size = np.dtype(dtype).itemsize * math.prod(shape)
            found[name] = np.frombuffer(raw[:size], dtype).reshape(shape).copy()
            raw = raw[size:]
        if raw or not isinstance(found, dict):
            raise ValueError(f"{len(raw)} bytes too many")
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise MemoryFileError(f"values beside an image are damaged ({error})") from None
    return found
