"""Change memories on disk: remove classes, change the budget, merge them."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrdc._utils.errors import MemoryFileError, OutputError, UsageError
from mrdc._utils.files import check_folder, check_name, scratch_folder, sweep, try_lock
from mrdc._utils.store_path import StorePath
from mrdc.codec.jpeg_progressive import JpegProgressive, has_scans
from mrdc.data.images import some_of
from mrdc.data.scenes import Boxes
from mrdc.memory.budget import Budget, parse_budget, parse_bytes
from mrdc.memory.classes import encodings_in_use
from mrdc.memory.encode import Item
from mrdc.memory.folder import only_leftovers, writing
from mrdc.memory.payload import Spool
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory, size_on_disk
from mrdc.memory.streams import interleave


@dataclass(frozen=True)
class Edited:
    """A changed memory file."""

    path: Path
    memory: ReplayMemory
    before: int  # images before the change
    about: Mapping[str, Any] = field(default_factory=dict)  # what else to report

    def to_json(self) -> dict[str, Any]:
        memory = self.memory
        return {
            "path": str(self.path),
            "items_before": self.before,
            "items": len(memory),
            "classes": len(memory.labels),
            "payload_bytes": memory.nbytes,
            "budget_bytes": memory.budget_bytes,
            "file_bytes": size_on_disk(self.path),
            "whole_file": memory.whole_file,
            "scans": memory.scans(),
            "budget": memory.budget.as_json(memory.budget_bytes),
            **self.about,
        }


def check_output(path: Path, force: bool, folder: bool = False) -> None:
    """Refuse, before any work, to replace something that is not a memory of this form."""
    check_folder(path)
    check_name(path)
    sweep(path)
    if not path.exists() and not path.is_symlink():
        return
    if folder and path.is_dir() and only_leftovers(path):
        return  # empty, or an interrupted write
    try:
        open_memory(path)
    except MemoryFileError:
        raise OutputError(f"{path}: exists and is not a memory file; choose another path") from None
    if path.is_dir() != folder:
        form = "a folder of parts" if folder else "one file"
        raise OutputError(
            f"{path}: exists, but the memory would be {form} (see --part-size); choose another path"
        )
    if not force:
        raise OutputError(f"{path}: exists; pass --force to replace it")


def check_target(path: Path, output: Path | None, force: bool) -> Path:
    """Where a changed memory goes: its own path, or an output that may be written."""
    if output is None or output.absolute() == path.absolute():
        real = path if isinstance(path, StorePath) else path.resolve()  # a link stays a link
        sweep(real)
        return real
    check_output(output, force, path.is_dir())
    return output


@contextmanager
def holding(path: Path, folder: bool) -> Iterator[None]:
    """Keep other processes from changing a memory; not in object stores, which have no locks.

    Raises:
        OutputError: another process is changing it, or has just changed it.
    """
    if folder:
        with writing(path):
            yield
    elif isinstance(path, StorePath) or not path.is_file():
        yield
    else:
        with path.open("rb") as file:
            if try_lock(file) is False:
                raise OutputError(
                    f"{path}: another process is writing this memory; wait for it to finish, or "
                    "choose another path"
                )
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise OutputError(
                    f"{path}: another process has just changed it; run the command again"
                )
            yield


def remove(path: Path, classes: Sequence[str], output: Path | None, force: bool) -> Edited:
    """Remove classes, by name or label, from a memory file.

    Raises:
        UsageError: there is no such class.
    """
    target = check_target(path, output, force)
    with holding(target, path.is_dir()):
        memory = ReplayMemory.load(path)
        before, labels = len(memory), labels_of(memory, classes, path)
        memory._remove(labels)
        memory.save(target)
    return Edited(target, memory, before, {"removed": [memory.class_names[n] for n in labels]})


def labels_of(memory: ReplayMemory, classes: Sequence[str], path: Path) -> list[int]:
    """Labels of classes given by name or label; names take precedence."""
    if not classes:
        raise UsageError("give at least one class, by name or label")
    known = {str(label): label for label in memory.labels}
    known |= {memory.class_names[label]: label for label in memory.labels}
    for name in classes:
        same = [label for label in memory.labels if memory.class_names[label] == name]
        if len(same) > 1:
            labels = " and ".join(map(str, same))
            raise UsageError(f"{path}: classes {labels} are both called {name!r}; give a label")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"; did you mean {close[0]!r}?"
                if close
                else f": it holds {some_of(memory.classes)}"
            )
            raise UsageError(f"{path}: no class {name!r}{hint}")
    return list(dict.fromkeys(known[name] for name in classes))


def rebudget(
    path: Path, budget: str, output: Path | None, force: bool, fade: bool = False
) -> Edited:
    """Change the budget of a memory file; drops the lowest ranks to fit, never re-encodes.

    With `fade`, or if the memory fades anyway, scans are cut before images are dropped.

    Raises:
        UsageError: `fade`, but no image has scans to cut.
    """
    target = check_target(path, output, force)
    with holding(target, path.is_dir()):
        memory = ReplayMemory.load(path)
        before = len(memory)
        if fade:
            _let_fade(memory, path)
        if memory.fade:
            memory._spool = Spool(scratch_folder(target))
        memory.rebudget(_parsed(budget, memory, path))
        memory.save(target)
    return Edited(target, memory, before)


def _parsed(budget: str, memory: ReplayMemory, path: Path) -> Budget:
    """A budget, which counts the originals of a memory file."""
    size = memory.budget.original_bytes
    if size is None and parse_budget(budget, 1.0).unit != "bytes":
        raise UsageError(
            f"{path}: does not record the mean size of originals, so it cannot have the budget "
            f"{budget}; give bytes, such as 200MB"
        )
    return parse_budget(budget, size)


def _let_fade(memory: ReplayMemory, path: Path) -> None:
    """Let a memory fade from now on."""
    codecs = {made.codec for made in encodings_in_use(memory._classes)}
    if not any(map(has_scans, codecs)):
        held = " and ".join(sorted(codecs)) or "no image"
        raise UsageError(
            f"{path}: --fade cuts scans of codec {JpegProgressive.name}, but it holds {held}"
        )
    memory.fade = True


def merge(
    paths: Sequence[Path],
    output: Path,
    budget: str | None,
    force: bool,
    part_size: str | None = None,
) -> Edited:
    """Write the images of several memories, as they are, into one.

    Classes with the same name become one, whose images are ranked by their relative ranks.
    Budget, part size, codec and quality are by default those of the first memory.

    Raises:
        UsageError: fewer than two memories, or incompatible boxes.
    """
    if len(paths) < 2:
        raise UsageError(f"merge needs two memory files or more, got {len(paths)}")
    memories = [ReplayMemory.load(path) for path in paths]
    merged = _like(memories[0], scratch_folder(output))
    if part_size is not None:
        merged.part_size = parse_bytes(part_size)
    folder = merged.part_size is not None
    check_output(output, force, folder)
    with holding(output, folder):
        _fill_merged(merged, memories, paths, budget)
        check_output(output, force, folder)  # again: another process may have written it since
        merged.save(output)
    return Edited(output, merged, sum(map(len, memories)), {"merged": list(map(str, paths))})


def _fill_merged(
    merged: ReplayMemory,
    memories: Sequence[ReplayMemory],
    paths: Sequence[Path],
    budget: str | None,
) -> None:
    """Store the images of several memories in an empty one."""
    merged.notes = {"merged": [path.name for path in paths]}
    merged.fade = any(memory.fade for memory in memories)
    ranked: dict[str, Sequence[Item]] = {}
    seen: dict[str, int] = {}
    double: dict[str, int] = {}
    for path, memory in zip(paths, memories, strict=True):
        take_boxes(merged, memory.boxes, memory.box_classes, str(path))
        for label in memory.labels:
            name, more = memory.class_names[label], memory.seen(label)
            old, images = ranked.get(name, []), memory._class(label).items()
            ranked[name] = interleave(old, seen.get(name, 1), images, more)
            seen[name] = seen.get(name, 0) + more
            double[name] = double.get(name, 0) + memory._class(label).duplicates
    if budget is not None:
        merged.rebudget(_parsed(budget, merged, paths[0]))
    merged.class_names = dict(enumerate(ranked))
    merged._store(dict(enumerate(ranked.values())), dict(enumerate(seen.values())))
    merged._count_duplicates(dict(enumerate(double.values())))


def _like(memory: ReplayMemory, folder: Path) -> ReplayMemory:
    """An empty memory with the settings of another, its images in an unnamed file."""
    made = ReplayMemory(
        memory.budget,
        memory.codec,
        memory.quality,
        accounting=memory.accounting,
        spool=folder,
        part_size=memory.part_size,
    )
    made.box_classes = memory.box_classes
    return made


def take_boxes(
    memory: ReplayMemory, boxes: Mapping[str, Boxes], classes: Sequence[str], where: str
) -> None:
    """Add the boxes of images that are about to be stored."""
    if tuple(classes) != tuple(memory.box_classes):
        theirs, ours = (", ".join(names) or "none" for names in (classes, memory.box_classes))
        raise UsageError(f"{where}: its boxes have the classes {theirs}, but the memory's {ours}")
    double = next((name for name in boxes if name in memory.boxes), None)
    if double is not None:
        raise UsageError(f"{where}: image {double} is already in the memory; rename one of them")
    memory.boxes |= boxes
