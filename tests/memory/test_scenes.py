"""Scenes packed into a memory with their boxes, and exported again."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mrdc._utils.errors import DataError
from mrdc.data.coco import read_scenes
from mrdc.data.photo import Photo
from mrdc.memory.audit import audit
from mrdc.memory.export import export
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.stored import open_memory
from mrdc.planning.pack import Packed, run_pack
from mrdc.planning.plan import run_plan
from mrdc.planning.settings import PackSettings, PlanSettings
from tests.conftest import CHEAP, jpeg
from tests.data.test_coco import HEIGHT, WIDTH, box, described, make_images, turned_jpeg, write
from tests.memory.test_boxes import CLASSES, boxes, photo


def packing(photos: Path, output: Path, **options: Any) -> Packed:
    chosen = {"budget": "2 originals", "select": "random_choice"} | options
    return run_pack(PackSettings(photos, output=output, **chosen), embedder=CHEAP)


@pytest.fixture
def road(tmp_path: Path) -> Path:
    """Twenty scenes."""
    make_images(tmp_path / "road" / "images", 20)
    entries = [box(10 + n, [n, n / 2, 4, 5 + n / 4], (3, 7)[n % 2], 0, n) for n in range(19)]
    entries += [box(10, [0, 0, 9, 9], crowd=1), box(10, [0, 0, 0.5, 9])]
    write(tmp_path / "road" / "train.json", described(20, entries))
    return tmp_path / "road"


def test_plan_and_pack_draw_scenes_at_random(road: Path, tmp_path: Path) -> None:
    """Pack stores what plan promises, with its boxes; another selector can be chosen."""
    found = run_plan(PlanSettings(road, "8 originals", qualities=(50, 20)), embedder=CHEAP)
    assert found.to_json()["select"] == "random_choice"
    assert found.boxes == {"boxes": 19, "classes": 2, "dropped": 1, "crowds": 1}
    options = {"budget": "8 originals", "qualities": (50, 20), "select": "auto"}
    packed = packing(road, tmp_path / "a", **options)
    assert len(packed.memory) == found.chosen.quantity
    memory = ReplayMemory.load(tmp_path / "a")
    assert memory.notes["select"] == "random_choice"
    assert memory.classes == ["images"]
    assert packed.boxes is not None
    assert packed.boxes["held"] == sum(map(len, memory.boxes.values())) > 0
    other = packing(road, tmp_path / "b", seed=1, **options)
    assert other.memory.sources(0) != memory.sources(0)
    herded = packing(road, tmp_path / "c", select="herding", qualities=(50,))
    assert herded.memory.notes["select"] == "herding"


@pytest.mark.parametrize("budget", ["5kB", "9kB", "14kB"])
def test_plan_and_pack_agree_on_bytes(budget: str, road: Path, tmp_path: Path) -> None:
    """Including boxes."""
    options: dict[str, Any] = {"budget": budget, "qualities": (50, 20), "epsilon": 50.0}
    options["criterion"] = "volume-ratio"
    promised = run_plan(PlanSettings(road, **options), embedder=CHEAP).chosen
    packed = packing(road, tmp_path / "a", **options)
    assert len(packed.memory) == promised.quantity
    assert packed.path.stat().st_size <= packed.memory.budget_bytes
    assert audit(packed.path).problems == []


@pytest.mark.parametrize("qualities", [(50,), (50, 20)])
def test_bad_and_missing_images_are_skipped_with_their_boxes(
    qualities: tuple[int, ...], road: Path, tmp_path: Path
) -> None:
    """Missing images are refused by default; skipped ones are listed and not counted."""
    (road / "images" / "3.jpg").unlink()
    with pytest.raises(DataError, match=r"image 13 \(3\.jpg\) is missing"):
        packing(road, tmp_path / "a", qualities=qualities)
    packed = packing(road, tmp_path / "a", qualities=qualities, budget="2/class", skip_bad=True)
    assert packed.seen.skipped == ["3.jpg: cannot be read (No such file or directory)"]
    assert len(packed.seen.images) == 19
    mean = np.mean([file.stat().st_size for file in (road / "images").iterdir()])
    assert packed.memory.budget_bytes == int(2 * mean)
    (road / "images" / "4.jpg").write_bytes(jpeg(4)[:400])
    packed = packing(road, tmp_path / "b", qualities=qualities, budget="1MB", skip_bad=True)
    assert len(packed.memory) == 18
    assert len(packed.seen.skipped) == 2
    assert packed.boxes == {"boxes": 17, "classes": 2, "dropped": 1, "crowds": 1, "held": 17}


@st.composite
def annotated(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Annotations of up to six images, with crowds and tiny boxes."""
    side = st.floats(0, 1, width=32)
    entries = []
    for number in range(draw(st.integers(0, 12))):
        left, top = draw(side) * WIDTH, draw(side) * HEIGHT
        bbox = [left, top, draw(side) * (WIDTH - left), draw(side) * (HEIGHT - top)]
        owner, category = draw(st.integers(10, 15)), draw(st.sampled_from([3, 7]))
        entries.append(box(owner, bbox, category, draw(st.integers(0, 1)), number))
    return entries


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(entries=annotated(), codec=st.sampled_from(["jpeg", "original"]), seed=st.integers(0, 9))
def test_scenes_survive_memory_file_and_export(
    entries: list[dict[str, Any]], codec: str, seed: int
) -> None:
    """Boxes of the stored images stay the same to the bit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder / "images", 6)
        write(folder / "train.json", described(6, entries))
        options = {"codec": (codec,), "qualities": (50,), "accounting": "file"}
        packed = packing(folder, folder / "a.mrdc", seed=seed, **options)
        held = packed.memory.sources(0)
        assert 0 < len(held) < 6
        assert audit(folder / "a.mrdc").problems == []
        export(open_memory(folder / "a.mrdc"), folder / "out", "coco")
        before = read_scenes(folder / "train.json").by_id()
        loaded = ReplayMemory.load(folder / "a.mrdc").boxes
        after = read_scenes(folder / "out" / "annotations.json")
        assert after.dropped == 0
        assert after.classes == CLASSES
        assert [photo.id for photo in after.photos] == held
        for source, rows in zip(held, after.boxes, strict=True):
            np.testing.assert_array_equal(rows, before[source])
            np.testing.assert_array_equal(rows, loaded[source])


@pytest.mark.parametrize("orientation", [6, 8])
@pytest.mark.parametrize("codec", ["jpeg", "original"])
def test_a_rotated_image_keeps_its_boxes(codec: str, orientation: int, tmp_path: Path) -> None:
    """The box frames the white patch of the upright image, before and after."""
    upright = np.zeros((WIDTH, HEIGHT, 3), np.uint8)  # 24 wide, 32 high
    upright[8:16, 16:24] = 255
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "images").mkdir()
    turned = Image.fromarray(upright).transpose(back)
    turned.save(tmp_path / "images" / "0.jpg", quality=100, exif=exif)
    data = described(1, [box(10, [16, 8, 8, 8])])
    data["images"][0] |= {"width": HEIGHT, "height": WIDTH}
    write(tmp_path / "train.json", data)
    packing(tmp_path, tmp_path / "a.mrdc", codec=(codec,), qualities=(60,), budget="1MB")
    export(open_memory(tmp_path / "a.mrdc"), tmp_path / "out", "coco")
    scenes = read_scenes(tmp_path / "out" / "annotations.json")
    assert scenes.sides == ((HEIGHT, WIDTH),)
    left, top, right, bottom, _ = scenes.boxes[0][0].astype(int)
    white = scenes.photos[0].pixels().mean(axis=2) > 128
    assert white[top:bottom, left:right].all()
    assert white.sum() == 64


def test_boxes_of_the_image_before_rotation_are_refused(tmp_path: Path) -> None:
    """Packing would rotate the pixels, but not the boxes."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.jpg").write_bytes(turned_jpeg())
    write(tmp_path / "train.json", described(1, []))
    with pytest.raises(DataError, match=r"0\.jpg: .*its EXIF orientation"):
        packing(tmp_path, tmp_path / "a.mrdc", qualities=(50,))


def test_other_programs_read_a_coco_export(road: Path, tmp_path: Path) -> None:
    """torchvision and pycocotools, and pack itself."""
    pytest.importorskip("pycocotools")
    from torchvision.datasets import CocoDetection

    memory = packing(road, tmp_path / "a", qualities=(50,), budget="1MB").memory
    out = tmp_path / "out"
    export(open_memory(tmp_path / "a"), out)
    seen = CocoDetection(str(out / "images"), str(out / "annotations.json"))
    assert len(seen) == 20
    image, targets = seen[memory.sources(0).index("5.jpg")]
    assert image.size == (WIDTH, HEIGHT)
    assert targets[0]["bbox"] == [5, 2.5, 4, 6.25]
    assert (targets[0]["area"], targets[0]["iscrowd"]) == (25, 0)
    assert seen.coco.cats[targets[0]["category_id"]]["name"] == "dog"
    assert len(packing(out, tmp_path / "b", qualities=(50,), budget="1MB").memory) == 20


def test_exported_names_are_safe_and_distinct(tmp_path: Path) -> None:
    """Nothing leaves the folder, whatever the image's name; the extension fits the bytes."""
    names = ["../../x.png", "a.jpg", "a.png", "A.jpg", "b/c.jpg", "b_c.jpg", "/etc/x.jpg", ".."]
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.box_classes = CLASSES
    memory.boxes = {name: boxes((0, 0, 2 + n, 3, 1)) for n, name in enumerate(names)}
    memory.add({0: [Photo(name, photo(n).load) for n, name in enumerate(names)]})
    memory.save(tmp_path / "m")
    out = tmp_path / "safe" / "deep" / "out"
    out.parent.mkdir(parents=True)
    export(open_memory(tmp_path / "m"), out, "coco")
    files = [path for path in (tmp_path / "safe").rglob("*") if path.is_file()]
    assert len(files) == 9
    assert all(path.parent in (out, out / "images") for path in files)
    assert len({path.name.casefold() for path in files}) == 9
    scenes = read_scenes(out / "annotations.json")
    assert [photo.id for photo in scenes.photos][1] == "a.jpg"
    assert [rows[0, 2] for rows in scenes.boxes] == list(range(2, 10))
    categories = json.loads((out / "annotations.json").read_text())["categories"]
    assert categories == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
