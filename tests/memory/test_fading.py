"""A fading memory: scans go before images, and the budget always holds."""

import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrdc._utils.errors import BudgetError, MemoryFileError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.codec.jpeg_progressive import LEAST_SCANS, cut, scan_ends
from mrdc.memory.audit import audit
from mrdc.memory.budget import Budget
from mrdc.memory.edit import merge, rebudget
from mrdc.memory.encode import Encoded
from mrdc.memory.export import export
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from mrdc.training.learner import ClassLearner
from tests.conftest import jpeg, pixels
from tests.helpers import small_run

CODEC = "jpeg-progressive"
IMAGES = [pixels(seed, 64, 64) for seed in range(30)]  # arrays: no source bytes to keep
FULL = sum(len(CODECS[CODEC].encode(image, 75)) for image in IMAGES)
LEAST = sum(len(cut(CODECS[CODEC].encode(image, 75), LEAST_SCANS)) for image in IMAGES)


@cache
def encoded() -> dict[int, list[Encoded]]:
    """Ten images of each of three classes."""
    memory = ReplayMemory(10**9, CODEC, 75)
    memory.add({label: IMAGES[10 * label : 10 * label + 10] for label in range(3)})
    return {label: memory.encoded_images(label) for label in range(3)}


def filled(budget: Budget | int, classes: int = 3, **given: Any) -> ReplayMemory:
    """A fading memory with ten images of each class, added one class after another."""
    memory = ReplayMemory(budget, CODEC, 75, fade=True, **given)
    for label in range(classes):
        memory.add({label: encoded()[label]}, threads=1)
    return memory


def scans(memory: ReplayMemory) -> list[int]:
    """Scans of each image."""
    return [len(scan_ends(memory.encoded(place))) for place in range(len(memory))]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(LEAST // 3, FULL + 3000),
    st.integers(LEAST // 3, FULL),
    st.sampled_from(["bytes", "originals"]),
    st.sampled_from(["packed", "file"]),
)
def test_the_budget_holds_and_scans_go_first(
    amount: int,
    less: int,
    unit: Literal["bytes", "originals"],
    accounting: Literal["packed", "file"],
) -> None:
    """New classes, then a smaller budget: every image decodes, and none is dropped needlessly."""
    budgets = [Budget(float(n), unit, 1.0) for n in (amount, min(amount, less))]
    memory = ReplayMemory(budgets[0], CODEC, 75, fade=True, accounting=accounting)
    changes = [partial(memory.add, {n: encoded()[n]}) for n in range(3)]
    for change in [*changes, partial(memory.rebudget, budgets[1])]:
        before = {label: len(memory.sources(label)) for label in memory.labels}
        try:
            change()
        except BudgetError:
            continue
        left = scans(memory)
        assert min(left) >= LEAST_SCANS and max(left) - min(left) <= 1
        assert all(decode(memory.encoded(n)).shape == (64, 64, 3) for n in range(len(memory)))
        if any(len(memory.sources(label)) < held for label, held in before.items()):
            assert set(left) == {LEAST_SCANS}
    with tempfile.TemporaryDirectory() as folder:
        if memory.labels:
            memory.save(Path(folder) / "m")
            assert audit(Path(folder) / "m").problems == []  # the budget included


@given(st.integers(LEAST, FULL), st.integers(LEAST, FULL))
@settings(max_examples=15, deadline=None)
def test_steps_to_a_budget_do_not_matter(one: int, other: int) -> None:
    """Two steps leave the same bytes as one, or as the smaller budget from the beginning."""
    budgets = [Budget(float(n), "originals", 1.0) for n in sorted((one, other), reverse=True)]
    twice, once = (filled(Budget(1e9, "bytes")) for _ in range(2))
    for budget in budgets:
        twice.rebudget(budget)
    once.rebudget(budgets[1])
    assert len(once) == 30
    assert [once.encoded(n) for n in range(30)] == [twice.encoded(n) for n in range(30)]
    arriving = ReplayMemory(budgets[1], CODEC, 75, fade=True)
    arriving.add(encoded())
    assert [once.encoded(n) for n in range(30)] == [arriving.encoded(n) for n in range(30)]


def test_classes_that_come_later_hold_as_many_images() -> None:
    """Room for half of the images as they are is room for all of them, cut."""
    held = {}
    for fade in (False, True):
        memory = ReplayMemory(Budget(FULL * 0.5, "originals", 1.0), CODEC, 75, fade=fade)
        for label in range(3):
            memory.add({label: IMAGES[:10]})  # classes with the same sizes
        held[fade] = [len(memory.sources(label)) for label in range(3)]
    assert max(held[False]) < 7
    assert held[True] == [10, 10, 10]
    assert max(memory.scans()) < 10


def test_images_of_a_class_make_room_for_each_other() -> None:
    """Images that do not fit whole when their class arrives are cut, not dropped."""
    drops, fades = (
        ReplayMemory(Budget(FULL * 0.2, "originals", 1.0), CODEC, 75, fade=fade)
        for fade in (False, True)
    )
    drops.add({0: IMAGES[:10]})
    fades.add({0: IMAGES[:10]})
    assert len(drops) < 7 and drops.scans() == {10: len(drops)}
    assert len(fades) == 10 and min(fades.scans()) >= LEAST_SCANS
    fades.rebudget(Budget(LEAST * 0.15, "originals", 1.0))
    assert len(fades) < 7 and set(fades.scans()) == {LEAST_SCANS}


def test_nothing_is_encoded_again() -> None:
    """What is left of an image is a prefix of it; its values are kept."""
    memory = ReplayMemory(10**9, CODEC, 75, fade=True)
    memory.add({0: IMAGES[:5]}, values={0: {"logits": np.eye(5)}})
    before = [memory.encoded(n) for n in range(5)]
    memory.rebudget(Budget(memory.nbytes * 0.6, "originals", 1.0))
    assert [memory.encoded(n) for n in range(5)] == [
        cut(stream, left) for stream, left in zip(before, scans(memory), strict=True)
    ]
    assert memory.values(3)["logits"].tolist() == [0, 0, 0, 1, 0]


def test_files_spools_and_parts(tmp_path: Path) -> None:
    """A file fades like a memory in RAM, and still fades after it is loaded."""
    budget = FULL * 2 // 3
    filled(budget).save(tmp_path / "ram")
    filled(budget, spool=tmp_path).save(tmp_path / "spool")
    assert (tmp_path / "ram").read_bytes() == (tmp_path / "spool").read_bytes()
    loaded = ReplayMemory.load(tmp_path / "ram")
    assert loaded.fade and loaded.scans() == filled(budget).scans()
    filled(Budget(budget, "originals", 1.0), part_size=16_000).save(tmp_path / "parts")
    for path, less in [("ram", f"{budget * 9 // 10}B"), ("parts", f"{budget * 4 // 5} originals")]:
        assert audit(tmp_path / path).problems == []
        before = ReplayMemory.load(tmp_path / path).scans()
        found = rebudget(tmp_path / path, less, None, False)
        assert len(found.memory) == found.before and found.to_json()["scans"] != before
        assert ReplayMemory.load(tmp_path / path).scans() == found.to_json()["scans"]
        assert audit(tmp_path / path).problems == []


def test_merged_files_fade(tmp_path: Path) -> None:
    """Two files become one with two thirds of their bytes, and no image is lost."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, label in zip(paths, (0, 1), strict=True):
        memory = ReplayMemory(10**6, CODEC, 75, fade=label == 1, class_names={label: path.name})
        memory.add({label: encoded()[label]})
        memory.save(path)
    less = str(sum(path.stat().st_size for path in paths) * 2 // 3)
    found = merge(paths, tmp_path / "c", less, False)
    assert len(found.memory) == 20 and max(found.memory.scans()) < 10
    assert audit(tmp_path / "c").problems == []


def test_damage_is_never_sealed(tmp_path: Path) -> None:
    """A file with a changed byte is not cut, since a cut would get a new checksum."""
    path = tmp_path / "m"
    filled(10**6).save(path)
    data = bytearray(path.read_bytes())
    data[-3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(MemoryFileError, match="do not match its checksum"):
        rebudget(path, str(len(data) * 3 // 4), None, False)
    assert path.read_bytes() == data


def test_the_audit_checks_scans_against_what_was_written(tmp_path: Path) -> None:
    """Even bytes that were changed before they were stored."""
    memory = filled(10**6, classes=1)
    image = memory.encoded_images(0)[3]
    changed = image.body[:-9] + bytes([image.body[-9] ^ 1]) + image.body[-8:]
    memory.add({1: [replace(image, body=changed)]})
    memory.save(tmp_path / "m")
    assert audit(tmp_path / "m").problems == [
        "image 10: its scans do not match the checksums written with it"
    ]


def test_a_forged_image_has_no_scans(tmp_path: Path) -> None:
    """`info` and `scans` name it."""
    memory = ReplayMemory(10**6, CODEC, 75)
    memory.add({0: [replace(encoded()[0][0], source="odd", body=b"nothing", tables=b"")]})
    memory.save(tmp_path / "m")
    with pytest.raises(MemoryFileError, match="image odd: not a whole progressive JPEG"):
        ReplayMemory.load(tmp_path / "m").scans()


def test_a_faded_image_is_still_known() -> None:
    """If the full image comes again, it is a duplicate."""
    memory = filled(FULL // 2 + 3000)
    before = len(memory.sources(1))
    memory.extend(1, IMAGES[10:15])
    assert len(memory.sources(1)) == before
    assert memory.duplicates()[1] == 5


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_exported_images_come_back_as_they_are(share: float, tmp_path: Path) -> None:
    """Kept as source files, they are told apart and counted, and the audit is clean."""
    memory = filled(int(FULL * share) + 3000)
    memory.save(tmp_path / "a")
    export(open_memory(tmp_path / "a"), tmp_path / "out")
    again = ReplayMemory(10**6, CODEC, 75, fade=True)
    files = sorted((tmp_path / "out" / "0").glob("*.jpg"))
    again.add({0: [*files, *files]})
    again.save(tmp_path / "b")
    found = audit(tmp_path / "b")
    assert found.problems == [] and again.duplicates() == {0: len(files)}
    assert len(again) == len(files) == len(memory.sources(0))


def test_source_files_and_other_codecs_do_not_fade() -> None:
    """They are dropped, as in other memories; a class keeps its first image."""
    memory = ReplayMemory(10**6, "original", fade=True)
    memory.add({0: [jpeg(seed) for seed in range(6)]})
    before = [memory.encoded(n) for n in range(6)]
    memory.rebudget(Budget(memory.nbytes * 0.5, "originals", 1.0))
    assert memory.scans() == {} and 0 < len(memory) < 6
    assert [memory.encoded(n) for n in range(len(memory))] == before[: len(memory)]


def test_shrunk_images_fade() -> None:
    """A codec with a scale can fade, too."""
    memory = ReplayMemory(10**6, f"{CODEC}@0.5", 75, fade=True)
    memory.add({0: IMAGES[:5]})
    memory.rebudget(Budget(memory.nbytes * 0.8, "originals", 1.0))
    assert len(memory) == 5 and max(memory.scans()) < 10


def test_codecs_without_scans_are_refused() -> None:
    """A memory that cannot fade would silently drop images."""
    rule = "fade cuts scans of codec jpeg-progressive, which jpeg does not have"
    with pytest.raises(UsageError, match=rule):
        ReplayMemory(10**6, "jpeg", fade=True)
    memory = {"quality": "50", "fade": True, "budget": "30 originals"}
    with pytest.raises(UsageError, match=f"--memory.{rule}"):
        small_run("lucir", memory=memory)
    with pytest.raises(UsageError, match=r"--memory.fade needs a fixed budget.*12/class"):
        small_run("lucir", memory=memory | {"codec": (CODEC,), "budget": "12/class"})


def test_a_run_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last phase it holds more images than a run that drops them, in the same bytes."""
    monkeypatch.setattr(ClassLearner, "fit", lambda *_, **__: None)
    held = {"quality": "75", "codec": (CODEC,), "budget": "9 originals"}
    runs = [small_run("lucir", memory=held | {"fade": fade}).learn(0, 1) for fade in (1, 0)]
    fades, drops = (run.results[-1].memory for run in runs)
    assert fades.items > drops.items
    assert fades.bytes <= fades.budget_bytes == drops.budget_bytes
    assert fades.scans is not None and 5 <= fades.scans < 10 and drops.scans == 10
