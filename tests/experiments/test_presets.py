"""Presets: what they stand for, and that each of them starts.

The data sets are stand-ins of a few small images a class, in the layouts that
are published. Networks see them at 32 px, for one epoch of the first phase.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrdc._utils.errors import UsageError
from mrdc.cli.main import main
from mrdc.cli.progress import Progress
from mrdc.data import Splits, Stream, make_stream, open_splits
from mrdc.experiments.presets import (
    COLUMNS,
    PRESETS,
    RECIPES,
    TABLE_1,
    TRAINING,
    WITHOUT_MEMORY,
    Preset,
    preset,
    published,
    recipe,
)
from mrdc.experiments.run import check
from mrdc.methods import METHODS
from mrdc.training.prepare import make_method, method_settings
from mrdc.training.settings import MemorySettings, TrainSettings
from tests.conftest import jpeg
from tests.processes import FORK

ALL = {**RECIPES, **PRESETS}
SHAPES = [(24, 32), (32, 24), (40, 40)]


# What they stand for


def test_every_method_has_its_training() -> None:
    """And no other name has."""
    assert list(TRAINING) == list(METHODS)


@pytest.mark.parametrize("name", ALL)
def test_every_preset_is_one(name: str) -> None:
    """Its method is there, takes its options, and has its own training."""
    found = preset(name)
    settings = found.settings
    assert settings.method in METHODS
    assert name.removesuffix("-mrdc").endswith(settings.method)
    assert settings.memory.quality == "original" or name.endswith("-mrdc")
    check(settings)
    usual = TRAINING[settings.method]
    if not name.startswith("textures-"):
        assert settings.train == usual
    assert (settings.train.lr, settings.train.schedule) == (usual.lr, usual.schedule)
    recipe = f"{settings.method}-mrdc" if name.endswith("-mrdc") else settings.method
    assert name.endswith(recipe)
    assert found.summary.startswith(recipe)


def test_every_method_has_recipes() -> None:
    """With and without compression, but for those without a memory."""
    for method in METHODS:
        assert method in RECIPES
        assert (f"{method}-mrdc" in RECIPES) is (method not in WITHOUT_MEMORY)
    assert {m for m, make in METHODS.items() if not make().replays} == set(WITHOUT_MEMORY)


def test_names_of_presets() -> None:
    """Data, phases, recipe; nothing else."""
    made = [f"{data}-{phases}-{name}" for name in TABLE_1 for data, phases in COLUMNS]
    assert list(PRESETS) == [*made, *(f"textures-{name}" for name in RECIPES)]
    assert len(COLUMNS) == len(set(COLUMNS)) == 8


# Typed from the paper's Table 1
CELLS = {
    "cub-5-lwf": 39.42,
    "cub-25-lwf": 36.33,
    "full-10-lwf": 38.90,
    "cub-10-icarl": 39.31,
    "sub-5-icarl": 65.44,
    "full-5-icarl": 51.50,
    "cub-10-bic": 45.25,
    "sub-10-bic": 64.96,
    "full-10-bic": 58.72,
    "cub-5-lucir": 44.63,
    "cub-25-lucir": 45.48,
    "sub-5-lucir": 70.84,
    "sub-25-lucir": 61.44,
    "full-5-lucir": 64.45,
    "cub-5-lucir-mrdc": 46.68,
    "cub-10-lucir-mrdc": 47.28,
    "sub-10-lucir-mrdc": 72.70,
    "sub-25-lucir-mrdc": 70.53,
    "full-5-lucir-mrdc": 67.53,
    "full-10-lucir-mrdc": 65.29,
    "cub-10-podnet": 44.49,
    "sub-10-podnet": 74.33,
    "full-5-podnet": 66.95,
    "cub-25-podnet-mrdc": 45.84,
    "sub-5-podnet-mrdc": 78.08,
    "full-10-podnet-mrdc": 66.31,
    "cub-5-lucir-aanets": 46.87,
    "sub-25-lucir-aanets": 70.70,
    "cub-25-lucir-aanets-mrdc": 51.33,
    "full-5-lucir-aanets-mrdc": 64.99,
    "cub-10-lucir-dde": 46.48,
    "full-10-lucir-dde": 65.21,
    "cub-5-lucir-dde-mrdc": 47.16,
    "sub-5-lucir-dde-mrdc": 75.12,
    "sub-10-podnet-aanets": 75.58,
    "full-5-podnet-dde": 66.42,
    "sub-25-mnemonics": 69.74,
    "full-10-tpcil": 62.88,
}


@pytest.mark.parametrize(("name", "score"), CELLS.items())
def test_cells_of_table_1(name: str, score: float) -> None:
    """The number that a preset is compared with."""
    assert preset(name).paper == score


BIRDS = [f"{n:03}.{'Black_footed_Albatross' if n == 1 else n}" for n in range(1, 201)]
WORDS = [f"n{1440764 + n:08}" for n in range(1000)]


@pytest.mark.parametrize(
    ("name", "changes", "classes", "score"),
    [
        ("lucir-mrdc", {}, BIRDS[::-1], 46.68),
        ("lucir", {"phases": 25}, BIRDS, 45.48),
        ("lucir", {"phases": 10}, WORDS, 61.57),
        ("podnet", {"data": "imagenet-sub:ILSVRC"}, WORDS[:100], 75.54),
        ("lucir", {"phases": 25}, WORDS, None),  # not in the table
        ("tpcil", {}, BIRDS, None),
        ("finetune", {}, BIRDS, None),
        ("lucir", {"phases": 4}, BIRDS, None),
        ("lucir", {"first": "equal"}, BIRDS, None),
        ("lucir", {"memory": MemorySettings("10/class", "original")}, BIRDS, None),
        ("lucir", {"memory": MemorySettings(quality="50")}, BIRDS, None),  # that is lucir-mrdc
        ("lucir-mrdc", {"memory": MemorySettings(quality="50")}, BIRDS, 46.68),
        ("lucir-mrdc", {"memory": MemorySettings(quality="original")}, BIRDS, None),
        ("lucir", {"network": "resnet18-narrow"}, BIRDS, None),
        ("lucir", {"train": TrainSettings(epochs=1)}, BIRDS, None),
        ("lucir", {"order": "sorted"}, BIRDS, None),
        ("lucir", {"options": ("margin=0.1",)}, BIRDS, None),
        ("lucir-mrdc", {"options": ("balance=new",)}, WORDS, 67.53),
        ("lucir", {}, BIRDS[:199], None),
        ("lucir", {}, [*BIRDS[1:], "201.More"], None),
        ("lucir", {}, [], None),
    ],
)
def test_recipes_on_data_of_the_paper_have_its_number(
    name: str, changes: dict[str, Any], classes: list[str], score: float | None
) -> None:
    """Known by their classes, whatever the folder is called, in the paper's protocol."""
    settings = replace(recipe(name), **{"data": "some/folder", **changes})
    assert published(name, settings, classes) == score


def test_what_was_never_published_has_no_number() -> None:
    """All but LUCIR's and PODNet's rows with compression; some on CUB; recipes; synthetic data."""
    without = {name for name in ALL if preset(name).paper is None}
    on_cub = ("podnet-aanets", "podnet-dde", "mnemonics", "tpcil")
    unpublished = {
        f"{data}-{phases}-{m}-mrdc"
        for data, phases in COLUMNS
        for m in ("lwf", "icarl", "bic", *on_cub)
    }
    unpublished |= {f"cub-{phases}-{m}" for phases in (5, 10, 25) for m in on_cub}
    unpublished |= {"sub-25-podnet-dde", "sub-25-tpcil"}
    assert without == unpublished | set(RECIPES) | {f"textures-{name}" for name in RECIPES}


@pytest.mark.parametrize(
    ("name", "quality"),
    [
        ("cub-5-lucir", "original"),
        ("cub-5-lucir-mrdc", "94"),
        ("cub-25-podnet-mrdc", "94"),
        ("sub-5-lucir-mrdc", "50"),
        ("full-10-lucir-mrdc", "50"),
        ("sub-5-podnet-mrdc", "75"),
        ("full-5-podnet-mrdc", "75"),
        ("sub-5-bic-mrdc", "auto"),
        ("textures-lucir-mrdc", "auto"),
        ("lucir-mrdc", "auto"),
    ],
)
def test_qualities(name: str, quality: str) -> None:
    """The paper's where it gives one (section 15.1), else R_q chooses."""
    assert preset(name).settings.memory.quality == quality


def test_rows_of_the_paper_count_as_it_does() -> None:
    """Whole files, 20 originals a class, half the classes first, its order and epochs."""
    for name in PRESETS:
        if name.startswith("textures-"):
            continue
        settings = preset(name).settings
        assert (settings.memory.accounting, settings.memory.budget) == ("file", "20/class")
        assert (settings.first, settings.order, settings.size) == ("half", "1993", None)
        assert (settings.train.epochs, settings.network) == (90, "resnet18")
        assert settings.phases == int(name.split("-")[1])


@pytest.mark.parametrize(
    ("method", "lr", "decay", "batch", "schedule", "milestones"),
    [
        ("lwf", 0.1, 1e-4, 128, "multistep", (30, 60)),
        ("icarl", 0.1, 1e-4, 128, "multistep", (30, 60)),
        ("bic", 0.05, 1e-4, 128, "multistep", (30, 60, 80)),
        ("lucir", 0.1, 1e-4, 128, "multistep", (30, 60)),
        ("podnet", 0.05, 5e-4, 64, "cosine", (30, 60)),
        ("lucir-aanets", 0.05, 5e-4, 128, "cosine", (30, 60)),
        ("podnet-aanets", 0.05, 5e-4, 64, "cosine", (30, 60)),
        ("lucir-dde", 0.1, 1e-4, 128, "multistep", (30, 60)),
        ("podnet-dde", 0.05, 5e-4, 64, "cosine", (30, 60)),
        ("mnemonics", 0.1, 5e-4, 128, "multistep", (30, 60)),
        ("tpcil", 0.1, 1e-4, 128, "multistep", (30, 60)),
    ],
)
def test_training_as_specified(
    method: str, lr: float, decay: float, batch: int, schedule: str, milestones: tuple[int, ...]
) -> None:
    """Section 15.1 of the specification."""
    train = TRAINING[method]
    assert (train.lr, train.weight_decay, train.batch_size) == (lr, decay, batch)
    assert (train.epochs, train.momentum, train.schedule) == (90, 0.9, schedule)
    assert tuple(round(part * 90) for part in train.milestones) == milestones
    assert train.brightness == (63 / 255 if schedule == "cosine" else 0)


def test_only_lucir_mrdc_on_all_of_imagenet_is_balanced() -> None:
    """As the footnote of Table 1 says."""
    balanced = {name for name in ALL if "balance=new" in preset(name).settings.options}
    assert balanced == {"full-5-lucir-mrdc", "full-10-lucir-mrdc"}
    assert preset("full-5-lucir-mrdc").settings.options == ("balance=new",)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("lucir-dde", ("balance=all", "base=10", "neighbours=1")),
        ("podnet-dde", ("neighbours=1",)),
        ("lucir-aanets", ()),
    ],
)
@pytest.mark.parametrize("suffix", ["", "-mrdc"])
def test_settings_for_a_thousand_classes(
    method: str, options: tuple[str, ...], suffix: str
) -> None:
    """DDE's neighbours, weight and finetuning (section 15.1), on all of ImageNet alone."""
    assert preset(f"full-5-{method}{suffix}").settings.options == options
    assert preset(f"sub-5-{method}{suffix}").settings.options == ()


@pytest.mark.parametrize("method", ["lucir", "lucir-aanets", "lucir-dde", "mnemonics"])
def test_textures_are_small_images(method: str) -> None:
    """For which LUCIR's lambda is half as large."""
    for name in (f"textures-{method}", f"textures-{method}-mrdc"):
        assert method_settings(make_method(preset(name).settings))["base"] == 5.0


@pytest.mark.parametrize("name", ["cub-6-lucir", "sub-5-lucyr", "textures-", "full"])
def test_presets_that_there_are_not(name: str) -> None:
    """Where to find those that there are."""
    with pytest.raises(UsageError, match="`mrdc list presets` has all"):
        preset(name)


# Stand-ins


def write(file: Path, number: int) -> None:
    """A small photo that no other is: one of 24 pictures, and its number as a comment."""
    data = PICTURES[number % len(PICTURES)]
    comment = b"\xff\xfe" + (2 + 8).to_bytes(2, "big") + b"%08d" % number
    file.write_bytes(data[:2] + comment + data[2:])


PICTURES = [jpeg(seed, 90, *SHAPES[seed % 3]) for seed in range(24)]


@pytest.fixture(scope="session")
def cub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUB-200-2011 as its archive unpacks: 200 classes, 3 training and 1 test image each."""
    root = tmp_path_factory.mktemp("cub") / "CUB_200_2011"
    lists: dict[str, list[str]] = {
        name: [] for name in ("images", "image_class_labels", "train_test_split", "classes")
    }
    number = 0
    for label in range(1, 201):
        name = f"{label:03d}.Bird_{label}"
        lists["classes"].append(f"{label} {name}")
        (root / "images" / name).mkdir(parents=True)
        for _ in range(4):
            number += 1
            write(root / "images" / name / f"{number}.jpg", number)
            lists["images"].append(f"{number} {name}/{number}.jpg")
            lists["image_class_labels"].append(f"{number} {label}")
            lists["train_test_split"].append(f"{number} {int(number % 4 > 0)}")
    for name, lines in lists.items():
        (root / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return root.parent


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ImageNet: 1000 class folders in train/ and val/, 2 and 1 images each."""
    root = tmp_path_factory.mktemp("imagenet")
    for label in range(1000):
        for split, count in (("train", 2), ("val", 1)):
            folder = root / split / f"n{label:08d}"
            folder.mkdir(parents=True)
            for number in range(count):
                write(folder / f"{number}.JPEG", 3 * label + number + 2 * (split == "val"))
    return root


Data = Callable[[str], str]


@pytest.fixture(scope="session")
def data_for(cub: Path, imagenet: Path) -> Data:
    """What to say after --data, for a preset."""
    places = {"cub": str(cub), "sub": str(imagenet), "full": str(imagenet)}
    return lambda name: places.get(name.partition("-")[0], "textures")


@pytest.fixture(scope="session")
def splits_for(data_for: Data) -> Callable[[str], Splits]:
    """Training and test images of a preset's data, each opened once."""
    opened: dict[str, Splits] = {}

    def splits(name: str) -> Splits:
        data = preset(name).prefix + data_for(name)
        if data not in opened:
            opened[data] = open_splits(data)
        return opened[data]

    return splits


def stream_of(found: Preset[Any], splits: Splits) -> Stream:
    settings = found.settings
    return make_stream(splits, settings.phases, settings.first, settings.order)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_its_stream(name: str, splits_for: Callable[[str], Splits]) -> None:
    """Half the classes, then the others in equal parts; nothing lost."""
    splits = splits_for(name)
    stream = stream_of(preset(name), splits)
    data, phases = name.split("-")[0], preset(name).settings.phases
    classes = {"cub": 200, "sub": 100, "full": 1000, "textures": 10}[data]
    assert stream.sizes == (classes // 2, *[classes // 2 // phases] * phases)
    assert sorted(stream.classes) == list(splits.train.classes)
    assert stream.classes == stream.test.classes
    each = {"cub": (3, 1), "sub": (2, 1), "full": (2, 1), "textures": (60, 20)}[data]
    assert {(len(a), len(b)) for a, b in
            zip(stream.train.photos, stream.test.photos, strict=True)} == {each}  # fmt: skip


# Starting them


class Enough(Exception):  # noqa: N818
    """The first phase is over."""


def start(arguments: list[str], told: Path) -> None:
    """In a process of its own: run until the first phase is over, and tell of it."""
    os.environ["MRDC_CACHE"] = str(told.with_suffix(".cache"))

    def hear(self: Progress, kind: str, fields: dict[str, Any]) -> None:
        if kind == "phase":
            told.write_text(json.dumps(fields))
            raise Enough

    Progress.__call__ = hear  # type: ignore[method-assign]
    try:
        sys.exit(main(arguments))
    except Enough:
        sys.exit(0)


# One for each kind of data and method. With 500 new classes in a phase, selecting and
# measuring them would take most of the time: the full ones start with 20.
STARTED = [
    *(f"{data}-5-{method}-mrdc" for data in ("cub", "sub", "full")
      for method in METHODS if method not in WITHOUT_MEMORY),
    *(f"textures-{method}" for method in WITHOUT_MEMORY),
    *(f"textures-{method}-mrdc" for method in METHODS if method not in WITHOUT_MEMORY),
]  # fmt: skip


@pytest.mark.parametrize("name", STARTED)
def test_presets_start(name: str, data_for: Data, tmp_path: Path) -> None:
    """Through the command line: the first phase is trained, stored and measured."""
    flags = ["--train.epochs", "1", "--size", "32", "--network", "resnet18-narrow"]
    if name.startswith("full"):
        flags += ["--first", "20"]
    run = ["run", name, "--data", data_for(name), *flags, "--out", str(tmp_path / "run"), "--json"]
    process = FORK.Process(target=start, args=(run, tmp_path / "told.json"))
    process.start()
    process.join()
    assert process.exitcode == 0
    phase = json.loads((tmp_path / "told.json").read_text())
    method = preset(name).settings.method
    classes = {"cub": 100, "sub": 50, "full": 20, "textures": 5}[name.split("-")[0]]
    assert (phase["phase"], phase["classes"]) == (0, classes)
    assert phase["trained_images"] > 0
    assert 0 <= phase["accuracy"] <= 100
    assert (phase["memory"]["items"] >= classes) is (method not in WITHOUT_MEMORY)
    assert phase["memory"]["bytes"] <= phase["memory"]["budget_bytes"]
    quality = preset(name).settings.memory.quality
    if quality.isdecimal():
        assert phase["quality"] == int(quality)
