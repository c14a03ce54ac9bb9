"""Change memory files: remove classes, change the budget, merge files."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrdc._utils.errors import MemoryFileError, OutputError, UsageError
from mrdc._utils.files import check_folder, check_name, scratch_folder, sweep
from mrdc.data.images import some_of
from mrdc.data.scenes import Boxes
from mrdc.memory.encode import Item
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
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
            "file_bytes": self.path.stat().st_size,
            "whole_file": memory.whole_file,
            "budget": memory.budget.as_json(memory.budget_bytes),
            **self.about,
        }


def check_output(path: Path, force: bool) -> None:
    """Refuse, before any work, to replace something that is not a memory file."""
    check_folder(path)
    check_name(path)
    sweep(path)
    if not path.exists() and not path.is_symlink():
        return
    try:
        MemoryFile(path)
    except MemoryFileError:
        raise OutputError(f"{path}: exists and is not a memory file; choose another path") from None
    if not force:
        raise OutputError(f"{path}: exists; pass --force to replace it")


def check_target(path: Path, output: Path | None, force: bool) -> Path:
    """Where a changed file goes: its own path, or an output that may be written."""
    if output is None or output.absolute() == path.absolute():
        sweep(path)
        return path
    check_output(output, force)
    return output


def remove(path: Path, classes: Sequence[str], output: Path | None, force: bool) -> Edited:
    """Remove classes, by name or label, from a memory file.

    Raises:
        UsageError: there is no such class.
    """
    target = check_target(path, output, force)
    memory = ReplayMemory.load(path)
    before, labels = len(memory), labels_of(memory, classes, path)
    for label in labels:
        memory.remove(label)
    memory.save(target)
    return Edited(target, memory, before, {"removed": [memory.class_names[n] for n in labels]})


def labels_of(memory: ReplayMemory, classes: Sequence[str], path: Path) -> list[int]:
    """Labels of classes given by name or label; a name comes first."""
    if not classes:
        raise UsageError("name one class or more, or give its label")
    known = {str(label): label for label in memory.labels}
    known |= {memory.class_names[label]: label for label in reversed(memory.labels)}
    for name in classes:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"; did you mean {close[0]!r}?"
                if close
                else f": it holds {some_of(memory.classes)}"
            )
            raise UsageError(f"{path}: no class {name!r}{hint}")
    return list(dict.fromkeys(known[name] for name in classes))


def rebudget(path: Path, budget: str, output: Path | None, force: bool) -> Edited:
    """Change the budget of a memory file; drops the lowest ranks to fit, never encodes again."""
    target = check_target(path, output, force)
    memory = ReplayMemory.load(path)
    before = len(memory)
    memory.rebudget(budget)
    memory.save(target)
    return Edited(target, memory, before)


def merge(paths: Sequence[Path], output: Path, budget: str | None, force: bool) -> Edited:
    """Write the images of several memory files, as they are, into one.

    Classes with the same name become one, whose images are ranked by their relative ranks.
    Budget, codec and quality are by default those of the first file.

    Raises:
        UsageError: fewer than two files, or boxes that do not go together.
    """
    if len(paths) < 2:
        raise UsageError(f"merge needs two memory files or more, got {len(paths)}")
    check_output(output, force)
    memories = [ReplayMemory.load(path) for path in paths]
    merged = _like(memories[0], scratch_folder(output))
    merged.notes = {"merged": [path.name for path in paths]}
    ranked: dict[str, Sequence[Item]] = {}
    seen: dict[str, int] = {}
    for path, memory in zip(paths, memories, strict=True):
        take_boxes(merged, memory.boxes, memory.box_classes, str(path))
        for label in memory.labels:
            name, more = memory.class_names[label], memory.seen(label)
            old, images = ranked.get(name, []), memory.encoded_images(label)
            ranked[name] = interleave(old, seen.get(name, 1), images, more)
            seen[name] = seen.get(name, 0) + more
    if budget is not None:
        merged.rebudget(budget)
    merged.class_names = dict(enumerate(ranked))
    merged._store(dict(enumerate(ranked.values())), dict(enumerate(seen.values())))
    check_output(output, force)  # again: another process may have written it since
    merged.save(output)
    return Edited(output, merged, sum(map(len, memories)), {"merged": list(map(str, paths))})


def _like(memory: ReplayMemory, folder: Path) -> ReplayMemory:
    """An empty memory with the settings of another, its images in an unnamed file."""
    made = ReplayMemory(
        memory.budget, memory.codec, memory.quality, accounting=memory.accounting, spool=folder
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
