"""`plan` and `pack` as functions."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import mrdc
from mrdc._utils.errors import (
    BudgetError,
    DataError,
    ImageError,
    OutputError,
    UsageError,
    VolumeError,
)
from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import Embedder, embed
from mrdc.planning.pack import pack
from mrdc.planning.plan import Plan, measure, plan
from mrdc.planning.scan import quiet, survey
from mrdc.planning.selection import herding
from mrdc.planning.settings import PackSettings, PlanSettings
from mrdc.planning.volume import log_volume
from tests.conftest import CHEAP, jpeg, make_photos, project


def settings(photos: Path, **options: object) -> PlanSettings:
    return PlanSettings(photos, **{"budget": "4/class", **options})  # type: ignore[arg-type]


def planned(photos: Path, **options: object) -> Plan:
    return plan(settings(photos, **options), embedder=CHEAP)


def packing(photos: Path, output: Path, **options: object) -> PackSettings:
    return PackSettings(photos, output=output, **{"budget": "4/class", **options})  # type: ignore[arg-type]


def test_plan_measures_every_candidate_and_the_originals(photos: Path) -> None:
    """Lower quality, more images; everything within the budget."""
    found = planned(photos, quality=(90, 20, 50))
    assert [(c.codec, c.quality) for c in found.candidates] == [
        ("original", None), ("jpeg", 90), ("jpeg", 50), ("jpeg", 20)
    ]  # fmt: skip
    quantities = [candidate.quantity for candidate in found.candidates]
    assert quantities == sorted(quantities)
    assert quantities[0] == 12
    assert all(0 < candidate.bytes <= found.budget_bytes for candidate in found.candidates)
    assert found.candidates[0].volume_ratio == 1.0
    assert found.chosen.verdict == "chosen"
    assert found.chosen in found.candidates


def test_json_has_the_fields_of_the_design(photos: Path) -> None:
    """Names are fixed."""
    report = planned(photos).as_json()
    assert {"budget", "classes", "candidates", "chosen", "rule", "epsilon", "seconds"} <= set(
        report
    )
    assert set(report["chosen"]) == {"codec", "quality", "quantity", "bytes"}
    fields = {
        "codec",
        "quality",
        "quantity",
        "bytes",
        "volume_ratio",
        "log_volume_ratio",
        "feasible",
    }
    assert fields | {"excluded_classes"} <= set(report["candidates"][0])
    assert report["candidates"][0]["quality"] is None
    assert report["budget"]["originals"] == pytest.approx(12, abs=0.01)


def test_ratio_by_hand(photos: Path) -> None:
    """R_q of the plan equals the volumes of features computed here."""
    found = planned(photos, quality=(30,), budget="1MB")
    memory = ReplayMemory("1MB", "jpeg", 30)
    ids = [[f"class{label}/{n:02d}.jpg" for n in range(8)] for label in range(3)]
    logs = []
    for label in range(3):
        sources = [jpeg(100 * label + n) for n in range(8)]
        memory.add({label: sources})
        start = 8 * label
        rows = {
            "before": [(lambda s=s: s) for s in sources],
            "after": [(lambda i=i: memory.encoded(i)) for i in range(start, start + 8)],
        }
        volumes = {}
        for name, loads in rows.items():
            photos_ = [Photo(i, load) for i, load in zip(ids[label], loads, strict=True)]
            volumes[name] = log_volume(embed(photos_, CHEAP)[0])
        logs.append(volumes["after"] - volumes["before"])
    assert found.candidates[1].log_volume_ratio == pytest.approx(np.mean(logs), abs=1e-4)


def test_threads_do_not_change_the_plan(photos: Path) -> None:
    """Nor does a second run from the cache."""
    embedder = replace(CHEAP, key="cheap")
    reports = [
        plan(settings(photos, threads=threads, cache=cache), embedder=embedder).as_json()
        for threads, cache in ((1, False), (4, False), (2, True), (2, True))
    ]
    for report in reports:
        report.pop("seconds")
    assert all(report == reports[0] for report in reports)


def test_plan_then_pack_embeds_once(photos: Path, tmp_path: Path) -> None:
    """The features of plan serve pack."""
    seen = []

    def counting(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return project(images)

    embedder = Embedder(counting, 16, key="counting")
    plan(settings(photos), embedder=embedder)
    before = len(seen)
    pack(packing(photos, tmp_path / "a.mrdc"), embedder=embedder)
    assert before > 0
    assert len(seen) == before


@pytest.mark.parametrize("pairing", ["paired", "independent"])
def test_pack_stores_what_plan_promises(photos: Path, tmp_path: Path, pairing: str) -> None:
    """Codec, quality, quantity, bytes; and the file is sound."""
    promised = planned(photos, pairing=pairing).as_json()["chosen"]
    packed = pack(packing(photos, tmp_path / "a.mrdc", pairing=pairing), embedder=CHEAP)
    memory = ReplayMemory.load(tmp_path / "a.mrdc")
    got = {
        "codec": memory.codec.name,
        "quality": memory.quality,
        "quantity": len(memory),
        "bytes": memory.nbytes,
    }
    assert got == promised
    assert audit(packed.path).problems == []
    assert memory.notes["search"]["chosen"] == promised
    assert memory.class_names == {0: "class0", 1: "class1", 2: "class2"}


def test_pack_writes_the_same_file_every_time(photos: Path, tmp_path: Path) -> None:
    """Whatever the threads."""
    for name, threads in (("a", 1), ("b", 3)):
        pack(packing(photos, tmp_path / name, threads=threads), embedder=CHEAP)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_one_quality_is_no_search(photos: Path, tmp_path: Path) -> None:
    """`pack --quality 50` stores quality 50, whatever R_q would say."""
    packed = pack(packing(photos, tmp_path / "a", quality=(7,)), embedder=CHEAP)
    assert packed.plan is None
    assert packed.memory.quality == 7


def test_random_choice_of_one_quality_needs_no_network(photos: Path, tmp_path: Path) -> None:
    """Nothing is embedded at all."""

    def never(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("embedded")

    options = {"quality": (50,), "select": "random_choice"}
    pack(packing(photos, tmp_path / "a", **options), embedder=Embedder(never))
    other = pack(packing(photos, tmp_path / "b", seed=1, **options), embedder=Embedder(never))
    again = pack(packing(photos, tmp_path / "c", seed=1, **options), embedder=Embedder(never))
    assert ReplayMemory.load(tmp_path / "a").sources(0) != other.memory.sources(0)
    assert again.memory.sources(0) == other.memory.sources(0)


@pytest.mark.parametrize("budget", ["6kB", "9kB", "20000"])
def test_a_budget_in_bytes_bounds_the_whole_file(photos: Path, tmp_path: Path, budget: str) -> None:
    """Index and metadata included."""
    packed = pack(packing(photos, tmp_path / "a", budget=budget, quality=(30,)), embedder=CHEAP)
    assert packed.path.stat().st_size <= packed.memory.budget_bytes
    assert len(packed.memory.labels) == 3


def test_all_images_fit_keeps_the_originals(photos: Path) -> None:
    """No reason to compress."""
    found = planned(photos, budget="8 originals")
    assert found.chosen.codec != "original"
    found = planned(photos, budget="1MB")
    assert found.chosen.codec == "original"
    assert found.sentence() == "Keep all 24 images as the original files: they fit as they are."


def test_bad_files_do_not_count_as_originals(photos: Path, tmp_path: Path) -> None:
    """The budget is the same whether or not anything is embedded."""
    (photos / "class0" / "zz.jpg").write_bytes(b"junk" * 9000)
    options = {"budget": "2/class", "skip_bad": True, "quality": (50,)}
    herded = pack(packing(photos, tmp_path / "a", **options), embedder=CHEAP)
    drawn = pack(packing(photos, tmp_path / "b", select="random_choice", **options))
    assert herded.memory.budget_bytes == drawn.memory.budget_bytes
    assert len(drawn.seen.skipped) == 1


@pytest.mark.parametrize("budget", ["9kB", "20kB"])
def test_plan_and_pack_agree_on_byte_budgets_with_bad_files(
    photos: Path, tmp_path: Path, budget: str
) -> None:
    """What the notes of skipped files take is the same for both."""
    for number in range(5):
        (photos / "class0" / f"bad{number}.jpg").write_text("no")
    options = {"budget": budget, "skip_bad": True, "epsilon": 50.0}
    promised = planned(photos, **options).chosen
    packed = pack(packing(photos, tmp_path / "a", **options), embedder=CHEAP)
    assert len(packed.memory) == promised.quantity
    assert packed.path.stat().st_size <= packed.memory.budget_bytes


def test_one_image_a_class_does_not_hide_lower_qualities(tmp_path: Path) -> None:
    """R_q of single images is unknown, which is no failure."""
    photos = make_photos(tmp_path / "p", classes=3, images=12)
    found = planned(photos, budget="1/class")
    assert found.candidates[0].per_class[2] == 1
    assert found.chosen.quantity > found.candidates[0].quantity


def test_kept_sources_are_exactly_faithful(photos: Path) -> None:
    """Nothing changed, so R_q is 1 even where it could not be measured."""
    found = planned(photos, quality=(100,), budget="2/class")
    assert found.candidates[1].kept_sources == found.candidates[1].quantity
    assert found.candidates[1].volume_ratio == 1.0
    exact = planned(photos, quality=(100,), budget="2/class", exact=True).candidates[1].exact
    assert exact is not None and exact["l2"] == pytest.approx(0, abs=1e-6)


def test_no_room_for_a_better_quality_is_no_failure(photos: Path) -> None:
    """A quality that cannot be tried does not rule out lower ones."""
    found = planned(photos, budget="6kB", quality=(95, 10))
    assert found.chosen.quality == 10


def test_nothing_passes_keeps_the_originals_and_says_so(photos: Path) -> None:
    """With an epsilon that nothing meets."""
    found = planned(photos, epsilon=1e-9)
    assert found.chosen.codec == "original"
    assert "nothing compressed passes" in found.sentence()


def test_exact_quantities_hold_together(photos: Path) -> None:
    """R^2 Z = P(compressed) / P(original), class by class and so in the mean of logs."""
    found = planned(photos, exact=True)
    for candidate in found.candidates[1:]:
        assert candidate.exact is not None
        e = candidate.exact
        log_rz = 2 * candidate.log_volume_ratio + e["log_z"]
        assert log_rz == pytest.approx(e["log_p_compressed"] - e["log_p_original"], abs=1e-6)
        assert e["l2"] == pytest.approx(abs(math.exp(log_rz) - 1))


def test_independent_pairing_ranks_compressed_images(photos: Path) -> None:
    """The candidates differ, the originals do not."""
    paired, independent = (planned(photos, pairing=p) for p in ("paired", "independent"))
    assert independent.candidates[0] == paired.candidates[0]
    assert independent.candidates[-2].log_volume_ratio != paired.candidates[-2].log_volume_ratio


@pytest.mark.parametrize("pairing", ["paired", "independent"])
def test_either_pairing_against_a_slow_reference(
    photos: Path, tmp_path: Path, pairing: str
) -> None:
    """Compressed images are ranked by originals or by themselves; originals always by originals."""
    chosen = settings(photos, pairing=pairing, budget="0.5/class")
    with survey(chosen, quiet, CHEAP, measuring=True) as seen:
        found, order = measure(seen, CODECS["jpeg"], 20, seen.rank(seen.features), tmp_path)
        memory = seen.build(CODECS["jpeg"], 20, order, tmp_path)
    logs, apart = [], False
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
        assert order[label].tolist() == ranked.tolist()
        held = len(memory.sources(label))
        apart |= set(first[:held]) != set(second[:held])
        logs.append(log_volume(after[ranked[:held]]) - log_volume(before[first[:held]]))
    assert apart  # else there would be nothing to tell
    assert found.log_volume_ratio == pytest.approx(np.mean(logs), abs=1e-4)


@pytest.mark.parametrize("pairing", ["paired", "independent"])
@pytest.mark.parametrize("select", ["herding", "nearest_mean"])
def test_duplicates_do_not_empty_the_volume(photos: Path, select: str, pairing: str) -> None:
    """A class with a copied file is measured, wherever it ranks, and the copy is counted."""
    (photos / "class0" / "copy.jpg").write_bytes(jpeg(0))
    found = planned(photos, budget="1MB", select=select, pairing=pairing)
    assert all(c.duplicates == 1 and not c.excluded for c in found.candidates)
    assert found.chosen.quantity == 24


def test_near_duplicates_are_reported_by_class(photos: Path) -> None:
    """Another file of the same pixels: a class without volume."""
    data = jpeg(0)
    (photos / "class0" / "same.jpg").write_bytes(data[:2] + b"\xff\xfe\x00\x04hi" + data[2:])
    found = planned(photos, budget="1MB", quality=(90,), codec=("webp",))
    assert list(found.candidates[1].excluded) in ([], ["class0"])
    found = planned(photos, budget="1MB", quality=(99,))
    assert set(found.candidates[1].excluded) <= {"class0"}


def test_more_images_than_dimensions(tmp_path: Path) -> None:
    """An error that names the fix, and the fix works."""
    photos = make_photos(tmp_path / "many", classes=1, images=60)
    with pytest.raises(VolumeError, match=r"60 rows in 48 dimensions.*ridge"):
        planned(photos, budget="1MB", quality=(50,))
    assert planned(photos, budget="1MB", quality=(50,), volume="ridge").candidates[1].quantity == 60


# Bad input


def test_bad_files_stop_the_plan_or_are_skipped_and_listed(photos: Path, tmp_path: Path) -> None:
    """Text, nothing, and half a JPEG."""
    (photos / "class1" / "01.jpg").write_text("I am text")
    (photos / "class1" / "02.jpg").write_bytes(b"")
    (photos / "class2" / "03.jpg").write_bytes(jpeg(5)[:400])
    with pytest.raises(ImageError, match=r"class1/01\.jpg: not an image"):
        planned(photos)
    packed = pack(packing(photos, tmp_path / "a", skip_bad=True), embedder=CHEAP)
    skipped = packed.seen.skipped
    assert len(skipped) == 3
    assert ReplayMemory.load(tmp_path / "a").notes["skipped"] == skipped
    assert packed.plan is not None
    assert packed.plan.images == 21
    options = {"quality": (50,), "select": "random_choice", "skip_bad": True, "budget": "1MB"}
    assert len(pack(packing(photos, tmp_path / "b", **options)).memory) == 21


def test_classes_with_one_image_or_none(photos: Path) -> None:
    """Refused by name; with skip_bad the one is kept but not measured, the empty one is listed."""
    (photos / "lonely").mkdir()
    (photos / "lonely" / "one.jpg").write_bytes(jpeg(500))
    with pytest.raises(DataError, match=r"class 'lonely' has one image \(lonely/one\.jpg\)"):
        planned(photos)
    (photos / "empty").mkdir()
    with pytest.raises(DataError, match="class 'empty' has no image"):
        planned(photos)
    found = planned(photos, skip_bad=True, quality=(50,))
    assert found.classes == 4
    assert found.skipped == ["class 'empty': no readable image"]
    assert found.candidates[1].excluded == {"lonely": "one image"}


def test_budgets_too_small(photos: Path) -> None:
    """For anything: an error with the bytes needed. For some: their row says no room."""
    with pytest.raises(BudgetError, match=r"class 'class\d' .*: 3 classes need"):
        planned(photos, budget="100B")
    found = planned(photos, budget="4kB", quality=(95, 10), epsilon=100.0)
    assert [candidate.quantity > 0 for candidate in found.candidates] == [False, False, True]
    assert found.candidates[0].verdict.startswith("no room: the budget of 4,000 bytes")
    with pytest.raises(BudgetError, match="no room for originals, and what fits does not pass"):
        planned(photos, budget="4kB", quality=(10,), epsilon=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": ("jpg",)}, "unknown codec 'jpg': choose from"),
        ({"quality": (0,)}, "quality of codec jpeg must be a whole number from 1 to 100, got 0"),
        ({"quality": ()}, "at least one"),
        ({"select": "best"}, "unknown selector 'best': choose from herding"),
        ({"budget": "much"}, "budget 'much' is not one"),
        ({"epsilon": -1.0}, "epsilon must be a number above 0"),
        ({"threads": 0}, "--threads must be 1 or more"),
    ],
)
def test_wrong_settings(photos: Path, options: dict[str, object], message: str) -> None:
    """Refused with what is allowed."""
    with pytest.raises(UsageError, match=message):
        planned(photos, **options)


def test_pack_replaces_only_when_told(photos: Path, tmp_path: Path) -> None:
    """An existing file is not lost to a repeated command."""
    (tmp_path / "a").write_text("precious")
    for force in (False, True):
        with pytest.raises(OutputError, match="is no memory file; name another"):
            pack(packing(photos, tmp_path / "a", force=force), embedder=CHEAP)
    assert (tmp_path / "a").read_text() == "precious"
    (tmp_path / "a").unlink()
    pack(packing(photos, tmp_path / "a"), embedder=CHEAP)
    with pytest.raises(OutputError, match="exists already; pass --force"):
        pack(packing(photos, tmp_path / "a"), embedder=CHEAP)
    pack(packing(photos, tmp_path / "a", force=True), embedder=CHEAP)
    assert audit(tmp_path / "a").problems == []
    with pytest.raises(OutputError, match="there is no folder"):
        pack(packing(photos, tmp_path / "no" / "a"), embedder=CHEAP)


def test_python_mirrors_the_commands(photos: Path, tmp_path: Path) -> None:
    """Plain values, a callable to embed with, and the memory by its short name."""
    found = mrdc.plan(photos, "4/class", quality=50, codec="webp", embed=_tiny)
    assert [str(c) for c in found.candidates] == ["original", "webp 50"]
    packed = mrdc.pack(photos, 20_000, tmp_path / "a", quality=50, embed=_tiny)
    assert isinstance(packed.memory, mrdc.ReplayMemory)
    assert packed.memory.notes["embed"] == "_tiny"


def _tiny(images: torch.Tensor) -> torch.Tensor:
    assert images.shape[1:] == (3, 224, 224)
    return project(images[:, :, ::14, ::14])
