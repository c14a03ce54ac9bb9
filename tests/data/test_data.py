"""Folders, CSV files, tars and the built-in set."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from mrdc._utils.errors import DataError, ImageError
from mrdc.codec.image import decode
from mrdc.data import open_images
from mrdc.data.textures import textures
from tests.conftest import jpeg, make_photos


def test_a_folder_per_class(photos: Path) -> None:
    """Sorted classes and files, ids relative to the folder, sizes in bytes."""
    images = open_images(photos)
    assert images.classes == ("class0", "class1", "class2")
    assert [len(of_class) for of_class in images.photos] == [8, 8, 8]
    first = images.photos[1][0]
    assert first.id == "class1/00.jpg"
    assert first.load() == jpeg(100)
    assert images.sizes[1][0] == len(jpeg(100))
    assert images.original_bytes == sum(map(sum, images.sizes)) / 24


def test_nested_folders_belong_to_their_class(photos: Path) -> None:
    """As in torchvision's ImageFolder."""
    (photos / "class0" / "more").mkdir()
    (photos / "class0" / "more" / "x.JPEG").write_bytes(jpeg(55))
    assert open_images(photos).photos[0][-1].id == "class0/more/x.JPEG"


def test_a_folder_of_splits_means_its_training_part(tmp_path: Path) -> None:
    """train/ beside test/ or val/."""
    make_photos(tmp_path / "train", classes=2, images=2)
    make_photos(tmp_path / "val", classes=3, images=2)
    assert open_images(tmp_path).classes == ("class0", "class1")
    make_photos(tmp_path / "extra", classes=1, images=2)
    with pytest.raises(DataError, match="look like splits, but with extra beside them"):
        open_images(tmp_path)


def test_a_class_may_be_called_train(photos: Path) -> None:
    """Vehicles have one."""
    (photos / "class0").rename(photos / "train")
    assert open_images(photos).classes == ("class1", "class2", "train")


def test_other_files_are_ignored_aloud_and_hidden_ones_silently(photos: Path) -> None:
    """Nothing is left out without a word but what systems hide."""
    (photos / "class0" / "notes.txt").write_text("hello")
    (photos / "readme.md").write_text("hello")
    (photos / "class0" / ".DS_Store").write_text("hidden")
    images = open_images(photos)
    assert images.ignored == ["readme.md", "class0/notes.txt"]
    assert len(images) == 24


def test_a_csv_of_path_and_label(photos: Path) -> None:
    """With or without a header; paths are relative to the file."""
    rows = "class0/00.jpg,cat\nclass1/01.jpg,dog\nclass2/02.jpg,cat\n"
    for text in (rows, "path,label\n" + rows):
        (photos / "list.csv").write_text(text)
        images = open_images(photos / "list.csv")
        assert images.classes == ("cat", "dog")
        assert [photo.id for photo in images.photos[0]] == ["class0/00.jpg", "class2/02.jpg"]
        assert images.photos[1][0].load() == jpeg(101)


def make_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_a_webdataset_tar(tmp_path: Path) -> None:
    """Image and .cls by key; numbers sort as numbers; other members are named as ignored."""
    members: dict[str, bytes] = {}
    for number, label in enumerate(["10", "9", "10"]):
        members[f"a/{number:04d}.jpg"] = jpeg(number)
        members[f"a/{number:04d}.cls"] = label.encode()
    images = open_images(make_tar(tmp_path / "x.tar", {**members, "a/0000.txt": b"caption"}))
    assert images.classes == ("9", "10")
    assert [photo.load() for photo in images.photos[1]] == [jpeg(0), jpeg(2)]
    assert images.ignored == ["a/0000.txt"]


def test_textures_are_the_same_every_time() -> None:
    """Made from a seed, and readable."""
    first, second = textures(2, 3), textures(2, 3)
    assert [p.load() for p in first.photos[1]] == [p.load() for p in second.photos[1]]
    data = first.photos[0][0].load()
    assert isinstance(data, bytes)
    assert decode(data).shape == (64, 64, 3)
    assert open_images("textures").classes[0] == "texture00"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "nothing", "nothing: no such folder or file; give a folder"),
        (lambda root: root, "has no class folders; give a folder"),
        (lambda root: _write(root / "a.jpg", jpeg(0)).parent, "has 1 images but no class folders"),
        (lambda root: _folder(root / "empty").parent, "no image in any class folder"),
        (lambda root: _write(root / "x.zip", b"zip"), r"x\.zip: not a form mrdc reads"),
        (lambda root: _write(root / "x.csv", b""), "no row of path,label"),
        (lambda root: _write(root / "x.csv", b"a.jpg\n"), "line 1 must be path,label, got 'a.jpg'"),
        (lambda root: _write(root / "x.csv", b"a.jpg,\n"), "line 1 must be path,label"),
        (lambda root: make_tar(root / "x.tar", {"a.jpg": b"x"}), r"a\.jpg has no \.cls file"),
        (lambda root: make_tar(root / "x.tar", {"a.cls": b"1"}), "no image with a .cls"),
        (
            lambda root: make_tar(root / "x.tar", {"a.jpg": b"x", "a.png": b"y", "a.cls": b"1"}),
            r"two images for one sample: a\.jpg and a\.png",
        ),
        (lambda root: _write(root / "x.csv", b"a\0.jpg,b\n"), "line 1 must be path,label"),
        (
            lambda root: _folder(_folder(root / "s") / "val").parent,
            "val look like splits.*no train/",
        ),
        (lambda root: Path(os.devnull), "neither a folder nor a file"),
    ],
)
def test_refusals(make: object, message: str, tmp_path: Path) -> None:
    """Each names what was given and what is allowed."""
    with pytest.raises(DataError, match=message):
        open_images(make(tmp_path))  # type: ignore[operator]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_cut_tar_is_refused(tmp_path: Path) -> None:
    """The last image is not quietly shorter."""
    tar = make_tar(
        tmp_path / "x.tar", {"a.jpg": jpeg(0), "a.cls": b"1", "b.jpg": jpeg(1), "b.cls": b"1"}
    )
    tar.write_bytes(tar.read_bytes()[:2000])
    with pytest.raises(DataError, match="not a plain"):
        open_images(tar)


def test_links_to_folders_are_not_followed(photos: Path) -> None:
    """They could lead back, and bring one class's images into another."""
    (photos / "class0" / "loop").symlink_to(photos)
    images = open_images(photos)
    assert len(images) == 24
    assert images.ignored == ["class0/loop"]


def test_a_pipe_is_no_image(photos: Path) -> None:
    """Reading it would wait for ever."""
    os.mkfifo(photos / "class0" / "zz.jpg")
    with pytest.raises(ImageError, match=r"class0/zz\.jpg: not a regular file"):
        open_images(photos).photos[0][-1].load()


def test_files_that_vanish_or_cannot_be_read_are_named(photos: Path) -> None:
    """When they are needed, not before."""
    images = open_images(photos)
    (photos / "class0" / "00.jpg").unlink()
    with pytest.raises(ImageError, match=r"class0/00\.jpg: cannot be read \(No such file"):
        images.photos[0][0].load()
    (photos / "class0" / "00.jpg").symlink_to(photos / "nowhere")
    assert open_images(photos).sizes[0][0] == 0
