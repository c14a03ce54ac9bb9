"""`add`: store more images in a memory file, with its codec and quality."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from mrdc._utils.files import scratch_folder
from mrdc.memory.edit import Edited, check_target, holding, take_boxes
from mrdc.memory.encode import Arrival, Item
from mrdc.memory.inputs import as_label
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.scan import Scan, scan
from mrdc.planning.search import Progress, Ranking, compress_all, in_order, quiet
from mrdc.planning.settings import Location, PlanSettings

if TYPE_CHECKING:
    from mrdc.nn.embedder import Embedder


@dataclass(frozen=True)
class AddSettings:
    """Settings of `add`."""

    memory: tyro.conf.Positional[Location]
    """A memory file or a folder of parts, a path or a URL."""
    photos: tyro.conf.Positional[Location]
    """Images as for `pack`. A class whose name is in the memory gets more images; others are
    new."""
    output: Annotated[Location | None, tyro.conf.arg(aliases=["-o"])] = None
    """Memory to write, a path or a URL; by default it is changed in place."""
    force: bool = False
    """Replace the output if it exists."""
    select: str = "auto"
    """Selector that ranks the new images of a class, as for `pack`."""
    embed: str = "lite0"
    """Network that embeds the images, as for `pack`."""
    weights: Path | None = None
    """Weights file of a torchvision network."""
    skip_bad: bool = False
    """Skip unreadable or missing images, and list them."""
    cache: bool = True
    """Cache features, as for `pack`."""
    seed: int = 0
    """Seed of random_choice."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to embed."""
    threads: int | None = None
    """Threads that decode and encode; by default one per core, up to eight."""
    plugin: tuple[str, ...] = ()
    """Modules to import first, which may register codecs, selectors or data sets."""


def run_add(
    settings: AddSettings, *, progress: Progress = quiet, embedder: "Embedder | None" = None
) -> Edited:
    """Rank more images and store what fits; older images lose their lowest ranks if needed."""
    target = check_target(settings.memory, settings.output, settings.force)
    with holding(target, settings.memory.is_dir()):
        return _add(settings, target, progress, embedder)


def _add(
    settings: AddSettings, target: Path, progress: Progress, embedder: "Embedder | None"
) -> Edited:
    memory = ReplayMemory.load(settings.memory)
    before = len(memory)
    pair = memory.codec, memory.quality
    plan = PlanSettings(
        settings.photos,
        str(memory.budget),
        codec=(memory.codec.name,),
        qualities=None if memory.quality is None else (memory.quality,),
        select=settings.select,
        embed=settings.embed,
        weights=settings.weights,
        skip_bad=settings.skip_bad,
        cache=settings.cache,
        seed=settings.seed,
        device=settings.device,
        threads=settings.threads,
    )
    with scan(plan, progress, embedder, folder=scratch_folder(target), measuring=False) as seen:
        rankings = compress_all(seen.pool, plan, pair, seen.pool.rankings(), known=True)[0]
        arriving = _by_label(memory, seen, rankings, str(settings.photos))
        count = progress("encoding", len(seen.images))
        memory._extend(arriving, settings.threads, seen.pool.skip, count)
    check_target(settings.memory, settings.output, settings.force)  # again, after the work
    memory.save(target)
    about = {
        "offered": len(seen.images),
        "skipped": seen.skipped,
        "ignored": seen.images.ignored,
    }
    return Edited(target, memory, before, about)


def _by_label(
    memory: ReplayMemory, seen: Scan, rankings: list[Ranking], where: str
) -> dict[int, Sequence[Item]]:
    """The ranked images by the labels that their classes have, or get, in the memory."""
    scenes = seen.images.scenes
    boxes, classes = ({}, ()) if scenes is None else (scenes.by_id(), scenes.classes)
    take_boxes(memory, boxes, classes, where)
    labels = {memory.class_names[label]: label for label in memory.labels}
    arriving: dict[int, Sequence[Item]] = {}
    for name, photos, order in zip(seen.images.classes, seen.images.photos, rankings, strict=True):
        label = labels.setdefault(name, as_label(max(labels.values(), default=-1) + 1))
        memory.class_names[label] = name
        arriving[label] = in_order([Arrival(photo) for photo in photos], order)
    return arriving
