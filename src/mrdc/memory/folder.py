"""Write memories: a file, or a folder of parts with a manifest.

A folder is written in this order: the new parts, whose names cannot be those of other contents;
the manifest, which makes them the memory; then parts that it does not list are removed. An
interruption leaves the old memory as it was, and files that the next write removes.

To write the parts in several processes, as a cluster does: hold the folder by `writing`; find
the images of each part from their sizes by `split`; let processes call `write_part`; and make the
parts a memory by `write_manifest`.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mrdc._utils import stores
from mrdc._utils.errors import MemoryFileError, OutputError
from mrdc._utils.files import Opened, output_errors, try_lock
from mrdc._utils.store_path import StorePath
from mrdc.data.scenes import Boxes
from mrdc.memory.accounting import metadata, optional_arrays
from mrdc.memory.classes import (
    ClassImages,
    encodings_in_use,
    has_values,
    tables_in_use,
    to_arrays,
)
from mrdc.memory.contents import Contents
from mrdc.memory.manifest import (
    MANIFEST,
    NAME,
    PartEntry,
    is_foreign,
    part_name,
    read_manifest,
    write_manifest,
)
from mrdc.memory.names import IndexCost, Names
from mrdc.memory.split import Cut, part_meta, split
from mrdc.memory.validate import check_new
from mrdc.memory.write import box_arrays, write_memory

UNFINISHED = re.compile(rf"\.({NAME.pattern}|{re.escape(MANIFEST)})\.[0-9a-f]{{8}}\.tmp")
_writing: set[tuple[int, Path]] = set()  # threads, and folders they hold


def write_file(memory: Contents, path: Path) -> str:
    """Write a memory as one file; returns its SHA-256."""
    if path.is_dir():
        raise OutputError(
            f"{path}: is a folder, but without a part size a memory is one file; choose another "
            "path"
        )
    meta = metadata(memory, memory.budget)
    check_new(meta)
    return _write(path, memory._classes, meta, memory.boxes)


def write_folder(memory: Contents, folder: Path) -> str:
    """Write a memory as a folder of parts; returns its SHA-256."""
    assert memory.part_size is not None
    if isinstance(folder, StorePath):
        refuse_foreign(folder)
        with stores.staged(str(folder), partial(_put_parts, url=str(folder))) as local:
            return write_folder(memory, local)
    meta, tables = metadata(memory, memory.budget), tables_in_use(memory._classes)
    check_new(meta)
    parts = list[PartEntry]()
    with writing(folder):
        try:
            for number, cut in enumerate(_cuts(memory, meta, tables)):
                classes = {
                    label: memory._classes[label].part(*ranks) for label, ranks in cut.items()
                }
                entry = write_part(folder, number, classes, meta, memory.part_size, memory.boxes)
                parts.append(entry)
            return write_manifest(folder, meta, tables, memory.part_size, parts)
        finally:
            clean(folder)


def _put_parts(folder: Path, url: str) -> None:
    """Write parts below a URL, then the manifest, then remove parts that it does not list."""
    parts = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name))
    stores.put_files(folder, [*parts, MANIFEST], url)
    others = [name for name in stores.listing(url) if NAME.fullmatch(name) and name not in parts]
    stores.remove([f"{url}/{name}" for name in others])


def _cuts(memory: Contents, meta: dict[str, Any], tables: list[bytes]) -> Iterator[Cut]:
    """The images of each part, in order."""
    assert memory.part_size is not None
    boxes = memory.boxes if memory.box_classes else None
    entry = IndexCost(boxes, has_values(memory._classes))
    costs = ((label, images.costs(entry)) for label, images in memory._classes.items())
    return split(costs, memory.part_size, meta, tables, optional_arrays(memory))


def write_part(
    folder: Path,
    number: int,
    classes: Mapping[int, ClassImages],
    meta: Mapping[str, Any],
    part_size: int,
    boxes: Mapping[str, Boxes],
) -> PartEntry:
    """Write a part, and return its entry for the manifest.

    Args:
        classes: the images in the part, by label.
        meta: metadata of the whole memory.
        boxes: by source, of these images or of all.
    """
    counts = [[label, len(images)] for label, images in classes.items()]
    items, payload = sum(n for _, n in counts), sum(c.nbytes for c in classes.values())
    entries = {entry["label"]: entry for entry in meta["classes"]}
    most = part_size if items > 1 else part_size + 2 * payload  # one image may be larger
    own = part_meta(meta, most) | {
        "classes": [entries[label] | {"items": count} for label, count in counts],
        "encodings": [asdict(encoding) for encoding in encodings_in_use(classes)],
    }

    def path(sha256: str) -> Path:
        return folder / part_name(number, sha256)

    sha256 = _write(path, classes, own, boxes)
    size = path(sha256).stat().st_size
    return PartEntry(path(sha256).name, sha256, size, payload, items, counts)


def _write(
    path: Path | Callable[[str], Path],
    classes: Mapping[int, ClassImages],
    meta: dict[str, Any],
    boxes: Mapping[str, Boxes],
) -> str:
    """Write a memory file; returns its SHA-256."""
    arrays = to_arrays(classes)
    arrays |= box_arrays(Names(arrays["sources"]), boxes, meta.get("box_classes", ()))
    payload = (segment.stored(row) for images in classes.values() for segment, row in images.rows())
    total = sum(images.nbytes for images in classes.values())
    return write_memory(path, arrays, payload, total, meta, tables_in_use(classes))


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder whose `manifest.json` is not one of a memory."""
    if is_foreign(folder / MANIFEST):
        raise OutputError(f"{folder}: its {MANIFEST} is not one of a memory; choose another path")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold a folder for writing; it is made, and removed again if it stays empty.

    Object stores have no locks: the last of two writers wins there, with all of its parts.

    Raises:
        OutputError: it is a file, has another `manifest.json`, or another process is writing it.
    """
    holder = (threading.get_ident(), folder.absolute())
    if holder in _writing or isinstance(folder, StorePath):
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"{folder}: is a file, but with a part size a memory is a folder; choose another path"
        )
    refuse_foreign(folder)
    with output_errors(folder):
        made = not folder.exists()
        folder.mkdir(exist_ok=True)
        opened = Opened(folder)
    try:
        if try_lock(opened) is False:
            raise OutputError(
                f"{folder}: another process is writing this memory; wait for it to finish, or "
                "choose another path"
            )
        _writing.add(holder)
        clean(folder)
        yield
    finally:
        _writing.discard(holder)
        if made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        opened.close()


def clean(folder: Path) -> None:
    """Remove parts that the manifest does not list, and unfinished files."""
    listed = set[str]()
    if (folder / MANIFEST).exists():
        try:
            listed = {part.file for part in read_manifest(folder).parts}
        except MemoryFileError:
            return  # parts may be all that is left of a memory
    with suppress(OSError):
        for file in folder.iterdir():
            if file.name not in listed and _is_leftover(file.name):
                file.unlink(missing_ok=True)


def only_leftovers(folder: Path) -> bool:
    """Whether a folder has nothing but what an interrupted write leaves, or nothing at all."""
    if isinstance(folder, StorePath):
        return all(map(_is_leftover, stores.listing(str(folder))))
    return all(_is_leftover(file.name) for file in folder.iterdir())


def _is_leftover(name: str) -> bool:
    """Whether a file in a folder is one that a write makes, besides the manifest."""
    return bool(NAME.fullmatch(name) or UNFINISHED.fullmatch(name))
