"""`pack`: the memory file holds what `plan` promises."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mrdc import pack
from mrdc._utils.errors import OutputError
from mrdc.memory.audit import audit
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embedder import Embedder
from tests.conftest import jpeg, project
from tests.planning.commands import packed, planned


def never(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError("embedded")


@pytest.mark.parametrize("pairing", ["paired", "independent"])
def test_pack_stores_what_plan_promises(photos: Path, tmp_path: Path, pairing: str) -> None:
    """Codec, quality, quantity, bytes; the file is sound, and the same with more threads."""
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
    packed(photos, tmp_path / "b.mrdc", pairing=pairing, threads=3)
    assert (tmp_path / "b.mrdc").read_bytes() == found.path.read_bytes()


def test_plan_then_pack_embeds_once(photos: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def counting(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return project(images)

    embedder = Embedder(counting, 16, key="counting")
    planned(photos, embedder)
    before = len(seen)
    packed(photos, tmp_path / "a.mrdc", embedder)
    assert len(seen) == before > 0


def test_small_images_are_embedded_at_their_size(photos: Path, tmp_path: Path) -> None:
    """The plan and the memory file say at which."""
    made = pack(photos, "4/class", tmp_path / "a.mrdc", qualities=(50, 10), cache=False)
    assert made.memory.notes["embed"] == "lite0:64"
    assert made.plan is not None and made.plan.settings.embed == "lite0:64"


def test_one_quality_is_not_searched_for(photos: Path, tmp_path: Path) -> None:
    """It is stored whatever R_q would say; a random choice of it embeds nothing at all."""
    found = packed(photos, tmp_path / "a", qualities=(7,))
    assert found.plan is None and found.memory.quality == 7
    options: dict[str, Any] = {"qualities": (50,), "select": "random_choice"}
    drawn = [
        packed(photos, tmp_path / f"{n}", Embedder(never), seed=seed, **options).memory.sources(0)
        for n, seed in enumerate((0, 1, 1))
    ]
    assert drawn[0] != drawn[1] == drawn[2]


@pytest.mark.parametrize("budget", ["6kB", "9kB", "20000"])
def test_byte_budget_bounds_the_whole_file(photos: Path, tmp_path: Path, budget: str) -> None:
    """Including index and metadata."""
    found = packed(photos, tmp_path / "a", budget=budget, qualities=(30,))
    assert found.path.stat().st_size <= found.memory.budget_bytes
    assert len(found.memory.labels) == 3


def test_bad_files_are_skipped_and_listed(photos: Path, tmp_path: Path) -> None:
    """Text, an empty file, and half a JPEG; with and without an embedding, the same budget."""
    (photos / "class1" / "01.jpg").write_text("I am text")
    (photos / "class1" / "02.jpg").write_bytes(b"")
    (photos / "class2" / "03.jpg").write_bytes(jpeg(5)[:400])
    found = packed(photos, tmp_path / "a", skip_bad=True)
    assert len(found.seen.skipped) == 3
    assert ReplayMemory.load(tmp_path / "a").notes["skipped"] == found.seen.skipped
    assert found.plan is not None and found.plan.images == 21
    options: dict[str, Any] = {"qualities": (50,), "skip_bad": True, "select": "random_choice"}
    assert len(packed(photos, tmp_path / "b", None, budget="1MB", **options).memory) == 21
    drawn = packed(photos, tmp_path / "c", None, **options)
    assert drawn.memory.budget_bytes == found.memory.budget_bytes
    options = {"budget": "9kB", "skip_bad": True, "criterion": "volume-ratio", "epsilon": 50.0}
    small = packed(photos, tmp_path / "d", **options)  # notes take the same room in both commands
    assert len(small.memory) == planned(photos, **options).chosen.quantity
    assert small.path.stat().st_size <= small.memory.budget_bytes


def test_pack_replaces_memory_files_only_and_with_force(photos: Path, tmp_path: Path) -> None:
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


def test_a_path_that_another_process_takes_meanwhile_is_not_replaced(
    photos: Path, tmp_path: Path
) -> None:
    """Otherwise both would report that they have written it."""
    output = tmp_path / "m.mrdc"

    def meanwhile(images: torch.Tensor) -> torch.Tensor:
        if not output.exists():
            memory = ReplayMemory("1MB", "jpeg", 50)
            memory.add({0: [jpeg(0)]})
            memory.save(output)
        return project(images)

    with pytest.raises(OutputError, match="exists; pass --force"):
        packed(photos, output, Embedder(meanwhile, size=16))
    assert len(ReplayMemory.load(output)) == 1
