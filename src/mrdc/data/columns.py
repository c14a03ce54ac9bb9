"""Columns of images and classes in Arrow tables.

An image is a struct with the bytes of a file (`bytes`, `path`: the Hub's format) or a binary value.
A class is a number or a text; a number gets its name from the schema's metadata, if it has names.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from mrdc._utils.errors import DataError, UsageError
from mrdc._utils.store_path import as_path
from mrdc._utils.stores import is_url
from mrdc.data.images import Columns, Entry, path_entry
from mrdc.data.photo import Photo

LABELS = ("label", "labels", "class", "target")
Loader = Callable[[], bytes]


class UnlabelledError(DataError):
    """A row has no class, as in the test split of many published sets."""


def arrow(module: str = "pyarrow") -> Any:
    """Pyarrow, or one of its modules."""
    try:
        return import_module(module)
    except ImportError:
        fix = "pip install 'mrdc[parquet]'"
        raise UsageError(f"reading Parquet and Arrow files needs pyarrow: {fix}") from None


def find_columns(path: Path, schema: Any, columns: Columns | None) -> Columns:
    """Names of the columns with the images and the classes: as given, or the only ones."""
    every = ", ".join(schema.names)
    if columns:
        for name in columns:
            if name not in schema.names:
                raise DataError(f"{path}: no column {name!r}; it has {every}")
        if not _holds_images(schema.field(columns[0]).type):
            kind = schema.field(columns[0]).type
            raise DataError(f"{path}: column {columns[0]!r} holds {kind}, not the bytes of images")
        return columns
    kinds = {name: kind.get("_type") for name, kind in _features(schema).items()}
    fits = [field.name for field in schema if _holds_images(field.type)]
    images = [name for name in fits if kinds.get(name) == "Image"] or fits
    named = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    labels = named or [name for name in LABELS if name in schema.names]
    for what, found in (("images", images), ("classes", labels)):
        if len(found) != 1:
            which = f"{', '.join(found)} may all hold" if found else "no column holds"
            raise DataError(
                f"{path}: {which} {what}; its columns are {every}: pass --columns IMAGE CLASS"
            )
    return images[0], labels[0]


def _holds_images(kind: Any) -> bool:
    types = arrow("pyarrow.types")
    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        kind = kind.field(place).type if place >= 0 else None
    return kind is not None and bool(types.is_binary(kind) or types.is_large_binary(kind))


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Features of each column, as recorded by `datasets`."""
    with suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: kind for name, kind in noted.items() if isinstance(kind, dict)}
    return {}


def class_names(schema: Any, column: str) -> list[str]:
    """Names of the classes by number, if there are numbers and the schema's metadata has names."""
    if not arrow("pyarrow.types").is_integer(schema.field(column).type):
        return []
    names = _features(schema).get(column, {}).get("names")
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        return []
    return [str(name) for name in names]


def rows_of(
    path: Path,
    prefix: str,
    start: int,
    images: Any,
    labels: Any,
    names: Sequence[str],
    load: Callable[[int], Loader],
) -> Iterator[Entry]:
    """The rows of a batch; `load(i)` makes the loader of row i of it."""
    types, lengths = arrow("pyarrow.types"), arrow("pyarrow.compute").binary_length
    paths: Any = None
    if types.is_struct(images.type):
        paths = images.field("path") if images.type.get_field_index("path") >= 0 else None
        images = images.field("bytes")
    sizes = lengths(images).to_pylist()
    for row, (size, given) in enumerate(zip(sizes, labels.to_pylist(), strict=True)):
        where = f"{path}: row {start + row}"
        label = _label(where, given, names)
        if size is not None:
            yield label, Photo(f"{prefix}{start + row}", load(row)), size
            continue
        linked = None if paths is None else paths[row].as_py()
        if not linked:
            raise DataError(f"{where} has no image")
        target = as_path(linked) if is_url(linked) else path.parent / linked
        yield path_entry(label, target, f"{prefix}{start + row}")


def _label(where: str, given: Any, names: Sequence[str]) -> str:
    """The class of a row, by name."""
    if given in (None, -1):
        raise UnlabelledError(f"{where} has no class, but {given!r}")
    if isinstance(given, bool) or not isinstance(given, int | str) or given == "":
        raise DataError(f"{where} has the class {given!r}; it must be a number or a text")
    if not names or isinstance(given, str):
        return str(given)
    if not 0 <= given < len(names):
        raise DataError(f"{where} has the class {given}, but the file names {len(names)} classes")
    return names[given]
