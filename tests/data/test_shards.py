"""Patterns, folders of shards, lists with other columns, and splits in unusual places."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mrdc._utils.errors import DataError
from mrdc.data import check_source, open_images, open_splits
from mrdc.data.shards import expand
from tests.conftest import jpeg, make_photos
from tests.data.test_tar import make_tar


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("s-{0008..0010}.tar", ["s-0008.tar", "s-0009.tar", "s-0010.tar"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{3..3}", ["3"]),
        ("x-{a,{b,c}}", ["x-a", "x-b", "x-c"]),
        ("{a,b-{1..2}}.tar", ["a.tar", "b-1.tar", "b-2.tar"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    """Lists and ranges, with their leading zeros; nested ones, too."""
    assert expand(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{0..999999}", "names more than 100,000 files"),
        ("{0..999}{0..999}", "names more than 100,000 files"),
        ("{a}", r"\{a\} must be a list such as \{a,b\} or a range"),
        ("{5..2}", r"\{5\.\.2\} must be a list"),
    ],
)
def test_braces_that_are_refused(pattern: str, message: str) -> None:
    """Too many names, and what is neither a list nor a range."""
    with pytest.raises(DataError, match=message):
        expand(pattern)


def shard(path: Path, numbers: range, label: str) -> Path:
    """A tar of some images of one class."""
    members = {f"{n}.jpg": jpeg(n) for n in numbers} | {f"{n}.cls": label.encode() for n in numbers}
    return make_tar(path, members)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(3):
        shard(tmp_path / f"s-{number:02d}.tar", range(2 * number, 2 * number + 2), f"{number % 2}")
    return tmp_path


@pytest.mark.parametrize("pattern", ["s-*.tar", "s-{00..02}.tar", "s-0[0-2].tar", "**/*.tar", ""])
def test_shards_are_one_source(pattern: str, shards: Path) -> None:
    """Named by a pattern, or by their folder; ids begin with the shard."""
    source = shards / pattern if pattern else shards
    check_source(source)
    images = open_images(source)
    assert images.classes == ("0", "1")
    assert [photo.id for photo in images.photos[0]] == [
        "s-00.tar/0.jpg",
        "s-00.tar/1.jpg",
        "s-02.tar/4.jpg",
        "s-02.tar/5.jpg",
    ]
    assert [photo.load() for photo in images.photos[1]] == [jpeg(2), jpeg(3)]
    assert len(open_splits(source).test) == 2


def test_shards_with_splits_in_their_names(tmp_path: Path) -> None:
    """As on the Hub: train-00000-of-00001; also in data/."""
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "README.md").write_text("about")
    for split, count in (("train", 3), ("test", 2)):
        for label in "ab":
            shard(data / f"{split}-{label}.tar", range(count), label)
    for source in (tmp_path, data):
        assert len(open_images(source)) == 6
        splits = open_splits(source)
        assert (len(splits.train), len(splits.test), splits.held_out) == (6, 4, False)
    shard(data / "extra.tar", range(2), "a")
    with pytest.raises(DataError, match=r"train files, but with extra\.tar beside them; name what"):
        open_images(data)


def test_a_file_may_be_called_like_a_pattern(tmp_path: Path) -> None:
    """An existing file takes precedence."""
    assert len(open_images(shard(tmp_path / "s[1].tar", range(2), "a"))) == 2


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("t-*.tar", r"t-\*\.tar: no file matches"),
        ("s-{00..05}.tar", r"no such file: .*s-03\.tar, .*s-04\.tar, .*s-05\.tar"),
        ("*", r"patterns name \.tar, \.parquet, \.arrow files; got a\.txt"),
    ],
)
def test_patterns_that_are_refused(pattern: str, message: str, shards: Path) -> None:
    """No match, a missing file, another kind of file."""
    (shards / "a.txt").write_text("hello")
    for look in (check_source, open_images, open_splits):
        with pytest.raises(DataError, match=message):
            look(shards / pattern)


def test_columns_of_a_csv(photos: Path) -> None:
    """Any two columns of a CSV with a heading."""
    (photos / "x.csv").write_text("id,species,file\n1,cat,class0/00.jpg\n2,dog,class1/01.jpg\n")
    images = open_images(photos / "x.csv", columns=("file", "species"))
    assert images.classes == ("cat", "dog")
    assert images.photos[1][0].load() == jpeg(101)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,species,path\n", "no single column 'file'; its heading has id, species, path"),
        ("file,file,species\n", "no single column 'file'"),
        ("file,species\na.jpg\n", "line 2 must be file,species, got 'a.jpg'"),
        ("file,species\n", "no row of file,species"),
        ("", "its heading has nothing"),
    ],
)
def test_columns_that_are_not_there(text: str, message: str, tmp_path: Path) -> None:
    """The message lists the file's columns."""
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_images(tmp_path / "x.csv", columns=("file", "species"))


def in_a_folder(root: Path) -> None:
    make_photos(root / "archive" / "photos" / "train", classes=2, images=3)
    make_photos(root / "archive" / "photos" / "test", classes=2, images=2)


def in_the_classes(root: Path) -> None:
    for name in ("a", "b"):
        for split, count in (("train", 3), ("val", 2)):
            (root / name / split).mkdir(parents=True)
            for number in range(count):
                (root / name / split / f"{number}.jpg").write_bytes(jpeg(number))


@pytest.mark.parametrize("make", [in_a_folder, in_the_classes])
def test_splits_in_unusual_places(make: Callable[[Path], None], tmp_path: Path) -> None:
    """Below folders that contain nothing else, or in every class folder."""
    make(tmp_path)
    assert len(open_images(tmp_path)) == 6
    splits = open_splits(tmp_path)
    assert (len(splits.train), len(splits.test), splits.held_out) == (6, 4, False)


def test_a_class_on_its_own_is_not_a_wrapper(tmp_path: Path) -> None:
    """One class folder with a link to its parent, and one with an image beside it."""
    make_photos(tmp_path / "more", classes=1, images=2)
    (tmp_path / "more" / "class0" / "loop").symlink_to(tmp_path / "more")
    assert open_images(tmp_path / "more").classes == ("class0",)
    in_a_folder(tmp_path / "two")
    (tmp_path / "two" / "loose.jpg").write_bytes(jpeg(0))
    assert open_images(tmp_path / "two").classes == ("archive",)
