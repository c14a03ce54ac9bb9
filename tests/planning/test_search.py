"""The search: R_q of what each candidate would store, and the images it returns."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mrdc.codec import CODECS
from mrdc.codec.image import decode
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import embed
from mrdc.planning.discrepancy import discrepancy
from mrdc.planning.scan import scan
from mrdc.planning.search import measure, quiet
from mrdc.planning.selection import SELECTORS, Ranking, Seed, herding
from mrdc.planning.volume import log_volume
from tests.conftest import CHEAP, jpeg, make_photos
from tests.planning.commands import Counting, packed, planned, settings

PAIRING = pytest.mark.parametrize("pairing", ["paired", "independent"])


def test_every_candidate_and_the_originals_are_measured(photos: Path) -> None:
    """Lower quality, more images; everything within the budget."""
    found = planned(photos, qualities=(90, 20, 50))
    names = ["original", "jpeg 90", "jpeg 50", "jpeg 20"]
    assert [str(candidate) for candidate in found.candidates] == names
    quantities = [candidate.quantity for candidate in found.candidates]
    assert quantities == sorted(quantities) and quantities[0] == 12
    assert all(0 < candidate.bytes <= found.budget_bytes for candidate in found.candidates)
    plain = found.candidates[0]
    assert plain.volume_ratio == plain.ratio_per_image == 1.0 and plain.discrepancy > 0
    assert found.chosen.verdict == "chosen" and found.chosen in found.candidates


def test_scales_are_candidates(photos: Path, tmp_path: Path) -> None:
    """Every quality at every scale, except for originals; the file records what was chosen."""
    found = planned(photos, qualities=(90, 50), scale=(0.5, 1.0))
    names = ["original", "jpeg 90", "jpeg 50", "jpeg@0.5 90", "jpeg@0.5 50"]
    assert [str(candidate) for candidate in found.candidates] == names
    rows = [candidate.to_json() for candidate in found.candidates]
    assert [row["scale"] for row in rows] == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert rows[3]["bytes"] < rows[1]["bytes"]
    assert rows[3]["discrepancy"] > 0 and rows[3]["ratio_per_image"] != 1
    made = packed(photos, tmp_path / "a", qualities=(90,), scale=(0.5,))
    assert made.plan is None and made.memory.codec.name == "jpeg@0.5"
    assert made.memory[0][0].shape == (3, *decode(jpeg(0)).shape[:2])


@PAIRING
def test_ratio_against_a_slow_reference(photos: Path, pairing: str) -> None:
    """Compressed images are ranked by originals or by themselves; originals always by originals."""
    chosen = settings(photos, pairing=pairing, budget="0.5/class", qualities=(20,))
    with scan(chosen, quiet, CHEAP, folder=photos.parent, measuring=True) as seen:
        ranks = seen.pool.rankings()
        found, memory, order = measure(seen.pool, seen.budget, chosen, (CODECS["jpeg"], 20), ranks)
    assert memory is not None
    logs, per_image, apart, differ = [], [], [], False
    for label in range(3):
        sources = [jpeg(100 * label + n) for n in range(8)]
        coded = ReplayMemory("1MB", "jpeg", 20)
        coded.add({0: sources})
        before, after = (
            embed([Photo(str(n), partial(bytes, data)) for n, data in enumerate(files)], CHEAP)[0]
            for files in (sources, [coded.encoded(n) for n in range(8)])
        )
        first, second = herding(before, 8), herding(after, 8)
        ranked = first if pairing == "paired" else second
        assert list(order[label]) == ranked.tolist()
        held = len(memory.sources(label))
        differ |= set(first[:held]) != set(second[:held])
        logs.append(log_volume(after[ranked[:held]]) - log_volume(before[first[:held]]))
        per_image.append(logs[-1] / held)
        apart.append(discrepancy(before, after[ranked[:held]]))
    assert differ  # otherwise the two pairings could not be told apart
    assert found.log_volume_ratio == pytest.approx(np.mean(logs), abs=1e-4)
    assert math.log(found.ratio_per_image) == pytest.approx(np.mean(per_image), abs=1e-5)
    assert found.discrepancy == pytest.approx(np.mean(apart), abs=1e-5)
    plain, row = planned(photos, pairing=pairing, budget="0.5/class", qualities=(20,)).candidates
    assert plain == planned(photos, budget="0.5/class", qualities=(20,)).candidates[0]
    assert row.log_volume_ratio == pytest.approx(found.log_volume_ratio, abs=1e-6)


def test_no_image_is_encoded_twice(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory file holds the images that the search encoded."""
    codec = Counting()
    monkeypatch.setitem(CODECS, codec.name, codec)
    qualities, budget = (90, 40), "8 originals"
    found = packed(photos, tmp_path / "a", codec=(codec.name,), qualities=qualities, budget=budget)
    assert found.memory.codec is codec and found.memory.quality == 40
    assert {quality for _, quality in codec.calls} == {90, 40}
    assert set(codec.calls.values()) == {1}


def test_kept_sources_are_exactly_faithful(photos: Path) -> None:
    """Nothing changed, so R_q is 1 even if it could not be measured."""
    row = planned(photos, qualities=(100,), budget="2/class").candidates[1]
    assert row.kept_sources == row.quantity and row.volume_ratio == 1.0
    assert row.ratio_per_image == 1.0 and row.discrepancy > 0  # not all of the images are stored
    assert planned(photos, qualities=(100,), budget="1MB").candidates[1].discrepancy < 1e-12
    exact = planned(photos, qualities=(100,), budget="2/class", exact=True).candidates[1].exact
    assert exact is not None and exact["l2"] == pytest.approx(0, abs=1e-6)


def test_images_that_stay_as_they_are_are_not_embedded_again(photos: Path) -> None:
    """They have the features of their originals, unlike compressed images."""
    for number, file in enumerate(sorted(photos.rglob("*.jpg"))):
        file.write_bytes(jpeg(number, 30 if number % 3 else 95))
    chosen = settings(photos, budget="1MB", qualities=(60,))
    asked: list[int] = []
    with scan(chosen, quiet, CHEAP, folder=photos.parent, measuring=True) as seen:

        def counted(some: Sequence[Photo], stage: str) -> Tensor:
            asked.append(len(some))
            return embed(some, CHEAP)[0]

        pool = replace(seen.pool, embed=counted)
        memory = pool.store(seen.budget, (CODECS["jpeg"], 60), "packed", pool.rankings())
        found = pool.embed_memory(memory)
    assert asked == [len(memory) - memory.kept_sources()] and 0 < asked[0] < len(memory)
    everything = embed(memory.examples().photos, CHEAP)[0]
    assert torch.equal(torch.cat([found[label] for label in memory.labels]), everything)


def test_exact_quantities_hold_together(photos: Path) -> None:
    """R^2 Z = P(compressed) / P(original), class by class and so in the mean of logs."""
    for candidate in planned(photos, exact=True).candidates[1:]:
        assert candidate.exact is not None
        e = candidate.exact
        log_rz = 2 * candidate.log_volume_ratio + e["log_z"]
        assert log_rz == pytest.approx(e["log_p_compressed"] - e["log_p_original"], abs=1e-6)
        assert e["l2"] == pytest.approx(abs(math.exp(log_rz) - 1))


def test_classes_measured_in_part_are_not_in_the_exact_quantities(tmp_path: Path) -> None:
    """Nor are they in L_2, which is that of a class measured whole; whatever the pairing."""
    photos = make_photos(tmp_path / "photos", classes=2, images=6)
    for number in range(60):  # more images than dimensions
        (photos / "class1" / f"more{number}.jpg").write_bytes(jpeg(900 + number))
    for pairing in ("paired", "independent"):
        found = planned(photos, budget="1MB", qualities=(20,), exact=True, pairing=pairing)
        candidate = found.candidates[1]
        assert set(candidate.sampled) == {"class1"} and candidate.exact is not None
        e = candidate.exact
        log_ratio = e["log_p_compressed"] - e["log_p_original"]
        assert e["l2"] == pytest.approx(abs(math.exp(log_ratio) - 1))


@PAIRING
@pytest.mark.parametrize("select", ["herding", "nearest_mean"])
def test_duplicates_do_not_empty_the_volume(photos: Path, select: str, pairing: str) -> None:
    """A class with a copied file is measured, whatever its rank, and the copy is counted."""
    (photos / "class0" / "copy.jpg").write_bytes(jpeg(0))
    found = planned(photos, budget="1MB", select=select, pairing=pairing)
    assert all(c.duplicates == 1 and not c.excluded for c in found.candidates)
    assert found.chosen.quantity == 24


def test_class_of_one_image_is_kept_and_not_measured(photos: Path) -> None:
    (photos / "lonely").mkdir()
    (photos / "lonely" / "one.jpg").write_bytes(jpeg(500))
    found = planned(photos, qualities=(50,))
    assert found.classes == 4 and found.skipped == []
    assert found.candidates[1].excluded == {"lonely": "one image"}
    assert found.candidates[1].per_class[0] == 1 and math.isfinite(found.candidates[1].volume_ratio)


def test_more_images_than_dimensions_are_sampled(tmp_path: Path) -> None:
    """R_q comes from the same 24 of 60 images every time; ridge needs no sample."""
    photos = make_photos(tmp_path / "many", classes=1, images=60)
    rows = [planned(photos, budget="1MB", qualities=(50,)).candidates[1] for _ in range(2)]
    assert rows[0] == rows[1] and rows[0].quantity == 60
    assert math.isfinite(rows[0].volume_ratio)
    said = "R_q measured on 24 of 60 images (48 dimensions)"
    assert rows[0].to_json()["sampled_classes"] == {"class0": said}
    ridge = planned(photos, budget="1MB", qualities=(50,), volume="ridge").candidates[1]
    assert ridge.quantity == 60 and ridge.sampled == {}


@PAIRING
def test_a_large_class_is_ranked_only_as_far_as_images_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairing: str
) -> None:
    """The same memory as with a full ranking, from the first ranks of each class."""
    photos = make_photos(tmp_path / "photos", classes=2, images=30)
    options: dict[str, Any] = {"pairing": pairing, "budget": "0.5/class", "qualities": (20,)}
    whole = packed(photos, tmp_path / "whole.mrdc", **options).memory
    asked: list[int] = []

    def spy(features: ArrayLike, count: int, seed: Seed = 0) -> Ranking:
        asked.append(count)
        return herding(features, count)

    monkeypatch.setitem(SELECTORS, "herding", spy)
    monkeypatch.setattr("mrdc.planning.selection.GRAM_LIMIT", 5)
    monkeypatch.setattr("mrdc._utils.lazy.FIRST", 2)
    lazy = packed(photos, tmp_path / "lazy.mrdc", **options).memory
    assert [lazy.sources(label) for label in range(2)] == [whole.sources(n) for n in range(2)]
    assert min(asked) == 2 and (max(asked) < 30 or pairing == "independent")
