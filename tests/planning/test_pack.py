"""`pack`: the memory file holds what `plan` promises."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mrdc._utils.errors import OutputError
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import Embedder
from tests.conftest import jpeg, project
from tests.planning.commands import packed, planned


def never(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError("embedded")


@pytest.mark.parametrize("pairing", ["paired", "independent"])
def test_pack_stores_what_plan_promises(photos: Path, tmp_path: Path, pairing: str) -> None:
    """Codec, quality, quantity, bytes; and the file is sound."""
    promised = planned(photos, pairing=pairing).to_json()["chosen"]
    found = packed(photos, tmp_path / "a.mrdc", pairing=pairing)
    memory = ReplayMemory.load(tmp_path / "a.mrdc")
    assert promised == {
        "codec": memory.codec.name,
        "quality": memory.quality,
        "quantity": len(memory),
        "bytes": memory.nbytes,
    }
    assert audit(found.path).problems == []
    assert memory.notes["search"]["chosen"] == promised
    assert memory.class_names == {0: "class0", 1: "class1", 2: "class2"}
    report = found.to_json()
    assert report["items"] == len(memory) and report["plan"]["chosen"] == promised


def test_plan_then_pack_embeds_once(photos: Path, tmp_path: Path) -> None:
    """Pack reads the features that plan has cached."""
    seen: list[int] = []

    def counting(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return project(images)

    embedder = Embedder(counting, 16, key="counting")
    planned(photos, embedder)
    before = len(seen)
    packed(photos, tmp_path / "a.mrdc", embedder)
    assert len(seen) == before > 0


def test_pack_writes_the_same_file_every_time(photos: Path, tmp_path: Path) -> None:
    """Whatever the threads."""
    for name, threads in (("a", 1), ("b", 3)):
        packed(photos, tmp_path / name, threads=threads)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_one_quality_is_not_searched_for(photos: Path, tmp_path: Path) -> None:
    """It is stored whatever R_q would say; a random choice of it embeds nothing at all."""
    found = packed(photos, tmp_path / "a", qualities=(7,))
    assert found.plan is None and found.memory.quality == 7
    drawn = [
        packed(
            photos,
            tmp_path / f"{number}",
            Embedder(never),
            qualities=(50,),
            select="random_choice",
            seed=seed,
        ).memory.sources(0)
        for number, seed in enumerate((0, 1, 1))
    ]
    assert drawn[0] != drawn[1] == drawn[2]


@pytest.mark.parametrize("budget", ["6kB", "9kB", "20000"])
def test_byte_budget_bounds_the_whole_file(photos: Path, tmp_path: Path, budget: str) -> None:
    """Index and metadata included."""
    found = packed(photos, tmp_path / "a", budget=budget, qualities=(30,))
    assert found.path.stat().st_size <= found.memory.budget_bytes
    assert len(found.memory.labels) == 3


def test_bad_files_do_not_count_as_originals(photos: Path, tmp_path: Path) -> None:
    """The budget is the same whether or not anything is embedded."""
    (photos / "class0" / "zz.jpg").write_bytes(b"junk" * 9000)
    options: dict[str, Any] = {"budget": "2/class", "skip_bad": True, "qualities": (50,)}
    herded = packed(photos, tmp_path / "a", **options)
    drawn = packed(photos, tmp_path / "b", None, select="random_choice", **options)
    assert herded.memory.budget_bytes == drawn.memory.budget_bytes
    assert len(drawn.seen.skipped) == 1


@pytest.mark.parametrize("budget", ["9kB", "20kB"])
def test_notes_on_bad_files_take_the_same_room_in_plan_and_pack(
    photos: Path, tmp_path: Path, budget: str
) -> None:
    """So that the quantities agree."""
    for number in range(5):
        (photos / "class0" / f"bad{number}.jpg").write_text("no")
    options: dict[str, Any] = {"budget": budget, "skip_bad": True, "epsilon": 50.0}
    found = packed(photos, tmp_path / "a", **options)
    assert len(found.memory) == planned(photos, **options).chosen.quantity
    assert found.path.stat().st_size <= found.memory.budget_bytes


def test_bad_files_are_skipped_and_listed(photos: Path, tmp_path: Path) -> None:
    """Text, nothing, and half a JPEG; with and without an embedding."""
    (photos / "class1" / "01.jpg").write_text("I am text")
    (photos / "class1" / "02.jpg").write_bytes(b"")
    (photos / "class2" / "03.jpg").write_bytes(jpeg(5)[:400])
    found = packed(photos, tmp_path / "a", skip_bad=True)
    assert len(found.seen.skipped) == 3
    assert ReplayMemory.load(tmp_path / "a").notes["skipped"] == found.seen.skipped
    assert found.plan is not None and found.plan.images == 21
    options: dict[str, Any] = {
        "qualities": (50,),
        "select": "random_choice",
        "skip_bad": True,
        "budget": "1MB",
    }
    assert len(packed(photos, tmp_path / "b", None, **options).memory) == 21


def test_pack_replaces_memory_files_only_and_with_force(photos: Path, tmp_path: Path) -> None:
    """Nothing is lost to a repeated command."""
    (tmp_path / "a").write_text("precious")
    for force in (False, True):
        with pytest.raises(OutputError, match="exists and is not a memory file; choose another"):
            packed(photos, tmp_path / "a", force=force)
    assert (tmp_path / "a").read_text() == "precious"
    (tmp_path / "a").unlink()
    packed(photos, tmp_path / "a")
    with pytest.raises(OutputError, match="exists; pass --force to replace it"):
        packed(photos, tmp_path / "a")
    packed(photos, tmp_path / "a", force=True)
    assert audit(tmp_path / "a").problems == []
    with pytest.raises(OutputError, match="there is no folder"):
        packed(photos, tmp_path / "no" / "a")
