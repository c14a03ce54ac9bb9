"""COCO files and folders."""

import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mrdc._utils.errors import DataError, ImageError
from mrdc.data import open_images, open_splits
from mrdc.data.coco import is_coco, open_scenes, read_scenes
from mrdc.data.scenes import check_sides
from tests.conftest import jpeg, make_photos, pixels

WIDTH, HEIGHT = 32, 24  # images of conftest
CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]


def box(
    image: Any, bbox: list[float], category: Any = 3, crowd: int = 0, number: int = 1
) -> dict[str, Any]:
    """An annotation."""
    ids = {"id": number, "image_id": image, "category_id": category}
    return {**ids, "bbox": bbox, "area": 1, "iscrowd": crowd}


def described(count: int = 3, annotations: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A json of `count` images."""
    images = [
        {"id": 10 + n, "file_name": f"{n}.jpg", "width": WIDTH, "height": HEIGHT}
        for n in range(count)
    ]
    if annotations is None:
        annotations = [box(10, [1, 2, 3, 4]), box(10, [5, 6, 7.5, 8], 7), box(11, [0, 0, 32, 24])]
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def make_images(folder: Path, count: int = 3, first: int = 0) -> Path:
    """Write numbered images to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(jpeg(first + number))
    return folder


def write(file: Path, data: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))
    return file


@pytest.fixture
def road(tmp_path: Path) -> Path:
    """A folder with train.json, val.json and images/."""
    make_images(tmp_path / "road" / "images")
    write(tmp_path / "road" / "train.json", described())
    write(tmp_path / "road" / "val.json", described(2))
    return tmp_path / "road"


# Reading


def test_a_json_becomes_scenes(road: Path) -> None:
    """Labels by sorted category id, corners in pixels; images without boxes are kept."""
    scenes = read_scenes(road / "train.json")
    assert (scenes.classes, scenes.categories) == (("cat", "dog"), (3, 7))
    assert [photo.id for photo in scenes.photos] == ["0.jpg", "1.jpg", "2.jpg"]
    assert scenes.photos[1].load() == jpeg(1)
    assert scenes.sizes == tuple(len(jpeg(n)) for n in range(3))
    assert scenes.sides == ((WIDTH, HEIGHT),) * 3
    assert scenes.boxes[0].dtype == np.float32
    assert scenes.boxes[0].tolist() == [[1, 2, 4, 6, 0], [5, 6, 12.5, 14, 1]]
    assert [part.shape for part in scenes.boxes] == [(2, 5), (1, 5), (0, 5)]
    assert scenes.dropped == 0
    some = scenes.pick([2, 0])
    assert ([photo.id for photo in some.photos], len(some)) == (["2.jpg", "0.jpg"], 2)
    assert some.sizes == (scenes.sizes[2], scenes.sizes[0])
    assert {name: len(part) for name, part in some.by_id().items()} == {"2.jpg": 0, "0.jpg": 2}


def test_crowds_are_kept_apart(road: Path) -> None:
    """They are not used for training."""
    entries = [box(10, [1, 1, 5, 5]), box(10, [2, 2, 9, 9], crowd=1)]
    scenes = read_scenes(write(road / "train.json", described(3, entries)))
    assert [len(part) for part in scenes.boxes] == [1, 0, 0]
    assert scenes.crowds[0].tolist() == [[2, 2, 11, 11, 0]]
    assert scenes.as_json() == {"boxes": 1, "classes": 2, "dropped": 0, "crowds": 1}


def test_boxes_are_cut_to_the_image_and_tiny_ones_counted(road: Path) -> None:
    """A pixel past the edge is rounding; less than a pixel is not an object."""
    parts: list[list[float]]
    parts = [[-1, -0.5, 10, 10], [30, 20, 3, 5], [5, 5, 0.5, 8], [5, 5, 3, 0], [31.5, 0, 1.5, 9]]
    entries = [box(10, part) for part in parts]
    scenes = read_scenes(write(road / "train.json", described(3, entries)))
    assert scenes.boxes[0].tolist() == [[0, 0, 9, 9.5, 0], [30, 20, 32, 24, 0]]
    assert scenes.dropped == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, WIDTH), st.floats(0, HEIGHT), st.floats(0, 1), st.floats(0, 1)),
        max_size=6,
    )
)
def test_any_box_inside_is_kept_or_counted(parts: list[tuple[float, float, float, float]]) -> None:
    """Boxes that are kept lie inside and are at least a pixel wide and high."""
    entries = [
        box(10, [left, top, wide * (WIDTH - left), high * (HEIGHT - top)])
        for left, top, wide, high in parts
    ]
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), 1)
        scenes = read_scenes(write(Path(folder) / "a.json", described(1, entries)))
    rows = scenes.boxes[0].astype(float)
    assert len(rows) + scenes.dropped == len(entries)
    assert (rows[:, :2] >= 0).all() and (rows[:, 2:4] <= [WIDTH, HEIGHT]).all()
    assert (rows[:, 2:4] - rows[:, :2] >= 1).all()


def test_images_are_searched_for_in_order(road: Path) -> None:
    """In images/ next to the json, then next to the json itself; missing ones can be accepted."""
    make_images(road, 1, first=60)
    assert read_scenes(road / "train.json").photos[0].load() == jpeg(0)
    (road / "images" / "0.jpg").unlink()
    assert read_scenes(road / "train.json").photos[0].load() == jpeg(60)
    (road / "0.jpg").unlink()
    assert open_images(road, missing=True).sizes[0][0] == 0


# Layouts


def coco_layout(root: Path) -> Path:
    make_images(root / "train2017")
    make_images(root / "val2017", 2, first=20)
    write(root / "annotations" / "instances_train2017.json", described())
    write(root / "annotations" / "instances_val2017.json", described(2))
    return root


def soda_layout(root: Path) -> Path:
    base = root / "SSLAD-2D"
    make_images(base / "Labeled" / "train")
    make_images(base / "Labeled" / "val", 2, first=20)
    write(base / "Labeled" / "annotations" / "instance_train.json", described())
    write(base / "Labeled" / "annotations" / "instance_val.json", described(2))
    make_images(base / "Unlabel" / "images" / "images_000", 2, first=30)
    write(base / "Unlabel" / "annotations" / "instance_unlabel_0.json", described(2))
    return root


def test_a_folder_with_train_and_val(road: Path) -> None:
    """test.json and valid.json work, too; no pool of unlabelled images. A path may be text."""
    splits = open_scenes(str(road))
    assert (len(splits.train), len(splits.test), splits.unlabelled) == (3, 2, None)
    for name in ("test.json", "valid.json"):
        (road / "val.json").rename(road / name)
        assert len(open_scenes(road).test) == 2
        (road / name).rename(road / "val.json")


def test_coco_as_published(tmp_path: Path) -> None:
    """Each split has its own folder, which is found from its json, too."""
    splits = open_scenes(coco_layout(tmp_path))
    assert splits.train.photos[0].load() == jpeg(0)
    assert splits.test.photos[0].load() == jpeg(20)
    alone = read_scenes(tmp_path / "annotations" / "instances_val2017.json")
    assert alone.photos[0].load() == jpeg(20)


@pytest.mark.parametrize("given", [".", "SSLAD-2D"])
def test_soda10m_as_published(given: str, tmp_path: Path) -> None:
    """The case of folder names does not matter; boxes of the unlabelled pool are not read."""
    splits = open_scenes(soda_layout(tmp_path) / given)
    assert (len(splits.train), len(splits.test)) == (3, 2)
    assert splits.test.photos[0].load() == jpeg(20)
    assert splits.unlabelled is not None
    assert [photo.id for photo in splits.unlabelled] == [
        "Unlabel/images/images_000/0.jpg",
        "Unlabel/images/images_000/1.jpg",
    ]
    assert splits.unlabelled[1].load() == jpeg(31)


@pytest.mark.parametrize("name", ["unlabelled", "unlabeled", "Unlabeled2017"])
def test_a_pool_of_unlabelled_images(name: str, road: Path) -> None:
    """Next to the annotations; hidden files and links are skipped."""
    make_images(road / name, 2)
    make_images(road / name / ".hidden", 1)
    (road / name / "readme.txt").write_text("hello")
    (road / name / "loop").symlink_to(road)
    splits = open_scenes(road)
    assert splits.unlabelled is not None
    assert [photo.id for photo in splits.unlabelled] == [f"{name}/0.jpg", f"{name}/1.jpg"]


def test_coco_is_recognised(road: Path, tmp_path: Path) -> None:
    """A .json or a known layout; not class folders."""
    assert is_coco(road) and is_coco(road / "train.json")
    assert is_coco(coco_layout(tmp_path / "c")) and is_coco(soda_layout(tmp_path / "s"))
    assert not is_coco(make_photos(tmp_path / "photos", classes=2, images=1))
    assert not is_coco(road / "images") and not is_coco(tmp_path / "nothing.json")


def test_scenes_are_one_class_of_images(road: Path) -> None:
    """For plan and pack: the training part of a folder, or one json; runs on classes refuse it."""
    for source in (road, road / "train.json"):
        images = open_images(source)
        assert images.classes == ("images",)
        assert [photo.id for photo in images.photos[0]] == ["0.jpg", "1.jpg", "2.jpg"]
        assert images.scenes is not None
        assert len(images.scenes.boxes[0]) == 2
    assert images.pick([0]).scenes is images.scenes
    with pytest.raises(DataError, match="scenes with boxes, but classes are needed"):
        open_splits(road)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda road: road / "train.json", r"train\.json: not a COCO data set with training and"),
        (lambda road: road / "images", "not a COCO data set.*; give a folder with train.json"),
        (lambda road: remove(road / "val.json"), r"train\.json has no test scenes next to it"),
        (
            lambda road: (
                write(road / "val.json", described(2, []) | {"categories": CATEGORIES[:1]}).parent
            ),
            r"categories of train\.json \(cat, dog\) and val\.json \(dog\) differ",
        ),
        (
            lambda road: write(road / "val.json", described(2, [])).parent,
            "val.json: no image in it",
        ),
        (
            lambda road: write(road / "train.json", boxed(10, [1, 2, 3, 4], crowd=1)).parent,
            r"train\.json: no image in it has a box",
        ),
        (lambda road: make_images(road / "unlabelled", 0).parent, "unlabelled: no image in it"),
        (
            lambda road: write(
                coco_layout(road.parent / "c") / "annotations" / "instances_train2014.json", {}
            ).parents[1],
            r"has instances_train2014\.json, instances_train2017\.json; keep one",
        ),
    ],
)
def test_bad_folders_are_refused(spoil: Callable[[Path], Path], message: str, road: Path) -> None:
    """The message states what is missing and what is allowed."""
    with pytest.raises(DataError, match=message):
        open_scenes(spoil(road))


def remove(file: Path) -> Path:
    file.unlink()
    return file.parent


# Refusals


def changed(**changes: Any) -> dict[str, Any]:
    """A json with different lists."""
    return described() | changes


def boxed(*args: Any, **options: Any) -> dict[str, Any]:
    """A json with one annotation."""
    return described(annotations=[box(*args, **options)])


def image(**changes: Any) -> dict[str, Any]:
    """A json with a different second image."""
    data = described()
    data["images"][1] |= changes
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], r"a\.json: not a COCO file: no list 'images'"),
        ({"images": [], "annotations": []}, "no list 'categories'; it must be an object"),
        (changed(annotations={}), "no list 'annotations'"),
        (changed(images=[]), "the list 'images' is empty"),
        (changed(categories=[]), "the list 'categories' is empty"),
        (changed(categories=["cat"]), "a category needs a whole number as its id, got 'cat'"),
        (changed(categories=[{"id": 1}]), "category 1 needs a name"),
        (changed(categories=[CATEGORIES[0]] * 2), "two categories have the id 7"),
        (changed(categories=[*CATEGORIES, {"id": 8, "name": "cat"}]), "have the name 'cat'"),
        (changed(images=[3]), "an image needs an id, got 3"),
        (image(id=10), "two images have the id 10"),
        (image(file_name="0.jpg"), r"two images have the file_name '0\.jpg'"),
        (image(file_name="/etc/passwd"), "image 11 has file_name '/etc/passwd'; it must be a"),
        (image(file_name="a/../../0.jpg"), "relative path that does not leave the folder"),
        (image(file_name="..\\0.jpg"), "relative path that does not leave the folder"),
        (image(file_name="a\0.jpg"), "relative path that does not leave the folder"),
        (image(file_name="\ud800.jpg"), "relative path that does not leave the folder"),
        (image(file_name=""), "relative path that does not leave the folder"),
        (image(file_name=None), "image 11 has file_name None"),
        (image(file_name="x.jpg"), r"image 11 \(x\.jpg\) is missing: no such file in .*images or"),
        (image(width=None), r"image 11 \(1\.jpg\) needs width and height.*got None and 24"),
        (image(height=0), "whole numbers from 1, got 32 and 0"),
        (image(width="32"), "got '32' and 24"),
        (changed(annotations=["x"]), "an annotation must be an object, got 'x'"),
        (boxed(99, [0, 0, 2, 2]), "annotation 1 belongs to image 99, which is"),
        (boxed([], [0, 0, 2, 2]), r"belongs to image \[\], which is not in"),
        (boxed(11, [0, 0, 2, 2], 5, number=4), r"4 of 1\.jpg has category 5; allowed are \[3, 7\]"),
        (boxed(11, [0, 0, 2]), r"1\.jpg has bbox \[0, 0, 2\]; it must be"),
        (boxed(11, None), "has bbox None"),
        (boxed(11, [0, 0, 2, float("nan")]), "four finite numbers"),
        (boxed(11, [0, 0, 2, 10**400]), "four finite numbers"),
        (boxed(11, [0, 0, 2, "3"]), "four finite numbers"),
        (
            boxed(11, [10, 0, 24, 5]),
            r"1\.jpg has bbox \[10, 0, 24, 5\], 2 pixels outside the image of 32 x 24; at most 1",
        ),
        (boxed(11, [-1.5, 0, 4, 5]), "1.5 pixels outside"),
        (boxed(11, [0, -2, 4, 5]), "2 pixels outside"),
        (boxed(11, [0, 0, 4, 29]), "5 pixels outside"),
        (boxed(11, [9, 9, -4, 5]), "its width and height must be 0 or more"),
        (boxed(11, [0, 0, 2, 2], crowd="1"), r"1 of 1\.jpg has iscrowd '1'; it must be 0 or 1"),
    ],
)
def test_invalid_entries_are_refused(data: object, message: str, tmp_path: Path) -> None:
    """The message names the file, image or annotation, and what is allowed."""
    make_images(tmp_path / "images")
    with pytest.raises(DataError, match=message):
        read_scenes(write(tmp_path / "a.json", data))


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe{}", b"[" * 100_000])
def test_files_that_are_not_json_are_refused(content: bytes, tmp_path: Path) -> None:
    """Text, bytes, and endless brackets."""
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json: not (JSON|a COCO file)"):
        read_scenes(tmp_path / "a.json")
    with pytest.raises(DataError, match=r"b\.json: cannot be read \(No such file"):
        read_scenes(tmp_path / "b.json")


# Image sizes


def turned_jpeg(seed: int = 0, orientation: int = 6) -> bytes:
    """A file of 32 x 24 pixels that is shown upright as 24 x 32."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue()


def test_sizes_that_agree_pass(road: Path) -> None:
    """JPEG, PNG and TIFF, and a rotated image whose json has the size as shown."""
    (road / "images" / "0.jpg").write_bytes(turned_jpeg())
    (road / "images" / "3.jpg").write_bytes(turned_jpeg(orientation=3))
    for number, kind in ((1, "PNG"), (2, "TIFF")):
        Image.fromarray(pixels(number)).save(road / "images" / f"{number}.jpg", kind)
    data = described(4, [])
    data["images"][0] |= {"width": HEIGHT, "height": WIDTH}
    check_sides(read_scenes(write(road / "train.json", data)), threads=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (jpeg(0, 95, 30, 40), "1.jpg: 40 x 30 pixels, but the json says 32 x 24; both must agree"),
        (turned_jpeg(), "24 x 32 pixels, but the json says 32 x 24: its EXIF orientation turns it"),
        (b"no image", "1.jpg: not an image file"),
    ],
)
def test_sizes_that_differ_are_refused(content: bytes, message: str, road: Path) -> None:
    """The message has both sizes, and the orientation if that is the reason."""
    (road / "images" / "1.jpg").write_bytes(content)
    with pytest.raises((DataError, ImageError), match=message):
        check_sides(read_scenes(road / "train.json"))
