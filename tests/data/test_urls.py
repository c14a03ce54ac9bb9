"""Sources in an object store give the same images as the same files on disk."""

import shutil
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mrdc._utils.errors import DataError, ImageError, StoreError
from mrdc.data import check_source, open_images, open_splits
from mrdc.data.images import ImageSet
from tests.conftest import jpeg, make_photos
from tests.data.test_parquet import named, table, write
from tests.data.test_tar import make_tar
from tests.stores import break_store, upload
from tests.stores import bucket as bucket


def contents(images: ImageSet) -> list[object]:
    """Everything but the paths."""
    photos = [[(photo.id, photo.load()) for photo in of] for of in images.photos]
    return [images.classes, photos, images.sizes, images.ignored]


def same(local: Path, url: str) -> None:
    """Check that images at a URL equal those at a path."""
    check_source(url)
    assert contents(open_images(url)) == contents(open_images(local))


def test_a_folder_of_classes(photos: Path, bucket: str) -> None:
    """With sub-folders, ignored files and hidden ones, in the same order."""
    (photos / "class0" / "more").mkdir()
    shutil.copy(photos / "class0" / "00.jpg", photos / "class0" / "more" / "a b#?.jpg")
    (photos / "class1" / "notes.txt").write_text("x")
    (photos / ".hidden").write_text("x")
    same(photos, upload(photos, f"{bucket}/photos"))
    same(photos, f"{bucket}/photos/")


def test_splits(photos: Path, tmp_path: Path, bucket: str) -> None:
    """Folders of train and test, and held-out images."""
    shutil.copytree(photos, tmp_path / "both" / "train")
    make_photos(tmp_path / "both" / "test", classes=3, images=2)
    for source in (photos, tmp_path / "both"):
        here, there = open_splits(source), open_splits(upload(source, f"{bucket}/{source.name}"))
        assert contents(here.train) == contents(there.train)
        assert contents(here.test) == contents(there.test)
        assert here.held_out == there.held_out


def test_tars(tmp_path: Path, bucket: str) -> None:
    """A single tar, a pattern, braces, and a folder of shards."""
    for number in range(3):
        members = {f"{n}.jpg": jpeg(10 * number + n) for n in range(4)}
        classes = {f"{n}.cls": str(n % 2).encode() for n in range(4)}
        (tmp_path / "s").mkdir(exist_ok=True)
        make_tar(tmp_path / "s" / f"x-{number}.tar", members | classes)
    upload(tmp_path / "s", f"{bucket}/s")
    for name in ("s/x-1.tar", "s/x-*.tar", "s/x-{0..2}.tar", "s"):
        same(tmp_path / name, f"{bucket}/{name}")
    with pytest.raises(DataError, match=r"s/x-3\.tar"):
        open_images(f"{bucket}/s/x-{{0..3}}.tar")
    with pytest.raises(DataError, match="no file matches"):
        open_images(f"{bucket}/s/y*.tar")


def test_parquet(tmp_path: Path, bucket: str) -> None:
    """Row groups are read when they are needed; Arrow files, which are mapped, are refused."""
    path = write(tmp_path / "x.parquet", named(table()))
    same(path, upload(path, f"{bucket}/x.parquet"))
    arrow = write(tmp_path / "x.arrow", named(table()))
    with pytest.raises(DataError, match="Arrow files are mapped, so they must be local"):
        open_images(upload(arrow, f"{bucket}/x.arrow"))


def test_lists(photos: Path, bucket: str) -> None:
    """A local or remote list, of paths beside it or of URLs; missing files are named."""
    upload(photos, f"{bucket}/photos")
    (photos / "x.csv").write_text("class0/00.jpg,a\nclass1/01.jpg,b\n")
    same(photos / "x.csv", upload(photos / "x.csv", f"{bucket}/photos/x.csv"))
    urls = photos / "urls.csv"
    urls.write_text(f"path,label\n{bucket}/photos/class0/00.jpg,a\n{bucket}/photos/no.jpg,b\n")
    with pytest.raises(DataError, match=r"line 3: no such file 'memory://bucket/photos/no.jpg'"):
        open_images(urls)
    found = open_images(urls, missing=True)
    assert found.photos[0][0].load() == (photos / "class0" / "00.jpg").read_bytes()
    with pytest.raises(ImageError, match=r"no\.jpg: cannot be read \(no such object\)"):
        found.photos[1][0].load()


def test_what_is_refused(photos: Path, bucket: str) -> None:
    """A missing source, scenes with boxes, and a folder without classes."""
    with pytest.raises(DataError, match="memory://bucket/none: no such folder or file; give"):
        check_source(f"{bucket}/none")
    with pytest.raises(DataError, match="memory://bucket/none: no such folder or file; give"):
        open_images(f"{bucket}/none")
    (photos / "train.json").write_text("{}")
    (photos / "class0").rename(photos / "images")
    with pytest.raises(DataError, match="scenes with boxes must be local"):
        open_images(upload(photos, f"{bucket}/scenes"))
    upload(photos / "images", f"{bucket}/flat")
    with pytest.raises(DataError, match="has 8 images but no class folders"):
        open_images(f"{bucket}/flat")


def test_a_lost_connection_is_not_a_bad_image(
    photos: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing object is."""
    images = open_images(upload(photos, f"{bucket}/photos"))
    first, second = images.photos[0][:2]
    with monkeypatch.context() as patch:
        break_store(patch, "cat_file")
        with pytest.raises(StoreError, match=r"class0/00\.jpg: .*Connection reset by peer"):
            first.load()
    del MemoryFileSystem.store["/bucket/photos/class0/01.jpg"]
    with pytest.raises(ImageError, match="no such object"):
        second.load()
