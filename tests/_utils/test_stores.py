"""Object stores: paths, listings, parts of objects, and objects that appear whole."""

import pickle
import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from mrdc._utils import stores
from mrdc._utils.errors import MissingError, OutputError, StoreError, UsageError
from mrdc._utils.files import whole_file
from mrdc._utils.store_path import StorePath, as_path
from tests.stores import break_store, objects
from tests.stores import bucket as bucket


def put(url: str, data: bytes = b"0123456789") -> str:
    with whole_file(as_path(url)) as file:
        file.write(data)
    return url


def test_local_paths_stay_local(tmp_path: Path) -> None:
    """Only text with a scheme is a URL; its path keeps both slashes."""
    for text in ("photos", "/a/b", "hf:folder", "cifar100:x", "a:/b", str(tmp_path)):
        assert type(as_path(text)) is type(Path(text)) and not stores.is_url(text)
    path = as_path("s3://bucket/a/b.tar")
    assert isinstance(path, StorePath) and str(path) == "s3://bucket/a/b.tar"
    assert (path.name, path.suffix, str(path.parent)) == ("b.tar", ".tar", "s3://bucket/a")
    assert str(path.parent.parent.parent / "c") == "s3://bucket/c"
    assert pickle.loads(pickle.dumps(path)) == path and as_path(path) is path


def test_a_listing_answers_for_everything_below(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders, files and sizes; names that cannot be paths are left out."""
    for name in ("a/1.jpg", "a/b/2.jpg", "a/.x", "top.csv", "a//3.jpg", "a/../4.jpg"):
        MemoryFileSystem().pipe_file(f"{bucket}/data/{name}", name.encode())
    put(f"{bucket}/data2/5.jpg")
    root = StorePath(f"{bucket}/data").listed()
    break_store(monkeypatch, "info")
    break_store(monkeypatch, "find")
    assert sorted(one.name for one in root.iterdir()) == ["a", "top.csv"]
    assert (root / "a").is_dir() and not (root / "a").is_file()
    assert (root / "a" / "b" / "2.jpg").stat().st_size == len("a/b/2.jpg")
    assert not (root / "b").exists() and not (root / "top.csv").is_dir()
    assert [(at, names, files) for at, names, files in (root / "a").steps()] == [
        (f"{bucket}/data/a", ["b"], {"1.jpg": 7, ".x": 4}),
        (f"{bucket}/data/a/b", [], {"2.jpg": 9}),
    ]
    with pytest.raises(StoreError, match="Connection reset by peer"):
        StorePath(f"{bucket}/data2").is_dir()


def test_parts_of_an_object(bucket: str) -> None:
    """Read as a range, as a file and as text; a range beyond the end is an error."""
    url = put(f"{bucket}/x")
    assert stores.read(url, 2, 5) == b"234" and stores.read(url, 5, 5) == b""
    with as_path(url).open("rb") as file:
        assert (file.seek(-3, 2), file.read(2), file.seek(1), file.read()) == (
            7,
            b"78",
            1,
            b"123456789",
        )
        assert (file.seek(20), file.read(3), file.tell()) == (20, b"", 20)  # like a local file
        assert (file.seek(8), file.read(3)) == (8, b"89")
    assert as_path(url).read_text() == "0123456789"
    with pytest.raises(StoreError, match="x: has changed since it was opened"):
        stores.read(url, 8, 20)
    assert stores.read_whole(url, 10) == b"0123456789"
    for size in (9, 11):
        with pytest.raises(StoreError, match="x: has changed since it was listed; run"):
            stores.read_whole(url, size)
    with pytest.raises(FileNotFoundError, match="no such object"):
        stores.read(f"{bucket}/y", 0, 1)


def test_an_object_appears_whole_or_not_at_all(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write leaves nothing; a file that the store refuses is kept locally."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = as_path(f"{bucket}/x")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        assert objects() == []
        1 / 0  # noqa: B018
    assert objects() == [] and not list(tmp_path.iterdir())
    put(str(path), b"old")
    break_store(monkeypatch, "pipe_file")
    with pytest.raises(OutputError, match=r"Connection reset.*; it is kept as .*/x$") as caught:
        put(str(path), b"new")
    assert stores.read(str(path), 0, 3) == b"old"
    assert Path(str(caught.value).rpartition(" ")[2]).read_bytes() == b"new"


def test_the_last_file_of_a_folder_comes_last(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not uploaded if another upload has failed."""
    names = [str(number) for number in range(50)]
    for name in names:
        (tmp_path / name).write_text(name)
    break_store(monkeypatch, "pipe_file", after=48)
    with pytest.raises(StoreError, match="Connection reset"):
        stores.put_files(tmp_path, names, bucket)
    assert len(objects()) == 48 and "/bucket/49" not in objects()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hdfs://a/b", "unknown scheme hdfs://; give s3://, gs://, memory:// or a local path"),
        ("file:///a", "unknown scheme file://"),
    ],
)
def test_unknown_schemes(url: str, message: str) -> None:
    """The message lists the known schemes."""
    with pytest.raises(UsageError, match=message):
        as_path(url).exists()


@pytest.mark.parametrize(
    ("scheme", "module", "message"),
    [
        ("s3", "s3fs", r"s3:// needs s3fs, which is missing: pip install 'mrdc\[s3\]'"),
        ("gs", "gcsfs", r"gs:// needs gcsfs, which is missing: pip install 'mrdc\[gs\]'"),
        ("memory", "fsspec", "memory:// needs fsspec, which is missing: pip install fsspec"),
    ],
)
def test_missing_packages(
    scheme: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message gives the command that installs them."""
    monkeypatch.setitem(sys.modules, module, None)
    stores._store.cache_clear()
    with pytest.raises(MissingError, match=message):
        stores.find(f"{scheme}://bucket/x")


def test_a_url_without_a_name(bucket: str) -> None:
    """Such a URL cannot be written to."""
    for url in (bucket, f"{bucket}/"):
        with pytest.raises(OutputError, match="names no object; write it as memory://bucket/name"):
            stores.check_bucket(url)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("Forbidden"), r"x: access denied \(Forbidden\); check the credentials"),
        (RuntimeError("Unable to locate credentials"), "no valid credentials"),
        (TimeoutError(), r"the store cannot be used \(TimeoutError: TimeoutError\)"),
    ],
)
def test_reasons(
    error: Exception, message: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each store's own exceptions become one line."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.cat_file", fail)
    with pytest.raises(StoreError, match=message):
        stores.read(f"{bucket}/x", 0, 1)
