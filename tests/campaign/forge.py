"""Memory files that were changed and given a new, valid checksum."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from mrdc.memory.file import ZEROS, index_digest

DEEP = "[" * 900 + "]" * 900
JUNK = (
    "null", "true", "0", "-1", "3", "100000000", str(2**63), str(10**30), "1e308", '""', '"x"',
    '"\\u001b[31m[/b]"', json.dumps("é" * 300), "[]", "{}", "[0]", "[[]]", '{"a": 1}',
    "[null, null, null]", DEEP, "NaN", "Infinity",
)  # fmt: skip


@dataclass
class Parts:
    """A memory file, taken apart."""

    header: dict[str, Any]
    metadata: dict[str, Any]
    meta: Any
    data: bytearray

    @classmethod
    def of(cls, path: Path) -> "Parts":
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        metadata = header.pop("__metadata__")
        return cls(header, metadata, json.loads(metadata["memory"]), bytearray(raw[start:]))

    def array(self, name: str) -> Any:
        """A writable view of an array."""
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        kinds = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "F32": "<f4", "U8": "u1"}
        part = memoryview(self.data)[begin:end]
        return np.frombuffer(part, kinds[entry["dtype"]]).reshape(entry["shape"])

    def join(self, checksum: str | None = None) -> bytes:
        """The file, with a valid checksum unless another one is given."""
        text = self.meta if isinstance(self.meta, str) else json.dumps(self.meta)
        metadata = {**self.metadata, "memory": text, "sha256": ZEROS.decode()}
        raw = json.dumps({"__metadata__": metadata, **self.header}, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        end = len(self.data)
        with suppress(KeyError, TypeError, ValueError, IndexError, OverflowError):
            end = int(self.header["payload"]["data_offsets"][0])
        index = np.frombuffer(bytes(self.data[: max(end, 0)]), "u1")
        digest = index_digest(raw, [index]) if checksum is None else checksum
        raw = raw.replace(ZEROS, digest.encode(), 1)
        return len(raw).to_bytes(8, "little") + raw + bytes(self.data)


def forge(parts: Parts, random: Random) -> bytes:
    """A copy with one to three random changes."""
    header, metadata, meta = json.loads(json.dumps([parts.header, parts.metadata, parts.meta]))
    made, checksum = Parts(header, metadata, meta, bytearray(parts.data)), None
    for _ in range(random.randint(1, 3)):
        kind = random.choice(("meta", "meta", "array", "array", "header", "metadata"))
        if kind == "meta":
            made.meta = change(made.meta, random)
        elif kind == "array":
            change_array(made, random)
        elif kind == "header":
            made.header = change(made.header, random)
            if not isinstance(made.header, dict):
                made.header = {"payload": made.header}
        else:
            name = random.choice(("sha256", "format", "more"))
            if name == "sha256":
                checksum = random.choice(("", "0", "0" * 64, "g" * 64))
            else:
                made.metadata[name] = random.choice(("", "x", "mrdc-memory-2"))
    return made.join(checksum)


def change(value: Any, random: Random) -> Any:
    """A JSON value with a random part of it replaced, removed or repeated."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        place: Any = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        act = random.random()
        if act < 0.1:
            del value[place]
        elif act < 0.2 and isinstance(value, list):
            value.append(value[place])
        else:
            value[place] = change(value[place], random)
        return value
    if isinstance(value, int) and random.random() < 0.5:
        return value + random.choice((-1, 1, 7, 10**6, 10**12))
    return json.loads(random.choice(JUNK))


def change_array(parts: Parts, random: Random) -> None:
    """Overwrite some numbers of an array."""
    name = random.choice(list(parts.header))
    try:
        array = parts.array(name).reshape(-1)
    except (KeyError, TypeError, ValueError):  # changed before
        return
    for _ in range(min(random.randint(1, 4), len(array))):
        place = random.randrange(len(array))
        low, high = (-9, 9) if array.dtype.kind == "f" else (0, 120)
        array[place] = random.choice((array[place - 1], random.randint(low, high), array[0]))
