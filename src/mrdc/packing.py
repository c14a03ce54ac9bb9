"""`pack`: a folder and a budget in, one memory file out."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mrdc.codec import CODECS
from mrdc.embedding import Embedder
from mrdc.errors import OutputError
from mrdc.memory import ReplayMemory
from mrdc.planning import Plan, budget_json, ranking_for, search
from mrdc.settings import PackSettings
from mrdc.survey import Progress, quiet, search_space, survey


@dataclass(frozen=True)
class Packed:
    """What `pack` wrote, and the plan behind it where there was a search."""

    path: Path
    memory: ReplayMemory
    plan: Plan | None
    skipped: list[str]
    ignored: list[str]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        memory = self.memory
        counts = np.bincount(memory.targets)
        return {
            "path": str(self.path),
            "codec": memory.codec.name,
            "quality": memory.quality,
            "items": len(memory),
            "classes": len(memory.labels),
            "per_class": {
                "fewest": int(counts.min()),
                "mean": float(counts.mean()),
                "most": int(counts.max()),
            },
            "payload_bytes": memory.nbytes,
            "budget_bytes": memory.budget_bytes,
            "file_bytes": self.path.stat().st_size,
            "budget": budget_json(memory.budget, memory.budget_bytes),
            "kept_sources": memory.kept_sources(),
            "duplicates": sum(memory.duplicates().values()),
            "skipped": self.skipped,
            "ignored": self.ignored,
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
    if path.exists() and not settings.force:
        raise OutputError(f"{path}: exists already; pass --force to replace it")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")
    space = search_space(settings)
    with survey(settings, progress, embedder) as seen:
        if len(space) == 1:
            found, (codec, quality) = None, space[0]
            order = ranking_for(seen, codec, quality, seen.rank(seen.features), path.parent).order
        else:
            found, order = search(seen)
            codec, quality = CODECS[found.chosen.codec], found.chosen.quality
        notes = {
            "select": settings.select,
            "pairing": settings.pairing,
            "embed": settings.embed if seen.embedder else None,
            "search": _lasting(found) if found else None,
            "skipped": seen.skipped,
        }
        memory = seen.build(codec, quality, order, path.parent, notes=notes)
    memory.rebudget(memory.budget)  # images skipped on the way have made the notes longer
    memory.save(path)
    return Packed(
        path, memory, found, seen.skipped, seen.images.ignored, time.perf_counter() - seen.start
    )


def _lasting(found: Plan) -> dict[str, Any]:
    """What a memory file keeps of the search: nothing that differs from run to run."""
    kept = ("codec", "quality", "quantity", "bytes", "log_volume_ratio", "excluded_classes")
    report = found.as_json()
    table = [{name: row[name] for name in kept} for row in report["candidates"]]
    return {name: report[name] for name in ("rule", "epsilon", "chosen")} | {"candidates": table}
