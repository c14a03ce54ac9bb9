"""Recipes and presets: their settings, and the paper's numbers."""

from dataclasses import replace
from typing import Any

import pytest

from mrdc._utils.errors import UsageError
from mrdc.detection.methods import SCENE_METHODS
from mrdc.detection.settings import DetectSettings
from mrdc.experiments.check import check
from mrdc.experiments.presets import (
    COLUMNS,
    DETECTION,
    SODA10M,
    TABLE_1,
    TRAINING,
    WITHOUT_MEMORY,
    in_protocol,
    preset,
    preset_names,
    published,
    recipe,
    recipe_names,
    scene_recipe_names,
)
from mrdc.methods import METHODS
from mrdc.methods.options import make_method, method_settings
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings

ALL = [*recipe_names(), *scene_recipe_names(), *preset_names()]


def test_every_name_has_valid_settings() -> None:
    """The method is that of the name; it replays originals unless the name ends in -mrdc."""
    assert len(ALL) == len(set(ALL)) > 250
    for name in ALL:
        found = preset(name)
        settings = found.settings
        check(settings)
        compressed = settings.memory.quality != "original"
        assert compressed is name.endswith("-mrdc"), name
        kind = name.removesuffix("-mrdc")
        if isinstance(settings, DetectSettings):
            kind, _, replay = name.rpartition("-")
            assert settings.replay == {"finetune": "none", "joint": "joint"}.get(replay, "memory")
        assert kind.endswith(settings.method), name
        assert settings.method in found.summary


def test_every_method_has_a_recipe() -> None:
    assert list(TRAINING) == list(METHODS)
    assert list(DETECTION) == list(SCENE_METHODS)
    assert {m for m, make in METHODS.items() if not make().needs.replays} == set(WITHOUT_MEMORY)
    compressed = {f"{method}-mrdc" for method in METHODS if method not in WITHOUT_MEMORY}
    assert set(recipe_names()) == set(METHODS) | compressed


# Learning rate, weight decay, batch size, milestones of 90 epochs (None: cosine)
SPECIFIED: dict[str, tuple[float, float, int, tuple[int, ...] | None]] = {
    "replay": (0.05, 5e-4, 128, None),
    "replay-cosine": (0.05, 5e-4, 128, None),
    "lwf": (0.1, 1e-4, 128, (30, 60)),
    "icarl": (0.1, 1e-4, 128, (30, 60)),
    "bic": (0.05, 5e-4, 128, None),
    "lucir": (0.1, 1e-4, 128, (30, 60)),
    "podnet": (0.05, 5e-4, 64, None),
    "tpcil": (0.1, 1e-4, 128, (30, 60)),
    "mnemonics": (0.1, 5e-4, 128, (30, 60)),
    "lucir-aanets": (0.05, 5e-4, 128, None),
    "podnet-aanets": (0.05, 5e-4, 64, None),
    "lucir-dde": (0.1, 1e-4, 128, (30, 60)),
    "podnet-dde": (0.05, 5e-4, 64, None),
    "lucir-fidelity": (0.1, 1e-4, 128, (30, 60)),
    "lucir-relaxed": (0.05, 5e-4, 128, None),
}


def test_training_as_specified() -> None:
    """Section 15.1 of the specification; BiC as it works on CUB (REPRODUCTION.md)."""
    for method, (lr, decay, batch, milestones) in SPECIFIED.items():
        train = recipe(method).train
        assert (train.lr, train.weight_decay, train.batch_size) == (lr, decay, batch), method
        assert (train.epochs, train.momentum) == (90, 0.9)
        assert train.schedule == ("cosine" if milestones is None else "multistep")
        assert train.brightness == (63 / 255 if milestones is None else 0)
        assert train.match == (method in ("replay", "replay-cosine", "lucir-relaxed"))
        if milestones is not None:
            assert tuple(round(part * 90) for part in train.milestones) == milestones


# Copied from the paper's Table 1 by hand
CELLS = {
    "cub-5-lwf": 39.42, "full-10-lwf": 38.90, "cub-10-icarl": 39.31,
    "sub-10-bic": 64.96, "cub-5-lucir": 44.63, "sub-25-lucir": 61.44,
    "cub-10-lucir-mrdc": 47.28, "sub-25-lucir-mrdc": 70.53, "full-5-lucir-mrdc": 67.53,
    "sub-10-podnet": 74.33, "full-10-podnet-mrdc": 66.31, "sub-25-lucir-aanets": 70.70,
    "cub-25-lucir-aanets-mrdc": 51.33, "full-10-lucir-dde": 65.21, "sub-5-lucir-dde-mrdc": 75.12,
    "sub-10-podnet-aanets": 75.58, "full-5-podnet-dde": 66.42, "sub-25-mnemonics": 69.74,
    "full-10-tpcil": 62.88, "soda10m-unbiased-teacher-mrdc": 43.72,
    "soda10m-pseudo-labels-finetune": 40.36,
}  # fmt: skip


def test_published_numbers() -> None:
    """Only presets on the paper's data have a number."""
    assert {name: preset(name).paper for name in CELLS} == CELLS
    rows = {
        f"{c}-{r}" for r, row in TABLE_1.items() for c, n in zip(COLUMNS, row, strict=True) if n
    }
    with_number = {name for name in ALL if preset(name).paper is not None}
    assert with_number == rows | {f"soda10m-{name}" for name in SODA10M}
    assert len(rows) == 15 * 8 - 4 * 3 - 2


def test_presets_follow_the_papers_protocol() -> None:
    """Whole files, 20 originals per class, half the classes first, its order and epochs."""
    for name in ALL:
        settings = preset(name).settings
        if name.startswith(("cub-", "sub-", "full-")):
            assert isinstance(settings, RunSettings)
            assert (settings.memory.accounting, settings.memory.budget) == ("file", "20/class")
            assert (settings.first, settings.order, settings.size) == ("half", "1993", None)
            assert (settings.train.epochs, settings.network) == (90, "resnet18")
            assert settings.phases == int(name.split("-")[1])
        elif name.startswith("soda10m-"):
            assert (settings.memory.accounting, settings.memory.budget) == ("file", "100/phase")


def test_qualities() -> None:
    """The paper's quality if it gives one (section 15.1), else R_q chooses."""
    specified = {"original": ["cub-5-lucir"], "94": ["cub-5-lucir-mrdc", "cub-25-podnet-mrdc"]}
    specified["50"] = ["sub-5-lucir-mrdc", "full-10-lucir-mrdc", "soda10m-unbiased-teacher-mrdc"]
    specified["75"] = ["sub-5-podnet-mrdc", "full-5-podnet-mrdc"]
    specified["auto"] = ["sub-5-bic-mrdc", "textures-lucir-mrdc", "lucir-mrdc"]
    for quality, names in specified.items():
        assert {preset(name).settings.memory.quality for name in names} == {quality}


def test_options_of_the_thousand_classes_and_of_small_images() -> None:
    """LUCIR with MRDC is balanced on ImageNet only (Table 1); LUCIR's lambda is 5 on textures."""
    dde = ("balance=all", "base=10", "neighbours=1")
    options = {name: preset(name).settings.options for name in ALL}
    assert {name for name in ALL if "balance=new" in options[name]} == {
        "full-5-lucir-mrdc",
        "full-10-lucir-mrdc",
    }
    for suffix in ("", "-mrdc"):
        assert options[f"full-5-lucir-dde{suffix}"] == dde
        assert options[f"full-5-podnet-dde{suffix}"] == ("neighbours=1",)
        assert options[f"full-5-lucir-aanets{suffix}"] == options[f"sub-5-lucir-dde{suffix}"] == ()
        for method in ("lucir", "lucir-aanets", "lucir-dde", "mnemonics"):
            made = make_method(method, options[f"textures-{method}{suffix}"])
            assert method_settings(made)["base"] == 5.0


@pytest.mark.parametrize("name", ["cub-6-lucir", "sub-5-lucyr", "textures-", "full", "shapes-x"])
def test_unknown_presets_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="`mrdc list presets` shows all"):
        preset(name)
    with pytest.raises(UsageError, match="did you mean 'lucir'"):
        preset("lucyr")


BIRDS = [f"{n:03}.{'Black_footed_Albatross' if n == 1 else n}" for n in range(1, 201)]
WORDS = [f"n{1440764 + n:08}" for n in range(1000)]
SUB = {"data": "imagenet-sub:ILSVRC"}
COMPRESSED, PLAIN = MemorySettings(quality="50"), MemorySettings(quality="original")


@pytest.mark.parametrize(
    ("name", "changes", "classes", "score"),
    [
        ("lucir-mrdc", {}, BIRDS[::-1], 46.68),
        ("lucir", {"phases": 25}, BIRDS, 45.48),
        ("lucir", {"phases": 10}, WORDS, 61.57),
        ("podnet", SUB, WORDS[:100], 75.54),
        ("lucir-mrdc", {"memory": COMPRESSED}, BIRDS, 46.68),
        ("lucir-mrdc", {"options": ("balance=new",)}, WORDS, 67.53),
        ("lucir", {"phases": 25}, WORDS, None),  # not in the table
        ("tpcil", {}, BIRDS, None),
        ("finetune", {}, BIRDS, None),
        ("lucir", {"phases": 4}, BIRDS, None),
        ("lucir", {}, BIRDS[:199], None),
        ("lucir", {}, [*BIRDS[1:], "201.More"], None),
        ("lucir", {}, [], None),
    ],
)
def test_recipes_on_the_papers_data_have_its_number(
    name: str, changes: dict[str, Any], classes: list[str], score: float | None
) -> None:
    """Recognised by their classes, whatever the folder is called."""
    settings = replace(recipe(name), **{"data": "some/folder", **changes})
    assert published(name, settings, classes) == score


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"seed": 3, "data": "elsewhere", "threads": 2}, True),
        ({"first": "equal"}, False),
        ({"order": "sorted"}, False),
        ({"network": "resnet18-narrow"}, False),
        ({"train": TrainSettings(epochs=1)}, False),
        ({"train": TrainSettings(match=0.5)}, False),
        ({"compress": 50}, False),
        ({"options": ("margin=0.1",)}, False),
        ({"memory": MemorySettings("10/class", "original")}, False),
        ({"memory": COMPRESSED}, False),
    ],
)
def test_protocols(changes: dict[str, Any], same: bool) -> None:
    row = preset("cub-5-lucir").settings
    assert in_protocol(replace(recipe("lucir"), **changes), row) is same
    compressed = preset("cub-5-lucir-mrdc").settings
    assert not in_protocol(replace(recipe("lucir-mrdc"), memory=PLAIN), compressed)
