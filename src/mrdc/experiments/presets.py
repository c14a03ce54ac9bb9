"""Named configurations for `mrdc run`: recipes, and the rows of the paper's tables.

A recipe is a method with its usual training: `lucir` replays originals, `lucir-mrdc` compressed
images. A preset adds data and phases, as in `cub-5-lucir`, `textures-lucir` or
`soda10m-pseudo-labels-mrdc`.
"""

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import lookup
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.settings import AnySettings
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings

BRIGHTNESS = 63 / 255  # as in PODNet and AANets
PODNET = TrainSettings(
    lr=0.05, weight_decay=5e-4, batch_size=64, schedule="cosine", brightness=BRIGHTNESS
)
AANETS = replace(PODNET, batch_size=128)
TRAINING: dict[str, TrainSettings] = {
    "finetune": TrainSettings(),
    "replay": replace(AANETS, match=1.0),
    "replay-cosine": replace(AANETS, match=1.0),
    "joint": TrainSettings(),
    "lwf": TrainSettings(),
    "icarl": TrainSettings(),
    "bic": AANETS,  # with a weight decay of 1e-4 it forgets far more on CUB
    "lucir": TrainSettings(),
    "podnet": PODNET,
    "tpcil": TrainSettings(),
    "mnemonics": TrainSettings(weight_decay=5e-4),
    "lucir-aanets": AANETS,
    "podnet-aanets": PODNET,
    "lucir-dde": TrainSettings(),
    "podnet-dde": PODNET,
    "lucir-fidelity": TrainSettings(),
    "lucir-relaxed": replace(AANETS, match=1.0),
}
WITHOUT_MEMORY = ("finetune", "joint")
COLUMNS = ("cub-5", "cub-10", "cub-25", "sub-5", "sub-10", "sub-25", "full-5", "full-10")
DATA = {"cub": "CUB-200-2011", "sub": "ImageNet-sub", "full": "ImageNet-full"}
# Averaged incremental accuracy; LUCIR with AANets and DDE as the authors of MRDC reproduced them.
TABLE_1: dict[str, tuple[float | None, ...]] = {
    "lwf": (39.42, 38.53, 36.33, 53.62, 47.64, 44.32, 44.35, 38.90),
    "icarl": (39.49, 39.31, 38.77, 65.44, 59.88, 52.97, 51.50, 46.89),
    "bic": (45.29, 45.25, 45.17, 70.07, 64.96, 57.73, 62.65, 58.72),
    "lucir": (44.63, 45.58, 45.48, 70.84, 68.32, 61.44, 64.45, 61.57),
    "podnet": (44.92, 44.49, 43.79, 75.54, 74.33, 68.31, 66.95, 64.13),
    "lucir-mrdc": (46.68, 47.28, 48.01, 73.56, 72.70, 70.53, 67.53, 65.29),
    "podnet-mrdc": (46.00, 46.09, 45.84, 78.08, 76.02, 72.72, 68.91, 66.31),
    "lucir-aanets": (46.87, 47.34, 47.35, 72.91, 71.93, 70.70, 63.37, 62.46),
    "lucir-aanets-mrdc": (49.02, 49.84, 51.33, 73.79, 73.73, 73.47, 64.99, 63.04),
    "lucir-dde": (45.86, 46.48, 46.46, 73.04, 70.84, 66.61, 66.95, 65.21),
    "lucir-dde-mrdc": (47.16, 48.33, 48.37, 75.12, 73.39, 70.83, 67.90, 66.67),
    "podnet-aanets": (None, None, None, 76.96, 75.58, 71.78, 67.73, 64.85),
    "podnet-dde": (None, None, None, 76.71, 75.41, None, 66.42, 64.71),
    "mnemonics": (None, None, None, 72.58, 71.37, 69.74, 64.54, 63.01),
    "tpcil": (None, None, None, 76.27, 74.81, None, 64.89, 62.88),
}
# The qualities that the paper's R_q chose on ImageNet; the other methods search.
PAPER_QUALITY = {"lucir": "50", "lucir-aanets": "50", "lucir-dde": "50", "podnet": "75"}
ALL_OF_CUB = "94"  # the paper's, at which all images of CUB fit into 20 originals per class
# Class-balance finetuning, and DDE's settings for a thousand classes.
_DDE_ON_FULL = ("balance=all", "base=10", "neighbours=1")
ON_FULL: dict[str, tuple[str, ...]] = {
    "lucir-mrdc": ("balance=new",),
    "lucir-dde": _DDE_ON_FULL,
    "lucir-dde-mrdc": _DDE_ON_FULL,
    "podnet-dde": ("neighbours=1",),
    "podnet-dde-mrdc": ("neighbours=1",),
}
AS_PUBLISHED: dict[str, Any] = {"accounting": "file", "criterion": "volume-ratio"}
DETECTION = ("supervised", "pseudo-labels", "unbiased-teacher")
REPLAYS = ("finetune", "replay", "mrdc", "joint")
SODA10M = {  # AP after five phases; R_q chose 50
    "pseudo-labels-finetune": 40.36,
    "pseudo-labels-replay": 40.75,
    "pseudo-labels-mrdc": 41.50,
    "unbiased-teacher-finetune": 42.88,
    "unbiased-teacher-replay": 43.10,
    "unbiased-teacher-mrdc": 43.72,
}


@dataclass(frozen=True)
class Preset:
    """Settings under a name.

    Attributes:
        paper: the published number, in percent.
        prefix: prefix of the data that the user names.
    """

    settings: AnySettings
    summary: str
    paper: float | None = None
    prefix: str = ""


def method_names() -> list[str]:
    """All methods on classes, without importing them or torch."""
    registered = getattr(sys.modules.get("mrdc.methods"), "METHODS", {})
    return list(dict.fromkeys([*TRAINING, *registered, *installed_methods()]))


@cache
def installed_methods() -> tuple[str, ...]:
    """Methods of other installed packages; looking for them takes milliseconds."""
    return tuple(point.name for point in entry_points(group="mrdc.methods"))


def recipe_names() -> list[str]:
    """All recipes, including those of methods from other packages."""
    names = []
    for method in method_names():
        names += [method] if method in WITHOUT_MEMORY else [method, f"{method}-mrdc"]
    return names


def scene_recipe_names() -> list[str]:
    """All recipes for detectors."""
    return [f"{method}-{replay}" for method in DETECTION for replay in REPLAYS]


def preset_names() -> Iterator[str]:
    """All presets with data."""
    table = [name for name in recipe_names() if name not in WITHOUT_MEMORY]
    yield from (f"{column}-{name}" for name in table for column in COLUMNS)
    yield from (f"textures-{name}" for name in recipe_names())
    yield from (f"soda10m-{name}" for name in SODA10M)
    yield from (f"shapes-{name}" for name in scene_recipe_names())


def preset(name: str) -> Preset:
    """A recipe or preset by name."""
    names = recipe_names()
    if name in names:
        return Preset(recipe(name), f"{name}, on any data")
    if name in scene_recipe_names():
        return Preset(scene_recipe(name), f"{name}: a detector, on any COCO data")
    data, _, rest = name.partition("-")
    column = re.fullmatch(r"((?:cub|sub|full)-\d+)-(.+)", name)
    if column and column[1] in COLUMNS and column[2] in names and column[2] not in WITHOUT_MEMORY:
        return table_1(column[1], column[2])
    if data == "textures" and rest in names:
        return textures(rest)
    if data == "soda10m" and rest in SODA10M:
        return soda10m(rest)
    if data == "shapes" and rest in scene_recipe_names():
        return shapes(rest)
    if data in (*DATA, "textures", "soda10m", "shapes"):
        raise UsageError(f"unknown preset {name!r}: `mrdc list presets` shows all")
    known = dict.fromkeys([*names, *scene_recipe_names()])
    lookup(known, name, "recipe (or preset, see `mrdc list presets`)")
    raise AssertionError(name)


def recipe(name: str) -> RunSettings:
    """A method that replays originals or (-mrdc) compressed images, 20 originals per class."""
    method = name.removesuffix("-mrdc")
    memory = MemorySettings(quality="auto" if name.endswith("-mrdc") else "original")
    train = TRAINING.get(method, TrainSettings())
    return RunSettings("", method=method, train=train, memory=memory)


def table_1(column: str, name: str) -> Preset:
    """A cell of Table 1, where R_q decides and bytes are counted as whole files."""
    data, phases = column.split("-")
    settings = recipe(name)
    quality = settings.memory.quality
    if name.endswith("-mrdc"):
        fixed = PAPER_QUALITY.get(settings.method, quality)
        quality = ALL_OF_CUB if data == "cub" else fixed
    memory = replace(settings.memory, quality=quality, **AS_PUBLISHED)
    options = ON_FULL.get(name, ()) if data == "full" else ()
    settings = replace(settings, phases=int(phases), memory=memory, options=options)
    paper = TABLE_1.get(name, (None,) * len(COLUMNS))[COLUMNS.index(column)]
    summary = f"{name} on {DATA[data]}, {phases} phases"
    return Preset(settings, summary, paper, "imagenet-sub:" if data == "sub" else "")


def textures(name: str) -> Preset:
    """A recipe on built-in images: a few minutes without a GPU."""
    settings = recipe(name)
    small = ("lucir", "lucir-aanets", "lucir-fidelity", "mnemonics")
    settings = replace(
        settings,
        data="textures",
        network="resnet18-narrow",
        train=replace(settings.train, epochs=30, batch_size=16),
        memory=replace(settings.memory, budget="8/class"),
        options=("base=5",) if settings.method in small else (),  # LUCIR's value for small images
    )
    return Preset(settings, f"{name} on built-in synthetic images, 5 phases")


def scene_recipe(name: str) -> DetectSettings:
    """A detector that replays nothing, originals, compressed images, or (joint) everything."""
    method, _, replay = name.rpartition("-")
    settings = DetectSettings("", method=method)
    if method == "supervised":
        settings = replace(settings, unlabelled=0)
    memory = replace(settings.memory, quality="auto" if replay == "mrdc" else "original")
    if replay == "finetune":
        return replace(settings, replay="none", memory=memory)
    return replace(settings, replay="joint" if replay == "joint" else "memory", memory=memory)


def soda10m(name: str) -> Preset:
    """A row of the paper's detection table, where bytes are counted as whole files."""
    settings = scene_recipe(name)
    quality = "50" if name.endswith("-mrdc") else settings.memory.quality
    memory = replace(settings.memory, quality=quality, **AS_PUBLISHED)
    summary = f"{name} on SODA10M, 5 phases (AP)"
    return Preset(replace(settings, memory=memory), summary, SODA10M[name])


def shapes(name: str) -> Preset:
    """A detector on built-in scenes: minutes without a GPU."""
    settings = scene_recipe(name)
    lr = 0.0025 if settings.method == "unbiased-teacher" else 0.005  # unlabelled losses weigh 4
    settings = replace(
        settings,
        data="shapes",
        labelled=20,
        unlabelled=min(settings.unlabelled, 20),
        phases=3,
        detector="lite0",
        short=120,
        long=160,
        train=replace(settings.train, steps=60, lr=lr, batch_size=4, unlabelled_batch=4),
        memory=replace(settings.memory, budget="4/phase"),
    )
    return Preset(settings, f"{name} on built-in synthetic scenes, 3 phases (AP)")


def published(name: str, settings: RunSettings, classes: Collection[str]) -> float | None:
    """The paper's number for a recipe on the data of Table 1, recognised by their classes."""
    first, count = next(iter(sorted(classes)), ""), len(classes)
    known = {("001.Black_footed_Albatross", 200): "cub", ("n01440764", 1000): "full"}
    data = "sub" if settings.data.startswith("imagenet-sub:") else known.get((first, count))
    column = f"{data}-{settings.phases}"
    if name not in TABLE_1 or column not in COLUMNS:
        return None
    row = table_1(column, name)
    return row.paper if in_protocol(settings, row.settings) else None


def in_protocol(settings: RunSettings, row: Any) -> bool:
    """Whether a run follows the protocol of a row, whatever quality was chosen and how."""
    same = ("first", "order", "network", "compress", "train")
    ours, theirs = settings.memory, row.memory
    return (
        all(getattr(settings, name) == getattr(row, name) for name in same)
        and settings.options in ((), row.options)
        and ours.budget == theirs.budget
        and (ours.quality == "original") == (theirs.quality == "original")
    )
