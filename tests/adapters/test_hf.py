"""Hugging Face data sets and WebDataset tars, read and written by their own libraries."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import mrdc
from mrdc.data import open_images
from mrdc.memory.export import export
from mrdc.memory.stored import open_memory
from tests.conftest import jpeg, project

pytestmark = pytest.mark.filterwarnings("ignore")
needs_datasets = pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
needs_webdataset = pytest.mark.skipif(find_spec("webdataset") is None, reason="needs webdataset")


def memory() -> mrdc.ReplayMemory:
    made = mrdc.ReplayMemory("100kB", quality=50, class_names={0: "cat", 1: "dog"})
    made.add({label: [jpeg(10 * label + n) for n in range(4)] for label in (0, 1)})
    return made


@needs_datasets
def test_high_labels_have_a_column_of_names() -> None:
    """A ClassLabel would list every number up to the highest."""
    from mrdc.adapters.hf import to_hf

    made = mrdc.ReplayMemory("100kB", quality=50, class_names={2**30: "owl"})
    made.add({2**30: [jpeg(3)]})
    data = to_hf(made)
    assert (data[0]["label"], data[0]["class"]) == (2**30, "owl")


@needs_datasets
def test_there_and_back(tmp_path: Path) -> None:
    """Through a data set, its Parquet file and its folder, every file stays the same."""
    from mrdc.adapters.hf import from_hf, to_hf

    before = memory()
    data = to_hf(before)
    files = [before.encoded(index) for index in range(len(before))]
    assert data.features["label"].names == ["cat", "dog"]
    assert data[5]["image"].size == (32, 24)
    after = from_hf(data, "100kB")
    assert [after.encoded(index) for index in range(len(after))] == files
    assert (after.classes, after.sources(1)) == (["cat", "dog"], before.sources(1))
    data.to_parquet(str(tmp_path / "m.parquet"))
    data.save_to_disk(str(tmp_path / "saved"))
    for source in (tmp_path / "m.parquet", f"hf:{tmp_path / 'saved'}"):
        images = open_images(source)
        assert images.classes == ("cat", "dog")
        assert [photo.load() for photo in images.all_photos] == files


@needs_datasets
def test_a_data_set_is_planned_and_packed_from_its_files(tmp_path: Path) -> None:
    """Files, sizes, labels and names are those of the data set."""
    from mrdc.adapters.hf import Rows, to_hf

    before = memory()
    rows = Rows(to_hf(before))
    images = mrdc.open_stream(rows, test=rows, phases=1, order="sorted").train
    files = [before.encoded(index) for index in range(len(before))]
    assert [photo.load() for photo in images.all_photos] == files
    assert images.sizes == tuple([len(file) for file in part] for part in (files[:4], files[4:]))
    assert mrdc.plan(rows, "100kB", embed=project).images == 8
    packed = mrdc.pack(rows, "100kB", tmp_path / "m.mrdc", qualities=10, select="random_choice")
    assert packed.memory.class_names == {0: "cat", 1: "dog"}


@needs_datasets
def test_an_empty_memory(tmp_path: Path) -> None:
    """The data set has no rows, but the columns and the classes that the memory knows."""
    from mrdc.adapters.hf import to_hf

    empty = mrdc.ReplayMemory("100kB", class_names={0: "cat", 1: "dog"})
    for data in (to_hf(empty), to_hf(mrdc.ReplayMemory("100kB"))):
        assert (len(data), data.column_names) == (0, ["image", "label", "rank", "source"])
        data.to_parquet(str(tmp_path / "m.parquet"))
    assert to_hf(empty).features == to_hf(memory()).features


@needs_datasets
def test_other_columns_and_refusals() -> None:
    """Columns by name; a missing one is refused with the choices."""
    from mrdc.adapters.hf import Rows, from_hf, to_hf

    data = to_hf(memory()).rename_columns({"image": "photo", "label": "kind"})
    assert len(from_hf(data, "100kB", image="photo", label="kind", codec="jpeg", quality=10)) == 8
    for read in (lambda: from_hf(data, "100kB"), lambda: Rows(data)):
        with pytest.raises(mrdc.DataError, match="no column 'image'; it has photo, kind, rank, so"):
            read()


@needs_datasets
def test_a_row_without_an_image_is_named() -> None:
    import datasets

    from mrdc.adapters.hf import from_hf

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for image, why in ((None, "it is empty"), ({"path": "gone.jpg", "bytes": None}, "No such")):
        rows = {"image": [{"path": None, "bytes": jpeg(1)}, image], "label": [0, 0]}
        with pytest.raises(mrdc.ImageError, match=rf"row 1: no image in image \({why}"):
            from_hf(datasets.Dataset.from_dict(rows, features=features), "100kB")


@needs_webdataset
def test_webdataset_reads_an_export(tmp_path: Path) -> None:
    """Images, classes and details."""
    import webdataset

    memory().save(tmp_path / "m.mrdc")
    export(open_memory(tmp_path / "m.mrdc"), tmp_path / "m.tar")
    read: Any = webdataset.WebDataset(str(tmp_path / "m.tar"), shardshuffle=False)
    rows = list(read.decode("pil").to_tuple("jpg", "cls", "json"))
    assert [label for _, label, _ in rows] == [0] * 4 + [1] * 4
    assert (rows[0][0].size, rows[7][2]["class"]) == ((32, 24), "dog")


@needs_webdataset
def test_we_read_what_webdataset_writes(tmp_path: Path) -> None:
    """Shards of its writer, by a pattern."""
    import webdataset

    with webdataset.ShardWriter(str(tmp_path / "s-%04d.tar"), maxcount=3, verbose=0) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number:03d}", "jpg": jpeg(number), "cls": number % 2})
    images = open_images(tmp_path / "s-{0000..0001}.tar")
    assert images.classes == ("0", "1")
    assert [photo.load() for photo in images.photos[1]] == [jpeg(1), jpeg(3), jpeg(5)]
