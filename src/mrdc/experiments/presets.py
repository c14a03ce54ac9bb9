"""What `mrdc run` can be told in a word: recipes, and the rows of the paper's Table 1.

A recipe is a method and its usual training: `lucir` replays originals, `lucir-mrdc`
compressed images. A preset adds a data set and a number of phases, as in `cub-5-lucir`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import lookup
from mrdc.detection.settings import DetectSettings
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings

MISSING = ""  # data that people must name

BRIGHTNESS = 63 / 255  # as PODNet and AANets vary it
PODNET = TrainSettings(
    lr=0.05, weight_decay=5e-4, batch_size=64, schedule="cosine", brightness=BRIGHTNESS
)
TRAINING: dict[str, TrainSettings] = {
    "finetune": TrainSettings(),
    "joint": TrainSettings(),
    "lwf": TrainSettings(),
    "icarl": TrainSettings(),
    "bic": TrainSettings(lr=0.05, milestones=(1 / 3, 2 / 3, 8 / 9)),
    "lucir": TrainSettings(),
    "podnet": PODNET,
    "tpcil": TrainSettings(),
    "mnemonics": TrainSettings(weight_decay=5e-4),
    "lucir-aanets": replace(PODNET, batch_size=128),
    "podnet-aanets": PODNET,
    "lucir-dde": TrainSettings(),
    "podnet-dde": PODNET,
}
WITHOUT_MEMORY = ("finetune", "joint")

Data = Literal["cub", "sub", "full", "textures"]
COLUMNS: tuple[tuple[Data, int], ...] = (
    ("cub", 5), ("cub", 10), ("cub", 25), ("sub", 5), ("sub", 10), ("sub", 25),
    ("full", 5), ("full", 10),
)  # fmt: skip
# LUCIR with AANets and DDE: as the authors of MRDC reproduced them.
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
    "podnet-aanets-mrdc": (None,) * 8,
    "podnet-dde-mrdc": (None,) * 8,
    "mnemonics-mrdc": (None,) * 8,
    "tpcil-mrdc": (None,) * 8,
    "lwf-mrdc": (None,) * 8,
    "icarl-mrdc": (None,) * 8,
    "bic-mrdc": (None,) * 8,
}
# The qualities that the paper's R_q gave on ImageNet; the other methods measure their own.
PAPER_QUALITY = {"lucir": "50", "lucir-aanets": "50", "lucir-dde": "50", "podnet": "75"}
# Rows with class-balance finetuning, and DDE's settings for a thousand classes.
_DDE_ON_FULL = ("balance=all", "base=10", "neighbours=1")
ON_FULL: dict[str, tuple[str, ...]] = {
    "lucir-mrdc": ("balance=new",),
    "lucir-dde": _DDE_ON_FULL,
    "lucir-dde-mrdc": _DDE_ON_FULL,
    "podnet-dde": ("neighbours=1",),
    "podnet-dde-mrdc": ("neighbours=1",),
}
ALL_OF_CUB = "94"  # at this quality all images of full-size CUB fit into 20 originals a class


S = TypeVar("S", RunSettings, DetectSettings)


@dataclass(frozen=True)
class Preset(Generic[S]):
    """Settings under a name.

    Attributes:
        paper: averaged incremental accuracy in Table 1, in percent.
        prefix: what stands before the data that people name.
    """

    settings: S
    summary: str
    paper: float | None = None
    prefix: str = ""


def recipe(name: str) -> RunSettings:
    """A method, replaying originals or (-mrdc) compressed images, 20 originals a class."""
    method = name.removesuffix("-mrdc")
    memory = MemorySettings(quality="auto" if name.endswith("-mrdc") else "original")
    return RunSettings(MISSING, method=method, train=TRAINING[method], memory=memory)


def _table_1(name: str, data: Data, phases: int, paper: float | None) -> Preset[RunSettings]:
    """A row and column of Table 1: bytes are counted as whole files there."""
    settings = recipe(name)
    quality = settings.memory.quality
    if name.endswith("-mrdc"):
        fixed = PAPER_QUALITY.get(settings.method, quality)
        quality = ALL_OF_CUB if data == "cub" else fixed
    memory = replace(settings.memory, quality=quality, accounting="file")
    options = ON_FULL.get(name, ()) if data == "full" else ()
    settings = replace(settings, phases=phases, memory=memory, options=options)
    names = {"cub": "CUB-200-2011", "sub": "ImageNet-sub", "full": "ImageNet-full"}
    summary = f"{name} on {names[data]}, {phases} phases"
    return Preset(settings, summary, paper, "imagenet-sub:" if data == "sub" else "")


def _textures(name: str) -> Preset[RunSettings]:
    """A few minutes without a GPU."""
    settings = recipe(name)
    train = replace(settings.train, epochs=30, batch_size=16)
    memory = replace(settings.memory, budget="8/class")
    small = ("lucir", "lucir-aanets", "mnemonics")
    options = ("base=5",) if settings.method in small else ()  # as LUCIR does for small images
    settings = replace(
        settings, data="textures", network="resnet18-narrow", train=train, memory=memory,
        options=options,
    )  # fmt: skip
    return Preset(settings, f"{name} on built-in synthetic images, 5 phases")


RECIPES: dict[str, Preset[RunSettings]] = {
    name: Preset(recipe(name), f"{name}, on any data")
    for method in TRAINING
    for name in ([method] if method in WITHOUT_MEMORY else [method, f"{method}-mrdc"])
}


def scene_recipe(method: str, replay: str) -> DetectSettings:
    """A detector that replays nothing, originals, compressed images, or (joint) everything."""
    settings = DetectSettings(MISSING, method=method)
    if method == "supervised":
        settings = replace(settings, unlabelled=0)
    quality = "auto" if replay == "mrdc" else "original"
    memory = replace(settings.memory, quality=quality)
    if replay == "finetune":
        return replace(settings, replay="none", memory=memory)
    return replace(settings, replay="joint" if replay == "joint" else "memory", memory=memory)


DETECTION = ("supervised", "pseudo-labels", "unbiased-teacher")
REPLAYS = ("finetune", "replay", "mrdc", "joint")
SCENE_RECIPES: dict[str, Preset[DetectSettings]] = {
    f"{method}-{replay}": Preset(
        scene_recipe(method, replay), f"{method}-{replay}: a detector, on any COCO data"
    )
    for method in DETECTION
    for replay in REPLAYS
}
# AP on SODA10M after five phases; R_q chose 50.
SODA10M = {
    "pseudo-labels-finetune": 40.36, "pseudo-labels-replay": 40.75, "pseudo-labels-mrdc": 41.50,
    "unbiased-teacher-finetune": 42.88, "unbiased-teacher-replay": 43.10,
    "unbiased-teacher-mrdc": 43.72,
}  # fmt: skip


def _soda10m(name: str, paper: float) -> Preset[DetectSettings]:
    """A row of the paper's table of detection: bytes are counted as whole files there."""
    settings = SCENE_RECIPES[name].settings
    quality = "50" if name.endswith("-mrdc") else settings.memory.quality
    memory = replace(settings.memory, quality=quality, accounting="file")
    return Preset(replace(settings, memory=memory), f"{name} on SODA10M, 5 phases (AP)", paper)


def _shapes(name: str) -> Preset[DetectSettings]:
    """Minutes without a GPU."""
    settings = SCENE_RECIPES[name].settings
    lr = 0.0025 if settings.method == "unbiased-teacher" else 0.005  # unlabelled losses weigh 4
    train = replace(settings.train, steps=60, lr=lr, batch_size=4, unlabelled_batch=4)
    settings = replace(
        settings, data="shapes", labelled=20, unlabelled=min(settings.unlabelled, 20),
        phases=3, detector="lite0", short=120, long=160, train=train,
        memory=replace(settings.memory, budget="4/phase"),
    )  # fmt: skip
    return Preset(settings, f"{name} on built-in synthetic scenes, 3 phases (AP)")


PRESETS: dict[str, Preset[RunSettings]] = {
    **{
        f"{data}-{phases}-{name}": _table_1(name, data, phases, paper)
        for name, row in TABLE_1.items()
        for (data, phases), paper in zip(COLUMNS, row, strict=True)
    },
    **{f"textures-{name}": _textures(name) for name in RECIPES},
}
SCENE_PRESETS: dict[str, Preset[DetectSettings]] = {
    **{f"soda10m-{name}": _soda10m(name, paper) for name, paper in SODA10M.items()},
    **{f"shapes-{name}": _shapes(name) for name in SCENE_RECIPES},
}


def published(name: str, settings: RunSettings, classes: Collection[str]) -> float | None:
    """The paper's number for a recipe on data of its Table 1, known by their classes."""
    first, count = next(iter(sorted(classes)), ""), len(classes)
    known = {("001.Black_footed_Albatross", 200): "cub", ("n01440764", 1000): "full"}
    data = "sub" if settings.data.startswith("imagenet-sub:") else known.get((first, count))
    row = PRESETS.get(f"{data}-{settings.phases}-{name}")
    return row.paper if row and in_protocol(settings, row.settings) else None


def in_protocol(settings: RunSettings, row: RunSettings) -> bool:
    """Whether a run is what a row of Table 1 is about, whatever quality was chosen, and how."""
    same = ("first", "order", "network", "train")
    ours, theirs = settings.memory, row.memory
    return (
        all(getattr(settings, name) == getattr(row, name) for name in same)
        and settings.options in ((), row.options)
        and ours.budget == theirs.budget
        and (ours.quality == "original") == (theirs.quality == "original")
    )


def preset(name: str) -> Preset[Any]:
    """A recipe or preset by name.

    Raises:
        UsageError: no such name.
    """
    for table in (PRESETS, SCENE_PRESETS):
        if name in table:
            return table[name]
    if name.partition("-")[0] in ("cub", "sub", "full", "textures", "soda10m", "shapes"):
        raise UsageError(f"unknown preset {name!r}: `mrdc list presets` has all")
    return lookup({**RECIPES, **SCENE_RECIPES}, name, "recipe (or preset, see `mrdc list presets`)")
