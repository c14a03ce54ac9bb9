"""`plan --sample` and `pack --sample`: a choice measured on some of the classes."""

import math
from pathlib import Path

import pytest
import torch

from mrdc._utils.errors import UsageError
from mrdc.data import open_images
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.scan import draw_classes
from mrdc.planning.search import Pool
from mrdc.planning.volume import PhaseRatio, phase_ratio
from tests.conftest import make_photos
from tests.data.test_coco import described, make_images, write
from tests.planning.commands import packed, planned


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Eight classes of eight photos."""
    return make_photos(tmp_path / "many", classes=8, images=8)


def test_a_sample_of_all_classes_is_the_plan_of_all(many: Path) -> None:
    whole, sampled = (planned(many, sample=n).to_json() | {"seconds": 0} for n in (None, 8))
    assert whole == sampled
    assert whole["drawn_from"] is None
    assert {row["ratio_error"] for row in whole["candidates"]} == {0.0}


def test_a_sample_is_measured_like_these_classes_alone(many: Path, tmp_path: Path) -> None:
    """The classes that a seed draws, with their share of the budget, and nothing else."""
    drawn = draw_classes(open_images(many), 3, seed=5)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in drawn.classes:
        (alone / name).symlink_to(many / name)
    sampled = planned(many, sample=3, seed=5, budget="32 originals")
    same = planned(alone, seed=5, budget="12 originals")
    assert (sampled.classes, sampled.images) == (3, 24)
    assert sampled.budget_bytes == same.budget_bytes
    fields = ("codec", "quality", "quantity", "bytes", "ratio_per_image", "discrepancy")
    for one, other in zip(sampled.candidates, same.candidates, strict=True):
        assert [getattr(one, name) for name in fields] == [getattr(other, name) for name in fields]


def test_other_seeds_draw_other_classes(many: Path) -> None:
    images = open_images(many)
    draws = {draw_classes(images, 3, seed).classes for seed in range(8)}
    assert len(draws) > 1
    assert all(list(names) == sorted(names) and len(names) == 3 for names in draws)


def test_log_error_is_the_standard_error_over_classes() -> None:
    """Two orthogonal rows span 1; at cosines of 0.6 and 0 they span 0.8 and 1."""
    straight = torch.eye(2)
    bent = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    found = phase_ratio({"a": (straight, bent), "b": (straight, straight)})
    logs = [math.log(0.8) / 2, 0.0]  # per image
    assert found.log_per_image == pytest.approx(sum(logs) / 2)
    assert found.log_error == pytest.approx(abs(logs[0]) / 2)  # stdev |a - b| / sqrt(2), over 2


def test_error_of_r_shrinks_with_the_share_that_is_missing(many: Path) -> None:
    """Six of eight classes: r times the error of its log, times sqrt(1 - 6/8) = 1/2."""
    images = open_images(many).pick(range(6))
    ratio = PhaseRatio(log_per_image=math.log(1.1), log_error=0.02)

    def error(drawn_from: int | None) -> float:
        pool = Pool(images, [], lambda *_: torch.empty(0), lambda *_: [], drawn_from=drawn_from)
        return pool.error(ratio)

    assert error(8) == pytest.approx(1.1 * 0.02 / 2)
    assert error(None) == 0


def test_report_says_what_a_sample_was_drawn_from(many: Path) -> None:
    found = planned(many, sample=6)
    assert found.to_json()["drawn_from"] == {"classes": 8, "images": 64}
    assert all(row.ratio_error > 0 for row in found.candidates if row.quality == 10)


def test_sentence_says_what_was_measured_and_what_is_uncertain(many: Path) -> None:
    found = planned(many, sample=4, budget="8 originals")
    all_hold = f"all of them would hold about {2 * found.chosen.quantity} images."
    assert f" Measured on 4 of 8 classes; {all_hold}" in found.sentence()
    row = next(row for row in found.candidates if row.quality == 10)
    bound = abs(row.ratio_per_image - 1) + row.ratio_error
    close = planned(many, sample=4, budget="8 originals", epsilon=bound).sentence()
    assert "Too close to a limit to be sure: " in close
    assert "jpeg 10 (" in close
    assert close.endswith("; try --sample 8.")
    far = planned(many, sample=4, budget="8 originals", epsilon=5.0).sentence()
    assert "Too close" not in far


def test_an_error_that_one_class_cannot_tell_is_uncertain(many: Path, tmp_path: Path) -> None:
    """The other class of the sample has one image, which says nothing about quality."""
    drawn = draw_classes(open_images(many), 2, seed=0)
    for photo in sorted((many / drawn.classes[0]).iterdir())[1:]:
        photo.unlink()
    found = planned(many, sample=2)
    (row,) = [row for row in found.candidates if row.quality == 10]
    assert math.isnan(row.ratio_error) and row.to_json()["ratio_error"] is None
    assert "Too close to a limit to be sure: " in found.sentence()


def test_pack_stores_all_classes_as_the_sample_chose(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.mrdc"
    result = packed(many, out, sample=3, budget="2/class")
    assert result.plan is not None
    chosen = result.plan.chosen
    memory = ReplayMemory.load(out)
    assert (memory.codec.name, memory.quality) == (chosen.codec, chosen.quality)
    assert len(memory.labels) == 8
    assert memory.nbytes <= memory.budget_bytes
    assert memory.notes["search"]["chosen"]["quality"] == chosen.quality
    same = packed(many, tmp_path / "n.mrdc", budget="2/class", qualities=(chosen.quality,))
    assert list(memory.targets) == list(same.memory.targets)
    assert result.seconds >= result.plan.seconds


def test_a_sample_may_choose_a_smaller_scale(many: Path, tmp_path: Path) -> None:
    out, scale = tmp_path / "m.mrdc", (1.0, 0.5)
    result = packed(many, out, sample=3, budget="1/class", qualities=(75,), scale=scale, epsilon=9)
    assert (result.memory.codec.name, result.memory.quality) == ("jpeg@0.5", 75)


@pytest.mark.parametrize("sample", [1, 0, -3])
def test_a_sample_needs_two_classes(many: Path, sample: int) -> None:
    with pytest.raises(UsageError, match=f"--sample must be 2 classes or more, got {sample}"):
        planned(many, sample=sample)


def test_scenes_have_no_classes_to_draw(tmp_path: Path) -> None:
    make_images(tmp_path / "road" / "images")
    write(tmp_path / "road" / "train.json", described(3, []))
    with pytest.raises(UsageError, match="--sample draws classes, which scenes do not have"):
        planned(tmp_path / "road", sample=2)


def test_pack_refuses_a_sample_without_a_search(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.mrdc"
    with pytest.raises(UsageError, match="--sample compares candidates: allow more than one"):
        packed(many, out, sample=3, qualities=(50,))
    assert not out.exists()
