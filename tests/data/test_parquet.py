"""Images in Parquet and Arrow files; these tests need pyarrow."""

import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mrdc._utils.errors import DataError, ImageError, UsageError
from mrdc.data import open_images, open_splits, parquet
from tests.conftest import jpeg

LABELS = [1, 0, 1, 2, 0, 1]
FILES = [jpeg(number) for number in range(6)]
NAMES = ["cat", "dog", "eel", "fox"]


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it."""
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"needs pyarrow: pip install 'mrdc\[parquet\]'"):
        open_images(tmp_path / "x.parquet")


def table(**columns: Any) -> Any:
    """A table of images and classes, with some columns replaced."""
    arrow = pytest.importorskip("pyarrow")
    images = [{"bytes": data, "path": None} for data in FILES]
    kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
    usual = {"image": arrow.array(images, kind), "label": LABELS}
    return arrow.table({name: column for name, column in (usual | columns).items() if column})


def named(made: Any, label: str = "label") -> Any:
    """The same table with the column features that `datasets` records."""
    features = {"image": {"_type": "Image"}, label: {"_type": "ClassLabel", "names": NAMES}}
    return made.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def write(path: Path, made: Any, rows: int = 2) -> Path:
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(made, path, row_group_size=rows)
        return path
    arrow = pytest.importorskip("pyarrow")
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, made.schema) as stream:
        stream.write_table(made, max_chunksize=rows)
    return path


def test_a_test_split_without_classes_is_passed_over(tmp_path: Path) -> None:
    """As on the Hub, where classes of competitions are -1."""
    for name, labels in (("train", LABELS), ("validation", LABELS), ("test", [-1] * 6)):
        write(tmp_path / f"{name}-00000-of-00001.parquet", table(label=labels))
    splits = open_splits(tmp_path)
    assert (len(splits.train), len(splits.test), splits.held_out) == (6, 6, False)
    assert "validation" in splits.test.photos[0][0].id
    (tmp_path / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match="row 0 has no class, but -1"):
        open_splits(tmp_path)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_the_format_of_the_hub(ending: str, tmp_path: Path) -> None:
    """Structs of bytes, classes named in the schema; classes without an image are left out."""
    images = open_images(write(tmp_path / f"x.{ending}", named(table())))
    assert images.classes == ("cat", "dog", "eel")
    assert [photo.load() for photo in images.photos[1]] == [FILES[0], FILES[2], FILES[5]]
    assert images.photos[2][0].id == f"x.{ending}/3"
    assert images.sizes[0] == [len(FILES[1]), len(FILES[4])]
    again = pickle.loads(pickle.dumps(images.photos[0][1]))
    assert again.load() == FILES[4]


@pytest.mark.parametrize(
    ("columns", "classes"),
    [
        ({}, ("0", "1", "2")),
        ({"label": list("bcabca")}, ("a", "b", "c")),
        ({"image": FILES}, ("0", "1", "2")),
        ({"label": None, "class": LABELS}, ("0", "1", "2")),
    ],
)
def test_tables_without_names(
    columns: dict[str, Any], classes: tuple[str, ...], tmp_path: Path
) -> None:
    """Plain numbers, text, and images without a struct."""
    images = open_images(write(tmp_path / "x.parquet", table(**columns)))
    assert images.classes == classes
    assert len(images) == 6


def test_other_columns_by_name(tmp_path: Path) -> None:
    """If several columns fit, the message asks for names."""
    path = write(tmp_path / "x.parquet", table(thumb=FILES, target=LABELS[::-1]))
    with pytest.raises(DataError, match="image, thumb may all hold images; its columns are image,"):
        open_images(path)
    images = open_images(path, columns=("thumb", "target"))
    assert [photo.load() for photo in images.photos[2]] == [FILES[2]]


def test_images_next_to_the_file(tmp_path: Path) -> None:
    """A path instead of bytes, as `datasets` keeps local files."""
    arrow = pytest.importorskip("pyarrow")
    (tmp_path / "a.jpg").write_bytes(FILES[0])
    kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
    linked = arrow.array([{"bytes": None, "path": "a.jpg"}] * 6, kind)
    images = open_images(write(tmp_path / "x.parquet", table(image=linked)))
    assert images.photos[0][0].load() == FILES[0]
    assert images.sizes[0][0] == len(FILES[0])


def test_shards_of_a_split_share_their_names(tmp_path: Path) -> None:
    """Classes stay in the order of the schema, also if a shard has only some of them."""
    made = named(table())
    write(tmp_path / "train-0.parquet", made.slice(0, 3))
    write(tmp_path / "train-1.parquet", made.slice(3))
    write(tmp_path / "test-0.parquet", made)
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.test.classes == ("cat", "dog", "eel")
    assert [photo.id for photo in splits.train.photos[0]] == [
        "train-0.parquet/1",
        "train-1.parquet/1",
    ]


def test_a_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its footer, which may be far away in a store, is read once for the schema and the rows."""
    pq = pytest.importorskip("pyarrow.parquet")
    opened = Mock(wraps=pq.ParquetFile)
    monkeypatch.setattr(pq, "ParquetFile", opened)
    open_images(write(tmp_path / "x.parquet", table()))
    opened.assert_called_once()


def test_few_row_groups_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number of bytes, but at least one; images can be read in any order."""
    groups = parquet.Groups(most=len(FILES[0]) + len(FILES[1]) + 64)
    monkeypatch.setattr(parquet, "GROUPS", groups)
    images = open_images(write(tmp_path / "x.parquet", table()))
    for label in (2, 0, 1, 0):
        wanted = [file for file, given in zip(FILES, LABELS, strict=True) if given == label]
        assert [photo.load() for photo in images.photos[label]] == wanted
        assert len(groups._kept) == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": None}, "no column holds images; its columns are label: pass --columns"),
        ({"label": None}, "no column holds classes; its columns are image"),
        ({"label": [1, None, 1, 1, 1, 1]}, "row 1 has no class, but None"),
        ({"label": [-1] * 6}, "row 0 has no class, but -1"),
        ({"label": [[1]] * 6}, r"row 0 has the class \[1\]"),
        ({"image": [None, *FILES[1:]]}, "row 0 has no image"),
    ],
)
def test_tables_that_are_refused(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The message names the row or the columns."""
    with pytest.raises(DataError, match=message):
        open_images(write(tmp_path / "x.parquet", table(**columns)))


def test_a_class_without_a_name(tmp_path: Path) -> None:
    """The schema must name all of them."""
    with pytest.raises(DataError, match="row 0 has the class 9, but the file names 4 classes"):
        open_images(write(tmp_path / "x.parquet", named(table(label=[9] * 6))))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("image", "kind"), "no column 'kind'; it has image, label"),
        (("label", "label"), "column 'label' holds int64, not the bytes of images"),
    ],
)
def test_columns_that_do_not_fit(columns: tuple[str, str], message: str, tmp_path: Path) -> None:
    """By name."""
    with pytest.raises(DataError, match=message):
        open_images(write(tmp_path / "x.parquet", table()), columns=columns)


def test_a_row_group_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to write smaller ones."""
    monkeypatch.setattr(parquet, "MAX_GROUP", 3000)
    with pytest.raises(DataError, match=r"in one row group, .* a row_group_size of about 100"):
        open_images(write(tmp_path / "x.parquet", table(), rows=6))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "spoil", [lambda data: data[:300], lambda data: b"", lambda data: b"x" * 99]
)
def test_damaged_files(spoil: Callable[[bytes], bytes], ending: str, tmp_path: Path) -> None:
    """One message that names the file."""
    path = write(tmp_path / f"x.{ending}", table())
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DataError, match=rf"x\.{ending}: "):
        open_images(path)


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    """Loading an image reports it."""
    path = write(tmp_path / "gone.parquet", table())
    images = open_images(path)
    path.unlink()
    with pytest.raises(ImageError, match=r"gone\.parquet: cannot be read"):
        images.photos[0][0].load()


def save_to_disk(root: Path, made: Any) -> None:
    """Write the files of `datasets.save_to_disk` that we read."""
    root.mkdir()
    write(root / "data-00000-of-00001.arrow", made)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (root / "state.json").write_text(json.dumps(state))


def test_a_saved_data_set(tmp_path: Path) -> None:
    """It may have splits or not."""
    save_to_disk(tmp_path / "one", named(table()))
    for source in (f"hf:{tmp_path / 'one'}", tmp_path / "one"):
        images = open_images(source)
        assert images.classes == ("cat", "dog", "eel")
        assert images.photos[2][0].load() == FILES[3]
    both = tmp_path / "both"
    both.mkdir()
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    save_to_disk(both / "train", named(table()))
    save_to_disk(both / "test", named(table()).slice(0, 4))
    splits = open_splits(f"hf:{both}")
    assert (len(splits.train), len(splits.test), splits.held_out) == (6, 4, False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no data set in it; give hf: a folder that save_to_disk wrote"),
        ({"state.json": "[" * 5000}, r"state\.json: cannot be read"),
        ({"state.json": "{}"}, r"state\.json: names no data files"),
        ({"state.json": '{"_data_files": [{"filename": "../a"}]}'}, "a: no such file, but state.j"),
        ({"dataset_dict.json": '{"splits": 3}'}, "names no splits"),
        ({"dataset_dict.json": '{"splits": ["a", "b"]}'}, "no split train among a, b; give one"),
    ],
)
def test_saved_data_sets_that_are_refused(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    """One message; no file outside the folder is read."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        open_images(f"hf:{tmp_path}")


def test_a_forked_process_does_not_wait_for_a_lock(tmp_path: Path) -> None:
    """Another thread may have held it when the process was forked."""
    images = open_images(write(tmp_path / "x.parquet", table()))
    with parquet.GROUPS._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(int(images.all_photos[0].load() not in FILES))
    assert os.waitpid(child, 0)[1] == 0
