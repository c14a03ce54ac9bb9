"""`pack`: a folder and a budget in, one memory file out."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mrdc._utils.errors import MemoryFileError, OutputError
from mrdc.codec import CODECS
from mrdc.memory.file import MemoryFile
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import Embedder
from mrdc.planning.plan import Plan, ranking_for, search
from mrdc.planning.scan import Progress, Survey, quiet, search_space, survey
from mrdc.planning.settings import PackSettings


@dataclass(frozen=True)
class Packed:
    """What `pack` wrote, and the plan behind it where there was a search."""

    path: Path
    memory: ReplayMemory
    plan: Plan | None
    seen: Survey
    seconds: float

    @property
    def complete(self) -> int:
        """How many classes hold all their images, and leave bytes to the others."""
        double = self.memory.duplicates()
        photos = enumerate(self.seen.images.photos)
        left = [len(of_class) - double.get(label, 0) for label, of_class in photos]
        held = np.bincount(self.memory.targets)
        return int((held >= left).sum())

    @property
    def boxes(self) -> dict[str, int] | None:
        """Of scenes: how many boxes there are, and how many of them the memory holds."""
        scenes, boxes = self.seen.images.scenes, self.memory.boxes
        if scenes is None:
            return None
        held = [source for label in self.memory.labels for source in self.memory.sources(label)]
        return scenes.as_json() | {"held": sum(len(boxes[source]) for source in held)}

    def as_json(self) -> dict[str, Any]:
        memory = self.memory
        counts = np.bincount(memory.targets)
        return {
            "path": str(self.path),
            "codec": memory.codec.name,
            "quality": memory.quality,
            "items": len(memory),
            "images": len(self.seen.images),
            "boxes": self.boxes,
            "classes": len(memory.labels),
            "complete_classes": self.complete,
            "per_class": {
                "fewest": int(counts.min()),
                "mean": float(counts.mean()),
                "most": int(counts.max()),
            },
            "payload_bytes": memory.nbytes,
            "budget_bytes": memory.budget_bytes,
            "file_bytes": self.path.stat().st_size,
            "whole_file": memory.whole_file,
            "budget": memory.budget.as_json(memory.budget_bytes),
            "kept_sources": memory.kept_sources(),
            "duplicates": sum(memory.duplicates().values()),
            "skipped": self.seen.skipped,
            "ignored": self.seen.images.ignored,
            "plan": self.plan.as_json() if self.plan else None,
            "seconds": round(self.seconds, 3),
        }


def pack(
    settings: PackSettings, *, progress: Progress = quiet, embedder: Embedder | None = None
) -> Packed:
    """Choose a quality (unless only one is allowed) and write the memory file.

    Raises:
        MrdcError: settings or images that cannot be used, or an output that
            cannot be written; nothing is left behind.
    """
    path = settings.output
    _check_output(settings)
    space = search_space(settings)
    with survey(settings, progress, embedder, measuring=len(space) > 1) as seen:
        if len(space) > 1:
            found, order = search(seen)
            codec, quality = CODECS[found.chosen.codec], found.chosen.quality
        else:
            found, (codec, quality) = None, space[0]
            order = seen.rank(seen.features)
            if settings.pairing == "independent":
                order = ranking_for(seen, codec, quality, order, path.parent).order
        memory = seen.build(codec, quality, order, path.parent)
    memory.notes["search"] = _lasting(found) if found else None
    memory.rebudget(memory.budget)  # should the notes have outgrown the room kept for them
    memory.save(path)
    return Packed(path, memory, found, seen, time.perf_counter() - seen.start)


def _check_output(settings: PackSettings) -> None:
    """Refuse, before any work, to replace what is not ours to replace."""
    path = settings.output
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")
    if not path.exists() and not path.is_symlink():
        return
    try:
        MemoryFile(path)
    except MemoryFileError:
        raise OutputError(f"{path}: is there already and is no memory file; name another") from None
    if not settings.force:
        raise OutputError(f"{path}: exists already; pass --force to replace it")


def _lasting(found: Plan) -> dict[str, Any]:
    """What a memory file keeps of the search: nothing that differs from run to run."""
    kept = ("codec", "quality", "quantity", "bytes", "log_volume_ratio", "excluded_classes")
    report = found.as_json()
    table = [{name: row[name] for name in kept} for row in report["candidates"]]
    return {name: report[name] for name in ("rule", "epsilon", "chosen")} | {"candidates": table}
