"""Boxes in a memory: kept with their images, in one file under one budget."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open

from mrdc._utils.errors import BudgetError, DataError, MemoryFileError, UsageError, VolumeError
from mrdc.codec.image import decode
from mrdc.data.coco import Boxes, read_scenes
from mrdc.data.photo import Photo
from mrdc.memory.audit import audit
from mrdc.memory.export import export
from mrdc.memory.file import MemoryFile, write_memory
from mrdc.memory.replay import ReplayMemory
from mrdc.planning.pack import Packed, pack
from mrdc.planning.plan import plan
from mrdc.planning.settings import PackSettings, PlanSettings
from tests.cli.test_cli import refused, run, said
from tests.conftest import CHEAP, jpeg
from tests.data.test_coco import HEIGHT, WIDTH, box, described, make_images, turned_jpeg, write

CLASSES = ("cat", "dog")


def boxes(*rows: tuple[float, ...]) -> Boxes:
    return np.array(rows, np.float32).reshape(-1, 5)


def photo(number: int) -> Photo:
    return Photo(f"{number}.jpg", lambda: jpeg(number))


def with_boxes(
    budget: int | str = "1MB", images: int = 6, whole_file: bool = False, each: int = 1
) -> ReplayMemory:
    """A memory of one class; its image n has n boxes, or `each` times as many."""
    memory = ReplayMemory(budget, "jpeg", 50, whole_file=whole_file)
    memory.boxes = {
        f"{n}.jpg": boxes(*[(1, 2, 3 + n, 4 + k, k % 2) for k in range(n * each)])
        for n in range(images)
    }
    memory.box_classes = CLASSES
    memory.add({0: [photo(n) for n in range(images)]})
    return memory


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with_boxes().save(tmp_path / "a.mrdc")
    return tmp_path / "a.mrdc"


# In the file


def test_boxes_come_back(file: Path) -> None:
    """By source, also where an image has none; they can be written to."""
    loaded, before = ReplayMemory.load(file), with_boxes()
    assert loaded.box_classes == CLASSES
    assert loaded.boxes.keys() == before.boxes.keys()
    for name, rows in before.boxes.items():
        np.testing.assert_array_equal(loaded.boxes[name], rows)
        assert loaded.boxes[name].flags.writeable
    loaded.save(file.with_name("again"))
    assert file.with_name("again").read_bytes() == file.read_bytes()


def test_any_safetensors_reader_finds_them(file: Path) -> None:
    """Two arrays more."""
    with safe_open(file, framework="numpy") as found:
        assert found.get_tensor("box_counts").tolist() == [0, 1, 2, 3, 4, 5]
        assert found.get_tensor("boxes").shape == (15, 5)
        assert found.get_tensor("boxes")[1].tolist() == [1, 2, 5, 4, 0]


def test_files_without_boxes_have_no_arrays_for_them(tmp_path: Path) -> None:
    """They are what they were."""
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.add({0: [jpeg(0)]})
    memory.save(tmp_path / "a")
    with safe_open(tmp_path / "a", framework="numpy") as found:
        assert not {"box_counts", "boxes"} & set(found.keys())
    assert "box_classes" not in MemoryFile(tmp_path / "a").meta
    loaded = ReplayMemory.load(tmp_path / "a")
    assert (loaded.boxes, loaded.box_classes) == ({}, ())


def test_boxes_of_images_that_are_not_held_are_not_saved(file: Path) -> None:
    """A smaller budget drops them with their images."""
    memory = ReplayMemory.load(file)
    memory.rebudget(memory.nbytes - 1)
    memory.save(file)
    assert ReplayMemory.load(file).boxes.keys() == {f"{n}.jpg" for n in range(5)}


def test_no_flipped_byte_of_boxes_goes_unseen(file: Path) -> None:
    """They are under the checksum of the index."""
    data = file.read_bytes()
    rows = MemoryFile(file).arrays["boxes"].tobytes()
    start = data.index(rows) - 4 * 6  # the counts stand before them
    for position in range(start, start + 4 * 6 + len(rows), 7):
        broken = bytearray(data)
        broken[position] ^= 1
        file.write_bytes(broken)
        assert any("checksum" in problem for problem in audit(file).problems), position


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ({"box_counts": [0, 1, 2, 3, 4, 4]}, "box counts of 6 images do not add up to the 15"),
        ({"box_counts": [0, 1, 2, 3, 10, -1]}, "box counts of 6 images do not add up"),
        ({"boxes": (2, 0, np.nan)}, "boxes of 2.jpg: a number that is not finite"),
        ({"boxes": (0, 2, 0.5)}, "boxes of 1.jpg: a negative size"),
        ({"boxes": (1, 4, 2)}, "boxes of 2.jpg: a label that is none of 2 box_classes"),
        ({"boxes": (1, 4, 0.5)}, "boxes of 2.jpg: a label that is none of 2 box_classes"),
    ],
)
def test_audit_finds_boxes_that_cannot_be(
    spoil: dict[str, Any], problem: str, file: Path, tmp_path: Path
) -> None:
    """Although the checksum holds; nothing is loaded or exported then."""
    sound = MemoryFile(file)
    arrays = {name: np.array(array) for name, array in sound.arrays.items()}
    payload = arrays.pop("payload")
    if "boxes" in spoil:
        row, column, value = spoil["boxes"]
        arrays["boxes"][row, column] = value
    else:
        arrays["box_counts"] = np.array(spoil["box_counts"], "<i4")
    meta = {name: value for name, value in sound.meta.items() if name != "tables"}
    write_memory(file, arrays, [payload.tobytes()], payload.nbytes, meta, sound.tables)
    assert any(problem in found for found in audit(file).problems)
    with pytest.raises(MemoryFileError, match=problem):
        ReplayMemory.load(file)
    with pytest.raises(MemoryFileError, match=problem):
        export(MemoryFile(file), tmp_path / "out", "coco")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 4), np.float32), r"boxes of 1\.jpg must have the shape \(n, 5\), got \(1, 4"),
        (boxes((0, 0, 2, 2, 2)), r"boxes of 1\.jpg: a label that is none of 2 box_classes"),
        (boxes((0, 0, np.inf, 2, 0)), r"boxes of 1\.jpg: a number that is not finite"),
        (boxes((5, 0, 2, 2, 0)), r"boxes of 1\.jpg: a negative size"),
    ],
)
def test_save_refuses_boxes_that_cannot_be(rows: Boxes, message: str, file: Path) -> None:
    """And leaves the old file."""
    memory, before = ReplayMemory.load(file), file.read_bytes()
    memory.boxes["1.jpg"] = rows
    with pytest.raises(UsageError, match=message):
        memory.save(file)
    assert file.read_bytes() == before
    memory = with_boxes()
    memory.box_classes = ()
    with pytest.raises(UsageError, match="none of 0 box_classes"):
        memory.save(file)


# Under the budget


def test_a_budget_in_originals_is_not_charged_for_boxes() -> None:
    """As in the paper."""
    plain = ReplayMemory(4000, "jpeg", 50)
    plain.add({0: [photo(n) for n in range(6)]})
    boxed = with_boxes(4000, each=50)
    assert boxed.sources(0) == plain.sources(0)
    assert boxed.nbytes == plain.nbytes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    budget=st.integers(3_000, 20_000), each=st.integers(0, 60), smaller=st.integers(3_000, 9_000)
)
def test_a_budget_of_the_whole_file_bounds_boxes_too(budget: int, each: int, smaller: int) -> None:
    """Whatever it is, also after a change; or a refusal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        try:
            memory = with_boxes(budget, images=12, whole_file=True, each=each)
            memory.save(path)
            assert path.stat().st_size <= budget
            memory.rebudget(smaller)
        except BudgetError:
            return
        memory.save(path)
        assert path.stat().st_size <= smaller
        assert audit(path).problems == []


def test_boxes_take_the_place_of_images_in_a_bounded_file() -> None:
    """20 bytes a box."""
    few, many = (with_boxes(9_000, 30, whole_file=True, each=each) for each in (1, 20))
    assert 0 < len(many) < len(few)


# From scenes to a memory and back


@st.composite
def annotated(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Annotations of up to six images, crowds and tiny boxes among them."""
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
    """Boxes of the images held are the same to the bit at the other end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder / "images", 6)
        write(folder / "train.json", described(6, entries))
        options = {"codec": (codec,), "quality": (50,), "accounting": "file"}
        packed = packing(folder, folder / "a.mrdc", seed=seed, **options)
        held = packed.memory.sources(0)
        assert 0 < len(held) < 6
        assert audit(folder / "a.mrdc").problems == []
        export(MemoryFile(folder / "a.mrdc"), folder / "out", "coco")
        before = read_scenes(folder / "train.json").by_id()
        loaded = ReplayMemory.load(folder / "a.mrdc").boxes
        after = read_scenes(folder / "out" / "annotations.json")
        assert after.dropped == 0
        assert after.classes == CLASSES
        assert [photo.id for photo in after.photos] == held
        for source, rows in zip(held, after.boxes, strict=True):
            np.testing.assert_array_equal(rows, before[source])
            np.testing.assert_array_equal(rows, loaded[source])


def packing(photos: Path, output: Path, **options: Any) -> Packed:
    chosen = {"budget": "2 originals", "select": "random_choice"} | options
    return pack(PackSettings(photos, output=output, **chosen), embedder=CHEAP)


@pytest.fixture
def road(tmp_path: Path) -> Path:
    """Twenty scenes."""
    make_images(tmp_path / "road" / "images", 20)
    entries = [box(10 + n, [n, n / 2, 4, 5 + n / 4], (3, 7)[n % 2], 0, n) for n in range(19)]
    entries += [box(10, [0, 0, 9, 9], crowd=1), box(10, [0, 0, 0.5, 9])]
    write(tmp_path / "road" / "train.json", described(20, entries))
    return tmp_path / "road"


@pytest.mark.parametrize("orientation", [6, 8])
@pytest.mark.parametrize("codec", ["jpeg", "original"])
def test_an_image_on_its_side_keeps_its_boxes(codec: str, orientation: int, tmp_path: Path) -> None:
    """The box frames the white patch of the image as shown, before and after."""
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
    options = {"codec": (codec,), "quality": (60,), "budget": "1MB"}
    packing(tmp_path, tmp_path / "a.mrdc", **options)
    export(MemoryFile(tmp_path / "a.mrdc"), tmp_path / "out", "coco")
    scenes = read_scenes(tmp_path / "out" / "annotations.json")
    assert scenes.sides == ((HEIGHT, WIDTH),)
    stored = scenes.photos[0].load()
    assert isinstance(stored, bytes)
    left, top, right, bottom, _ = scenes.boxes[0][0].astype(int)
    white = decode(stored).mean(axis=2) > 128
    assert white[top:bottom, left:right].all()
    assert white.sum() == 64


def test_boxes_in_the_frame_of_the_file_are_refused(tmp_path: Path) -> None:
    """Packing would turn the pixels, and not the boxes."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.jpg").write_bytes(turned_jpeg())
    write(tmp_path / "train.json", described(1, []))
    with pytest.raises(DataError, match=r"0\.jpg: .*its EXIF orientation turns it"):
        packing(tmp_path, tmp_path / "a.mrdc", quality=(50,))


# Plan and pack


def test_plan_and_pack_draw_scenes_at_random(road: Path, tmp_path: Path) -> None:
    """And say so; what is promised is stored, with its boxes."""
    found = plan(PlanSettings(road, "8 originals", quality=(50, 20)), embedder=CHEAP)
    assert found.as_json()["select"] == "random_choice"
    assert found.boxes == {"boxes": 19, "classes": 2, "dropped": 1, "crowds": 1}
    options = {"budget": "8 originals", "quality": (50, 20), "select": "auto"}
    packed = packing(road, tmp_path / "a", **options)
    assert len(packed.memory) == found.chosen.quantity
    memory = ReplayMemory.load(tmp_path / "a")
    assert memory.notes["select"] == "random_choice"
    assert memory.class_names == {0: "images"}
    assert packed.boxes is not None
    assert packed.boxes["held"] == sum(map(len, memory.boxes.values())) > 0
    other = packing(road, tmp_path / "b", seed=1, **options)
    assert other.memory.sources(0) != memory.sources(0)


def test_another_selector_can_be_asked_for(road: Path, tmp_path: Path) -> None:
    """Scenes can be herded, too."""
    packed = packing(road, tmp_path / "a", select="herding", quality=(50,))
    assert packed.memory.notes["select"] == "herding"


@pytest.mark.parametrize("budget", ["5kB", "9kB", "14kB"])
def test_plan_and_pack_agree_on_bytes(budget: str, road: Path, tmp_path: Path) -> None:
    """Boxes included."""
    options = {"budget": budget, "quality": (50, 20), "epsilon": 50.0}
    promised = plan(PlanSettings(road, **options), embedder=CHEAP).chosen  # type: ignore[arg-type]
    packed = packing(road, tmp_path / "a", **options)
    assert len(packed.memory) == promised.quantity
    assert packed.path.stat().st_size <= packed.memory.budget_bytes
    assert audit(packed.path).problems == []


def test_more_scenes_than_dimensions(tmp_path: Path) -> None:
    """One large class: an error that names the fix, and the fix works."""
    make_images(tmp_path / "images", 60)
    write(tmp_path / "train.json", described(60))
    with pytest.raises(VolumeError, match=r"60 rows in 48 dimensions.*ridge"):
        plan(PlanSettings(tmp_path, "1MB", quality=(50,)), embedder=CHEAP)
    found = plan(PlanSettings(tmp_path, "1MB", quality=(50,), volume="ridge"), embedder=CHEAP)
    assert found.candidates[1].quantity == 60


@pytest.mark.parametrize("quality", [(50,), (50, 20)])
def test_bad_images_are_skipped_with_their_boxes(
    quality: tuple[int, ...], road: Path, tmp_path: Path
) -> None:
    """Listed, and not among the boxes."""
    (road / "images" / "3.jpg").write_text("no image")
    (road / "images" / "4.jpg").write_bytes(jpeg(4)[:400])
    packed = packing(road, tmp_path / "a", quality=quality, budget="1MB", skip_bad=True)
    assert len(packed.memory) == 18
    assert len(packed.seen.skipped) == 2
    assert packed.boxes == {"boxes": 17, "classes": 2, "dropped": 1, "crowds": 1, "held": 17}


@pytest.mark.parametrize("quality", [(50,), (50, 20)])
def test_missing_images_are_skipped_like_bad_ones(
    quality: tuple[int, ...], road: Path, tmp_path: Path
) -> None:
    """Refused by name unless asked to go on; then listed, and not among the boxes."""
    (road / "images" / "3.jpg").unlink()
    (road / "images" / "4.jpg").unlink()
    with pytest.raises(DataError, match=r"image 13 \(3\.jpg\) is missing"):
        packing(road, tmp_path / "a", quality=quality, budget="2/class")
    packed = packing(road, tmp_path / "a", quality=quality, budget="2/class", skip_bad=True)
    why = "cannot be read (No such file or directory)"
    assert packed.seen.skipped == [f"3.jpg: {why}", f"4.jpg: {why}"]
    assert len(packed.seen.images) == 18
    assert packed.boxes is not None and packed.boxes["boxes"] == 17
    mean = np.mean([file.stat().st_size for file in (road / "images").iterdir()])
    assert packed.memory.budget_bytes == int(2 * mean)


# On the command line

FAST = ["--quality", "50"]  # random_choice, so no network


def test_commands_tell_of_boxes(
    road: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many, of how many classes, and what was left out."""
    assert run("pack", road, "--budget", "1MB", "-o", tmp_path / "a", *FAST) == 0
    out = capsys.readouterr().out
    assert "19 boxes of 2 classes; 1 below 1 pixel left out; 1 crowd region left out" in out
    assert "19 boxes held" in out
    assert run("info", tmp_path / "a") == 0
    shown = capsys.readouterr().out
    assert "19 of 2 classes (cat, dog)" in shown and "per class" not in shown
    about = said(capsys, "info", tmp_path / "a")
    assert (about["boxes"], about["box_classes"]) == (19, ["cat", "dog"])
    assert about["notes"]["select"] == "random_choice"
    assert said(capsys, "audit", tmp_path / "a")["ok"] is True
    argument = ["pack", road / "train.json", "--budget", "1MB", "-o", tmp_path / "b", *FAST]
    assert said(capsys, *argument)["boxes"]["held"] == 19


def test_export_coco_is_read_by_others(
    road: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By torchvision and pycocotools, and by plan again."""
    pytest.importorskip("pycocotools")
    from torchvision.datasets import CocoDetection

    packing(road, tmp_path / "a", quality=(50,), budget="1MB")
    assert run("export", tmp_path / "a", "-o", tmp_path / "out") == 0
    out = tmp_path / "out"
    seen = CocoDetection(str(out / "images"), str(out / "annotations.json"))
    assert len(seen) == 20
    place = ReplayMemory.load(tmp_path / "a").sources(0).index("5.jpg")
    image, targets = seen[place]
    assert image.size == (WIDTH, HEIGHT)
    assert targets[0]["bbox"] == [5, 2.5, 4, 6.25]
    assert (targets[0]["area"], targets[0]["iscrowd"]) == (25, 0)
    assert seen.coco.cats[targets[0]["category_id"]]["name"] == "dog"
    capsys.readouterr()
    assert said(capsys, "pack", out, "--budget", "1MB", "-o", tmp_path / "b", *FAST)["items"] == 20


def test_export_coco_needs_boxes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says which formats do not."""
    flags = ["--select", "random_choice", *FAST]
    assert run("pack", photos, "--budget", "1MB", "-o", tmp_path / "a", *flags) == 0
    capsys.readouterr()
    given = ["export", tmp_path / "a", "-o", tmp_path / "out", "--format", "coco"]
    assert "have no boxes, which the format coco needs; choose folder" in refused(capsys, *given)
    assert not (tmp_path / "out").exists()


def test_names_in_an_export_are_harmless_and_distinct(tmp_path: Path) -> None:
    """Nothing leaves the folder, whatever an image was called; the ending fits the bytes."""
    names = ["../../x.png", "a.jpg", "a.png", "A.jpg", "b/c.jpg", "b_c.jpg", "/etc/x.jpg", ".."]
    memory = ReplayMemory("1MB", "jpeg", 50)
    memory.box_classes = CLASSES
    memory.boxes = {name: boxes((0, 0, 2 + n, 3, 1)) for n, name in enumerate(names)}
    memory.add({0: [Photo(name, photo(n).load) for n, name in enumerate(names)]})
    memory.save(tmp_path / "m")
    out = tmp_path / "safe" / "deep" / "out"
    out.parent.mkdir(parents=True)
    export(MemoryFile(tmp_path / "m"), out, "coco")
    files = [path for path in (tmp_path / "safe").rglob("*") if path.is_file()]
    assert len(files) == 9
    assert all(path.parent in (out, out / "images") for path in files)
    assert len({path.name.casefold() for path in files}) == 9
    scenes = read_scenes(out / "annotations.json")
    assert [photo.id for photo in scenes.photos][1] == "a.jpg"
    assert [rows[0, 2] for rows in scenes.boxes] == list(range(2, 10))
    assert json.loads((out / "annotations.json").read_text())["categories"] == [
        {"id": 1, "name": "cat"},
        {"id": 2, "name": "dog"},
    ]
