"""Folders, CSV files, tars and the built-in sets."""

import hashlib
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mrdc._utils.errors import DataError, ImageError
from mrdc.codec.image import decode
from mrdc.data import check_source, open_images
from mrdc.data.photo import Photo
from mrdc.data.textures import textures
from tests.conftest import jpeg, make_photos, pixels


def test_a_photo_of_bytes_or_pixels() -> None:
    """Bytes are decoded on demand; the digest covers bytes, or pixels and shape."""
    file, image = jpeg(0), pixels(0, 4, 6)
    photo, array = Photo("a.jpg", lambda: file), Photo("b", lambda: image)
    assert np.array_equal(photo.pixels(), decode(file))
    assert np.array_equal(array.pixels(), image)
    assert photo.digest() == hashlib.sha256(file).digest()
    assert array.digest() != Photo("b", lambda: image.reshape(6, 4, 3)).digest()
    with pytest.raises(ImageError, match=r"c\.jpg: not an image file"):
        Photo("c.jpg", lambda: b"text").pixels()


def test_one_folder_for_each_class(photos: Path) -> None:
    """Classes and files are sorted, ids are relative to the folder, sizes are bytes."""
    (photos / "class0" / "more").mkdir()
    (photos / "class0" / "more" / "x.JPEG").write_bytes(jpeg(55))
    images = open_images(photos)
    assert images.classes == ("class0", "class1", "class2")
    assert [len(of_class) for of_class in images.photos] == [9, 8, 8]
    assert images.photos[0][-1].id == "class0/more/x.JPEG"
    first = images.photos[1][0]
    assert (first.id, first.load()) == ("class1/00.jpg", jpeg(100))
    assert images.sizes[1][0] == len(jpeg(100))
    assert images.original_bytes == sum(map(sum, images.sizes)) / 25


def test_a_folder_of_splits_means_its_training_part(tmp_path: Path) -> None:
    """train/ next to test/ or val/; next to other classes, train is one, e.g. of vehicles."""
    make_photos(tmp_path / "train", classes=2, images=2)
    make_photos(tmp_path / "val", classes=3, images=2)
    assert open_images(tmp_path).classes == ("class0", "class1")
    make_photos(tmp_path / "extra", classes=1, images=2)
    with pytest.raises(DataError, match="look like splits, but with extra beside them"):
        open_images(tmp_path)
    shutil.rmtree(tmp_path / "val")
    assert open_images(tmp_path).classes == ("extra", "train")


def test_ignored_files_are_listed_with_the_reason(photos: Path) -> None:
    """Hidden ones are not; links to folders could lead back, or into another class."""
    (photos / "class0" / "notes.txt").write_text("hello")
    (photos / "class0" / "loop").symlink_to(photos)
    (photos / "readme.md").write_text("hello")
    (photos / "loose.jpg").write_bytes(jpeg(0))
    (photos / "class0" / ".DS_Store").write_text("hidden")
    images = open_images(photos)
    assert images.ignored == [
        "loose.jpg: image outside a class folder",
        "readme.md: not an image (by its ending)",
        "class0/loop: link to a folder",
        "class0/notes.txt: not an image (by its ending)",
    ]
    assert len(images) == 24


ROWS = "class0/00.jpg,cat\nclass1/01.jpg,dog\nclass2/02.jpg,cat\n"


@pytest.mark.parametrize("heading", ["", "path,label\n"])
def test_a_csv_of_path_and_label(heading: str, photos: Path) -> None:
    """With or without a heading; paths are relative to the file."""
    (photos / "list.csv").write_text(heading + ROWS)
    images = open_images(photos / "list.csv")
    assert images.classes == ("cat", "dog")
    assert [photo.id for photo in images.photos[0]] == ["class0/00.jpg", "class2/02.jpg"]
    assert images.photos[1][0].load() == jpeg(101)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"image,class\n{ROWS}",
            r"list\.csv: line 1: no such file 'image' \(columns are path,label; a heading must be",
        ),
        (
            f"{ROWS}x/y.jpg,cat\nz.jpg,cat\n",
            r"list\.csv: line 4: no such file 'x/y\.jpg' \(2 of 5 missing; --skip-bad leaves them",
        ),
        ("no.jpg,cat\n", r"line 1: no such file 'no\.jpg' \(1 of 1 missing"),
    ],
)
def test_files_missing_from_a_csv_are_refused_at_once(
    text: str, message: str, photos: Path
) -> None:
    """If they are accepted instead, loading one reports it."""
    (photos / "list.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_images(photos / "list.csv")
    found = open_images(photos / "list.csv", missing=True)
    assert len(found) == text.count("\n")
    absent = next(photo for photo in found.all_photos if photo.id in message.replace("\\", ""))
    with pytest.raises(ImageError, match="cannot be read"):
        absent.load()


def test_textures_are_the_same_every_time() -> None:
    """Generated from a seed."""
    first, second = textures(2, 3), textures(2, 3)
    assert [p.load() for p in first.photos[1]] == [p.load() for p in second.photos[1]]
    assert first.photos[0][0].pixels().shape == (64, 64, 3)
    assert open_images("textures").classes[0] == "texture00"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "nothing", "nothing: no such folder or file; give a folder"),
        (lambda root: root, "has no class folders; give a folder"),
        (lambda root: write(root / "a.jpg", jpeg(0)).parent, "has 1 image but no class folders"),
        (lambda root: folder(root / "empty").parent, "no image in any class folder"),
        (lambda root: write(root / "x.zip", b"zip"), r"x\.zip: not a form mrdc reads"),
        (lambda root: write(root / "x.csv", b""), "no row of path,label"),
        (lambda root: write(root / "x.csv", b"a.jpg\n"), "line 1 must be path,label, got 'a.jpg'"),
        (lambda root: write(root / "x.csv", b"a.jpg,\n"), "line 1 must be path,label"),
        (lambda root: write(root / "x.csv", b"a\0.jpg,b\n"), "line 1 must be path,label"),
        (lambda root: folder(root / "s" / "val").parent, "val look like splits.*no train/"),
        (lambda root: Path(os.devnull), "neither a folder nor a file"),
    ],
)
def test_refusals(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    """Each names the source and the allowed forms."""
    with pytest.raises(DataError, match=message):
        open_images(make(tmp_path))


def test_unreadable_files_are_named_when_they_are_loaded(photos: Path) -> None:
    """A pipe, a sparse file of terabytes, a vanished file and a broken link."""
    os.mkfifo(photos / "class0" / "zz.jpg")
    with (photos / "class0" / "large.jpg").open("wb") as file:
        file.truncate(1 << 40)
    images = open_images(photos)
    large = next(photo for photo in images.photos[0] if photo.id.endswith("large.jpg"))
    with pytest.raises(
        ImageError, match=r"large\.jpg: 1,099,511,627,776 bytes; an image has at most 534,"
    ):
        large.load()
    with pytest.raises(ImageError, match=r"class0/zz\.jpg: not a regular file"):
        images.photos[0][-1].load()
    (photos / "class0" / "00.jpg").unlink()
    with pytest.raises(ImageError, match=r"class0/00\.jpg: cannot be read \(No such file"):
        images.photos[0][0].load()
    (photos / "class0" / "00.jpg").symlink_to(photos / "nowhere")
    assert open_images(photos).sizes[0][0] == 0


@pytest.mark.parametrize("source", ["textures", "shapes", "cifar100:{}", "imagenet-sub:{}", "{}"])
def test_a_source_that_may_exist_is_accepted(source: str, tmp_path: Path) -> None:
    """It is not opened."""
    check_source(source.format(tmp_path))
    check_source(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("texture", r"^texture: no such folder or file; give .*textures, .*, shapes$"),
        ("{}/no", "no: no such folder or file; give a folder"),
        ("cifar100:{}/no", "^/.*/no: no such folder or file; give cifar100 the data set's folder"),
        ("cifar100:", "^cifar100:: no such folder or file"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(source: str, message: str, tmp_path: Path) -> None:
    """The message lists the choices."""
    with pytest.raises(DataError, match=message):
        check_source(source.format(tmp_path))


def test_a_photo_takes_few_bytes(tmp_path: Path) -> None:
    """Whatever the length of the folder's name: photos in one folder share it."""
    folder = tmp_path / ("long name " * 20) / "class"
    folder.mkdir(parents=True)
    for number in range(500):
        (folder / f"{number}.jpg").touch()
    tracemalloc.start()
    images = open_images(folder.parent)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 400 * len(images)
    assert pickle.loads(pickle.dumps(images.photos[0][7])).load() == b""
