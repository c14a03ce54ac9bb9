"""`plan`: the choice, its report, keywords and refusals."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from PIL import Image

from mrdc._utils.errors import BudgetError, DataError, ImageError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.base import Codec
from mrdc.codec.image import Pixels
from mrdc.codec.jpeg import Jpeg
from mrdc.planning.choice import Candidate, choose_quality, judge
from mrdc.planning.pack import pack
from mrdc.planning.plan import PlanOptions, plan
from mrdc.planning.selection import SELECTORS, Ranking, Seed
from mrdc.planning.settings import ChoiceSettings
from tests.conftest import CHEAP, project
from tests.planning.commands import planned


def test_json_field_names_are_fixed(photos: Path) -> None:
    report = planned(photos).to_json()
    assert " ".join(report) == (
        "budget classes images drawn_from boxes select embed candidates chosen criterion rule "
        "epsilon limits skipped ignored seconds"
    )
    assert " ".join(report["chosen"]) == "codec quality quantity bytes"
    assert " ".join(report["candidates"][0]) == (
        "codec quality scale quantity bytes volume_ratio log_volume_ratio ratio_per_image "
        "ratio_error discrepancy feasible verdict "
        "excluded_classes sampled_classes per_class kept_sources duplicates"
    )
    assert report["candidates"][0]["quality"] is None
    assert report["budget"]["originals"] == pytest.approx(12, abs=0.01)


def test_threads_and_cache_do_not_change_the_plan(photos: Path) -> None:
    """The last of these reads its features from the cache."""
    embedder = replace(CHEAP, key="cheap")
    reports = [
        planned(photos, embedder, threads=threads, cache=cache).to_json() | {"seconds": 0}
        for threads, cache in ((1, False), (4, False), (2, True), (2, True))
    ]
    assert all(report == reports[0] for report in reports)


def test_sentence_gives_the_choice_and_why(photos: Path) -> None:
    """Originals if they all fit, or if no other candidate passes."""
    kept = planned(photos, budget="1MB")
    assert kept.chosen.codec == "original"
    assert kept.sentence() == "Keep all 24 images as the original files: they fit as they are."
    none = planned(photos, criterion="ratio-per-image", epsilon=1e-9)
    assert none.chosen.codec == "original"
    assert none.sentence().endswith("nothing compressed passes (no r within 1e-09 of 1).")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("passes", 1.0, 105)], "nothing that passes holds many more (jpeg 90: 105)"),
        ([("a better quality fails", 1.0, 300)], "(no r within 0.1 of 1, as that of every better"),
        ([("no room: of 9 bytes", math.nan, 0)], "nothing compressed fits"),
    ],
)
def test_sentence_says_why_originals_are_kept(
    photos: Path, rows: list[tuple[str, float, int]], why: str
) -> None:
    made = planned(photos, epsilon=0.1)
    plain = replace(made.candidates[0], quantity=100)
    others = [
        Candidate("jpeg", 90, n, ratio_per_image=r, verdict=said, feasible=said == "passes")
        for said, r, n in rows
    ]
    changed = replace(made, images=1000, chosen=plain, candidates=[plain, *others])
    assert why in changed._why_not()


@pytest.mark.parametrize(
    ("criterion", "why"),
    [
        ("volume-ratio", r"span nearly the same volume .* \(R_q = 0\.9\d, between 0\.5 and 1\.5\)"),
        (
            "ratio-per-image",
            r"what a network sees by 0\.\d % .*; between 0\.95 and 1\.5 is allowed at this",
        ),
        ("discrepancy", r"stand in best for all 24 images \(discrepancy \S+; original files: 0\."),
    ],
)
def test_sentence_gives_the_reason_of_the_criterion(photos: Path, criterion: str, why: str) -> None:
    found = planned(photos, budget="8 originals", criterion=criterion)
    said = found.sentence()
    assert said.startswith("Store all 24 images as jpeg 75 instead of 8 originals: ")
    assert re.search(why, said)
    assert said.endswith(". A lower quality would gain nothing: all images fit.")
    epsilon, limits = {
        "volume-ratio": (0.5, (0.5, 1.5)),
        "ratio-per-image": (0.5, (0.95, 1.5)),
        "discrepancy": (None, None),
    }[criterion]
    report = found.to_json()
    assert [report[key] for key in ("criterion", "epsilon", "limits")] == [
        criterion,
        epsilon,
        limits,
    ]


def test_more_is_allowed_where_new_images_are_matched(photos: Path) -> None:
    """r of 10 is 1.2: it passes with --matched, and a plan without it says so."""
    plain = planned(photos, budget="8 originals")
    rows = [Candidate("original", None, 8, ratio_per_image=1.0, discrepancy=0.1)]
    rows += [
        Candidate("jpeg", quality, images, ratio_per_image=r, discrepancy=r)
        for quality, images, r in ((75, 12, 1.01), (25, 16, 1.02), (10, 20, 1.2))
    ]

    def said(**more: Any) -> str:
        settings = replace(plain.settings, **more)
        judged = judge(rows, settings)
        best = choose_quality(judged, settings.criterion)
        assert best is not None
        found = replace(plain, settings=settings, candidates=judged, chosen=judged[best])
        return found.sentence()

    assert said() == (
        "Store 16 images as jpeg 25 instead of 8 originals: compression changes what a network "
        "sees by 2.0 % per image (r = 1.020; between 0.95 and 1.5 is allowed at this quality). If "
        "you show new images as they will be stored (--matched), jpeg 10 will do: 20 images. AVIF "
        "may hold up to twice as many, but encodes slowly: try --codec jpeg avif."
    )
    assert said(matched=True) == (
        "Store 20 images as jpeg 10 instead of 8 originals: compression changes what a network "
        "sees by 20.0 % per image (r = 1.200; between 0.5 and 1.5 is allowed where new images are "
        "shown as stored). AVIF may hold up to twice as many, but encodes slowly: try --codec jpeg "
        "avif."
    )
    rows.append(Candidate("webp", 10, 1, ratio_per_image=1.0, discrepancy=1.0))
    assert "AVIF" not in said()
    assert said(matched=True, epsilon=0.02).startswith("Store 12 images as jpeg 75 instead")
    assert "--matched" not in said(criterion="discrepancy")


def test_quality_5_is_considered_where_new_images_are_matched(photos: Path) -> None:
    """Unless qualities are given."""

    def tried(**options: Any) -> list[int | None]:
        return [c.quality for c in planned(photos, budget="8 originals", **options).candidates]

    assert tried() == [None, 90, 75, 50, 25, 10]
    assert tried(matched=True) == [None, 90, 75, 50, 25, 10, 5]
    assert tried(matched=True, qualities=(60,)) == [None, 60]
    assert tried(codec=("avif",)) == [None, 75, 50, 35, 25, 15, 5]
    assert tried(codec=("avif",), qualities=(60,)) == [None, 60]


# Keywords


class Bitmap(Codec):
    """A user's own codec: Windows bitmaps with fewer colours."""

    name: ClassVar[str] = "bitmap"
    encoder = "Bitmap 1"

    def encode(self, image: Pixels, quality: int | None = None) -> bytes:
        file = io.BytesIO()
        Image.fromarray(image).quantize(1 + (quality or 0)).save(file, "BMP")
        return file.getvalue()


def backwards(features: ArrayLike, count: int, seed: Seed) -> Ranking:
    """A user's own selector: last images first."""
    return np.arange(len(np.asarray(features)))[::-1][:count]


def _tiny(images: torch.Tensor) -> torch.Tensor:
    assert images.shape[1:] == (3, 224, 224)
    return project(images[:, :, ::14, ::14])


def test_python_takes_plain_values_and_objects(photos: Path, tmp_path: Path) -> None:
    """One quality or several, names or objects, a callable for embedding, bytes or text."""
    found = plan(photos, "4/class", qualities=50, codec="webp", embed=_tiny)
    assert [str(c) for c in found.candidates] == ["original", "webp 50"]
    for _ in range(2):  # another object of the same class is fine
        found = plan(photos, 9_000, qualities=[60, 5], codec=[Bitmap(), Jpeg()], embed=_tiny)
    names = ["original", "bitmap 60", "bitmap 5", "jpeg 60", "jpeg 5"]
    assert [str(c) for c in found.candidates] == names
    made = pack(
        photos, 20_000, tmp_path / "a", qualities=50, select=backwards, codec=Bitmap(), embed=_tiny
    )
    assert made.memory.codec.name == "bitmap" and made.memory.notes["embed"] == "_tiny"
    assert made.memory.notes["select"] == "backwards"
    assert made.memory.sources(0)[:2] == ["class0/07.jpg", "class0/06.jpg"]
    del CODECS["bitmap"], SELECTORS["backwards"]
    with pytest.raises(UsageError, match=r"unknown option 'quality' .did you mean 'qualities'"):
        plan(photos, "4/class", quality=50)  # type: ignore[call-arg]


# Refusals


def test_bad_images_and_empty_classes_are_refused_or_listed(photos: Path) -> None:
    """With skip_bad, classes without images are left out."""
    (photos / "empty").mkdir()
    with pytest.raises(DataError, match="class 'empty' has no image"):
        planned(photos)
    found = planned(photos, skip_bad=True)
    assert found.classes == 3
    assert found.skipped == ["class 'empty': no readable image"]
    (photos / "empty").rmdir()
    (photos / "class1" / "01.jpg").write_text("I am text")
    with pytest.raises(ImageError, match=r"class1/01\.jpg: not an image"):
        planned(photos)


def test_budgets_too_small(photos: Path) -> None:
    """For every candidate: an error with the bytes needed. For some: their verdict is no room."""
    with pytest.raises(BudgetError, match=r"budget of 100 bytes .*: 3 classes need 4,\d+ bytes"):
        planned(photos, budget="100B")
    found = planned(
        photos, budget="4kB", qualities=(95, 10), criterion="volume-ratio", epsilon=100.0
    )
    assert [candidate.quantity > 0 for candidate in found.candidates] == [False, False, True]
    assert found.chosen.quality == 10  # a better quality without room is not a failure
    assert found.candidates[0].verdict.startswith("no room: the budget of 4,000 bytes")
    with pytest.raises(BudgetError, match=r"no room for originals, and no candidate that fits"):
        planned(photos, budget="4kB", qualities=(10,), criterion="volume-ratio", epsilon=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": ("jpg",)}, "unknown codec 'jpg' .did you mean 'jpeg'.*: choose from"),
        ({"qualities": (0,)}, "quality of codec jpeg must be a whole number from 1 to 100, got 0"),
        ({"scale": (0.0,)}, "scale must be from 0.01 to 1, got 0"),
        ({"qualities": ()}, "at least one codec, one quality and one scale"),
        ({"select": "best"}, "unknown selector 'best': choose from herding"),
        ({"budget": "much"}, "invalid budget 'much'"),
        ({"criterion": "volume"}, "criterion must be one of volume-ratio, ratio-per-image"),
        ({"volume": "rigde"}, "volume must be one of gram, ridge, got 'rigde'"),
        ({"pairing": "pared"}, "pairing must be one of paired, independent"),
        ({"accounting": "files"}, "accounting must be one of packed, file"),
        ({"device": "gpu"}, "device must be one of auto, cpu, cuda"),
        ({"criterion": "volume-ratio", "epsilon": -1.0}, "epsilon must be a number above 0"),
        ({"threads": 0}, "--threads must be 1 or more"),
        ({"seed": -1}, "--seed must be 0 or more"),
        ({"exact": True, "volume": "ridge"}, "--exact needs --volume gram"),
    ],
)
def test_invalid_settings_are_refused(photos: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(photos, **options)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (0.95, 1.5)),
        ({"criterion": "volume-ratio"}, (0.5, 1.5)),
        ({"matched": True}, (0.5, 1.5)),
        ({"epsilon": 0.25}, (0.75, 1.25)),
        ({"criterion": "discrepancy"}, None),
    ],
)
def test_a_gentle_jpeg_has_a_wider_limit(options: Any, limits: tuple[float, float] | None) -> None:
    """Of r, where it was not given; others have the usual ones."""
    settings = ChoiceSettings(**options)
    for codec in ("jpeg", "jpeg-progressive"):
        assert settings.limits_of(codec, 25) == settings.limits_of(codec, 90) == limits
    for other in (("jpeg", 24), ("webp", 90), ("jpeg@0.5", 90), ("original", None)):
        assert settings.limits_of(*other) == settings.limits
    assert ChoiceSettings().limits == (0.95, 1.03)


def test_the_limits_are_those_of_the_choice(photos: Path, tmp_path: Path) -> None:
    """In plan and pack alike, and in words."""
    options: PlanOptions = {"qualities": (90, 75), "threads": 1, "cache": False}
    made = plan(photos, "20kB", **options)
    packed = pack(photos, "20kB", tmp_path / "a.mrdc", **options)
    assert packed.plan is not None
    for report in (made.to_json(), packed.plan.to_json(), packed.memory.notes["search"]):
        assert tuple(report["limits"]) == (0.95, 1.5)
    assert "between 0.95 and 1.5 is allowed" in made.sentence()
    assert made.to_json()["embed"] == packed.memory.notes["embed"] == "lite0:64"
