"""`pack`: a folder and a budget in, one memory file out."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from mrdc._utils.errors import UsageError
from mrdc._utils.files import scratch_folder
from mrdc._utils.store_path import as_path
from mrdc.codec.jpeg_progressive import check_fade
from mrdc.codec.scaled import split_scale
from mrdc.data.datasets import Source, source_path
from mrdc.data.images import ImageSet
from mrdc.memory.budget import parse_bytes
from mrdc.memory.edit import check_output, holding
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import size_on_disk
from mrdc.planning.choice import Candidate
from mrdc.planning.plan import (
    Plan,
    PlanOptions,
    as_settings,
    given_embedder,
    make_plan,
    passed_images,
    run_plan,
)
from mrdc.planning.scan import Scan, check_settings, engine, scan
from mrdc.planning.search import Progress, compress_all, quiet, search, search_space
from mrdc.planning.settings import PackSettings

if TYPE_CHECKING:
    from mrdc.nn.embedder import Embedder


@dataclass(frozen=True)
class Packed:
    """A written memory file, and the plan behind it if there was a search."""

    path: Path
    memory: ReplayMemory
    plan: Plan | None
    seen: Scan
    seconds: float

    @property
    def complete(self) -> int:
        """Number of classes that hold all their images and leave bytes to the others."""
        photos, double = enumerate(self.seen.images.photos), self.memory.duplicates()
        left = [len(of_class) - double.get(label, 0) for label, of_class in photos]
        return int((np.bincount(self.memory.targets) >= left).sum())

    @property
    def boxes(self) -> dict[str, int] | None:
        """For scenes: number of boxes in the source, and in the memory."""
        scenes, boxes = self.seen.images.scenes, self.memory.boxes
        if scenes is None:
            return None
        held = [source for label in self.memory.labels for source in self.memory.sources(label)]
        return scenes.as_json() | {"held": sum(len(boxes[source]) for source in held)}

    def to_json(self) -> dict[str, Any]:
        memory, counts = self.memory, np.bincount(self.memory.targets)
        fewest, mean, most = int(counts.min()), float(counts.mean()), int(counts.max())
        return {
            "path": str(self.path),
            "codec": memory.codec.name,
            "quality": memory.quality,
            "items": len(memory),
            "images": len(self.seen.images),
            "boxes": self.boxes,
            "classes": len(memory.labels),
            "complete_classes": self.complete,
            "per_class": {"fewest": fewest, "mean": mean, "most": most},
            "payload_bytes": memory.nbytes,
            "budget_bytes": memory.budget_bytes,
            "file_bytes": size_on_disk(self.path),
            "whole_file": memory.whole_file,
            "budget": memory.budget.as_json(memory.budget_bytes),
            "kept_sources": memory.kept_sources(),
            "duplicates": sum(memory.duplicates().values()),
            "scans": memory.scans(),
            "skipped": self.seen.skipped,
            "ignored": self.seen.images.ignored,
            "plan": self.plan.to_json() if self.plan else None,
            "seconds": round(self.seconds, 3),
        }


def pack(
    photos: Source,
    budget: str | int,
    output: str | os.PathLike[str],
    *,
    force: bool = False,
    part_size: int | str | None = None,
    fade: bool = False,
    **options: Unpack[PlanOptions],
) -> Packed:
    """Choose a quality for images, and write one memory.

    Args:
        photos: as for `plan`. Labels are positions of the classes, so labels from Python must be
            0, 1, 2, ...
        output: the memory file; `force` replaces an existing one.
        part_size: write a folder of memory files of at most this size, such as "1GB", instead.
        fade: cut scans before leaving out or dropping images, now and when the file needs room
            later; for codec jpeg-progressive.
        options: as for `plan`; with one codec and one quality there is no search.

    Raises:
        MrdcError: arguments or images that cannot be used; nothing is left behind.
    """
    settings = PackSettings(
        source_path(photos),
        str(budget),
        output=as_path(output),
        force=force,
        part_size=None if part_size is None else str(part_size),
        fade=fade,
        **as_settings(options),
    )
    images = passed_images(photos, settings, numbered=True)
    return run_pack(settings, embedder=given_embedder(options), images=images)


def run_pack(
    settings: PackSettings,
    *,
    progress: Progress = quiet,
    embedder: "Embedder | None" = None,
    images: ImageSet | None = None,
) -> Packed:
    """Choose a quality (unless only one is allowed) and write the memory file."""
    path, folder = settings.output, settings.part_size is not None
    check_settings(settings)
    if settings.fade:
        check_fade(settings.codec, "--fade")
    if len(search_space(settings)) == 1 and (settings.exact or settings.sample is not None):
        name = "--exact" if settings.exact else "--sample"
        raise UsageError(f"{name} compares candidates: allow more than one --quality or --codec")
    if settings.part_size is not None:
        parse_bytes(settings.part_size)
    check_output(path, settings.force, folder)
    with holding(path, folder):
        if settings.sample is None:
            return _pack(settings, progress, embedder, images)
        plan = run_plan(settings, progress=progress, embedder=embedder, images=images)
        return _pack(with_choice(settings, plan.chosen), progress, embedder, images, plan)


def _pack(
    settings: PackSettings,
    progress: Progress,
    embedder: "Embedder | None",
    images: ImageSet | None,
    plan: Plan | None = None,
) -> Packed:
    """Choose, unless a plan has, then encode and write, while the output is held."""
    path, space = settings.output, search_space(settings)
    size = None if settings.part_size is None else parse_bytes(settings.part_size)
    searching, before = len(space) > 1, 0.0 if plan is None else plan.seconds
    opened = scan(
        replace(settings, sample=None),  # all classes are stored
        progress,
        embedder,
        images,
        folder=scratch_folder(path),
        measuring=searching,
        part_size=size,
    )
    with engine(settings), opened as seen:
        if searching:
            found = search(seen.pool, seen.budget, settings, exact=settings.exact)
            plan = make_plan(settings, seen, found)
            assert found.memory is not None
            memory, rankings = found.memory, found.rankings
        else:
            by_original = seen.pool.rankings()
            rankings = compress_all(seen.pool, settings, space[0], by_original, known=True)[0]
        if settings.fade or not searching:
            pair = (memory.codec, memory.quality) if searching else space[0]
            memory = seen.pool.store(
                seen.budget, pair, settings.accounting, rankings, settings.fade
            )
    memory.notes["search"] = _lasting(plan) if plan else None
    memory.rebudget(memory.budget)  # the notes may have outgrown the room kept for them
    check_output(path, settings.force, size is not None)  # again: it may have been written since
    memory.save(path)
    return Packed(path, memory, plan, seen, time.perf_counter() - seen.start + before)


def with_choice(settings: PackSettings, chosen: Candidate) -> PackSettings:
    """Settings that store images as a candidate, without a search."""
    codec, scale = split_scale(chosen.codec)
    qualities = None if chosen.quality is None else (chosen.quality,)
    return replace(settings, codec=(codec,), scale=(scale,), qualities=qualities)


def _lasting(plan: Plan) -> dict[str, Any]:
    """The part of a plan that a memory file keeps: nothing that changes from run to run."""
    numbers = ("log_volume_ratio", "ratio_per_image", "discrepancy")
    report, table = plan.to_json(), []
    for row in report["candidates"]:
        kept = {name: row[name] for name in ("codec", "quality", "quantity", "bytes")}
        kept |= {name: row[name] and round(row[name], 6) for name in numbers}
        table.append(kept | {"excluded_classes": len(row["excluded_classes"])})
    about = {name: report[name] for name in ("criterion", "rule", "epsilon", "limits", "chosen")}
    return about | {"candidates": table}
