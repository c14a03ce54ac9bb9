"""Images from Python: data sets of (image, label), and images by class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision.datasets import ImageFolder

import mrdc
from mrdc._utils.errors import DataError, ImageError, UsageError
from mrdc.codec.image import Pixels
from mrdc.data.datasets import given_images
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from tests.conftest import jpeg, make_photos, pixels, project


class Arrays(Dataset[tuple[Any, Any]]):
    """Images with labels that count up to `classes`, and how often each was read."""

    def __init__(self, images: list[Any], classes: int = 2):
        self.images, self.number = images, classes
        self.reads = [0] * len(images)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.reads[index] += 1
        return self.images[index], np.int64(index % self.number)


def contents(images: ImageSet) -> list[list[bytes]]:
    return [[photo.digest() for photo in of_class] for of_class in images.photos]


def test_an_image_folder_is_the_folder(photos: Path) -> None:
    """The same files, whatever transform the data set has for training."""
    found = given_images(ImageFolder(photos, transform=lambda image: 0))
    folder = mrdc.open_stream(photos, phases=1, order="sorted", holdout=0.1)
    given = mrdc.open_stream(ImageFolder(photos), phases=1, order="sorted", holdout=0.1)
    for one, other in ((given.train, folder.train), (given.test, folder.test)):
        assert (one.classes, one.sizes) == (other.classes, other.sizes)
        assert contents(one) == contents(other)
    assert found.classes == folder.classes
    plans = [
        mrdc.plan(source, "2/class", qualities=(50, 10), embed=project)
        for source in (photos, ImageFolder(photos))
    ]
    rows = [[candidate.to_json() for candidate in plan.candidates] for plan in plans]
    assert rows[0] == rows[1]


def test_samples_are_read_when_they_are_needed() -> None:
    """Once for their sizes, and again for their pixels."""
    data = Arrays([pixels(seed) for seed in range(5)])
    found = given_images(data)
    assert found.classes == ("0", "1")
    assert found.sizes == ([24 * 32 * 3] * 3, [24 * 32 * 3] * 2)
    assert data.reads == [1] * 5
    np.testing.assert_array_equal(found.photos[1][1].pixels(), pixels(3))
    assert data.reads == [1, 1, 1, 2, 1]


@pytest.mark.parametrize(
    ("image", "size"),
    [
        (Image.fromarray(pixels(0)), 24 * 32 * 3),
        (torch.from_numpy(pixels(0)).permute(2, 0, 1), 24 * 32 * 3),
        (jpeg(0), len(jpeg(0))),
        (Photo("a", lambda: jpeg(0)), len(jpeg(0))),
    ],
)
def test_images_of_every_kind(image: Any, size: int) -> None:
    """In data sets and by class; the bytes are those of a file, or of the pixels."""
    expected: Pixels = Photo("", lambda: jpeg(0)).pixels() if size != 24 * 32 * 3 else pixels(0)
    for source in (Arrays([image]), {"owl": [image]}, {0: (image,)}):
        found = given_images(source)
        assert found.sizes == ([size],)
        np.testing.assert_array_equal(found.photos[0][0].pixels(), expected)


def test_classes_are_in_the_order_of_their_labels(tmp_path: Path) -> None:
    """Numbers count as numbers, and names come after them."""
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    by_class = {10: [tmp_path / "a.jpg"], "owl": [jpeg(1)], 9: [jpeg(2), jpeg(3)]}
    found = given_images(by_class)
    assert found.classes == ("9", "10", "owl")
    assert [[photo.id for photo in photos] for photos in found.photos] == [
        ["9/0", "9/1"],
        [str(tmp_path / "a.jpg")],
        ["owl/0"],
    ]
    assert found.sizes[1] == [len(jpeg(0))]
    assert given_images(found) is found


def test_subsets_have_the_names_of_their_data_set(photos: Path) -> None:
    """Also subsets of subsets; names that two classes share are not used."""
    whole = ImageFolder(photos)
    part = Subset(Subset(whole, range(8, 24)), [0, 15, 1])
    found = given_images(part)
    assert found.classes == tuple(whole.classes[1:])
    assert [len(of_class) for of_class in found.photos] == [2, 1]
    whole.classes = ["owl"] * 3
    assert given_images(part).classes == ("1", "2")


def test_data_sets_that_follow_one_another(photos: Path) -> None:
    """Each image is found in its own, also in parts of parts; names agree, or are missing."""
    whole = ImageFolder(photos)
    parts = [Subset(whole, range(8, 24)), Arrays([pixels(seed) for seed in range(3)])]
    found = given_images(ConcatDataset([ConcatDataset(parts), Subset(whole, [0, 9])]))
    assert found.classes == tuple(whole.classes)
    paths = [path for path, _ in whole.samples]
    names = [[photo.id for photo in of_class] for of_class in found.photos]
    assert names == [["0/0", "0/1", paths[0]], [*paths[8:16], "1/8", paths[9]], paths[16:24]]
    assert found.photos[1][8].digest() == Photo("", lambda: pixels(1)).digest()
    other = ImageFolder(photos)
    other.classes = ["owl", *other.classes[1:]]
    message = f"label 0 is class '{whole.classes[0]}' in one data set and 'owl' in another: give"
    with pytest.raises(UsageError, match=message):
        given_images(ConcatDataset([whole, other]))


def test_classes_that_share_a_label(photos: Path) -> None:
    """Have its number as their name."""
    data = ImageFolder(photos, target_transform=lambda label: label // 2)
    assert given_images(data).classes == ("0", data.classes[2])


def test_transforms_of_labels_are_applied(photos: Path) -> None:
    """As training sees them; a class of files keeps its name."""
    data = ImageFolder(photos, target_transform=lambda label: (label + 1) % 3)
    found = given_images(data)
    assert found.classes == tuple(data.classes[n] for n in (2, 0, 1))
    assert found.photos[0][0].id == data.samples[16][0]


def test_a_packed_data_set_keeps_its_labels(photos: Path, tmp_path: Path) -> None:
    """Labels that a memory would number otherwise are refused."""
    data = ImageFolder(photos)
    packed = mrdc.pack(data, "20kB", tmp_path / "a.mrdc", qualities=50, select="random_choice")
    assert packed.memory.class_names == dict(enumerate(data.classes))
    for source, shown in ((Subset(data, [9, 17]), "1, 2"), ({3: [jpeg(0)]}, "3")):
        with pytest.raises(UsageError, match=rf"labels {shown} are not 0 to .; Replay and"):
            mrdc.pack(source, "20kB", tmp_path / "b.mrdc", qualities=50)
    named = {"owl": [jpeg(0)], "ant": [jpeg(1)]}
    packed = mrdc.pack(named, "20kB", tmp_path / "b.mrdc", qualities=50, select="random_choice")
    assert packed.memory.class_names == {0: "ant", 1: "owl"}


def test_a_stream_of_two_sources(tmp_path: Path) -> None:
    """Test images may be anywhere, and need the same classes."""
    train, test = (make_photos(tmp_path / split, 3, 4) for split in ("a", "b"))
    for source, other in ((train, ImageFolder(test)), (ImageFolder(train), test), (train, test)):
        stream = mrdc.open_stream(source, test=other, phases=1, order="sorted")
        assert not stream.held_out
        assert [len(stream.train), len(stream.test)] == [12, 12]
        assert contents(stream.train) == contents(stream.test)
    with pytest.raises(DataError, match="only the training split has"):
        mrdc.open_stream(train, test={"owl": [jpeg(0)]})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Arrays([torch.rand(3, 8, 8)]), r"sample 0: got float32 tensor; pass a path"),
        ([1], r"sample 0: got int; give \(image, label\)"),
        (5, "got int; pass a path, a data set of"),
        (iter(()), "got tuple_iterator; pass a path"),
        ({0: "a.jpg"}, "images of class 0 are one str: pass a list"),
        ({0.5: [jpeg(0)]}, "label 0.5 must be a whole number or a name"),
        ({0: [jpeg(0), 3]}, "image 1 of class 0: got int"),
        ({0: [jpeg(0)], "owl": []}, "class 'owl' has no image"),
        ({}, "dict: no readable image"),
        (Arrays([]), "Arrays: no readable image"),
    ],
)
def test_refusals(source: Any, message: str) -> None:
    """Wrong sources are explained before anything is embedded."""
    with pytest.raises((UsageError, DataError), match=message):
        mrdc.plan(source, "20kB", embed=project)


def test_a_transform_is_refused_where_it_cannot_be_avoided() -> None:
    """It would be stored, random crops and all."""
    data = Arrays([pixels(0)])
    data.transform = lambda image: image  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="Arrays has a transform, but a memory stores images as"):
        given_images(data)
    with pytest.raises(UsageError, match="columns are those of a CSV"):
        given_images({0: [jpeg(0)]}, columns=("image", "label"))


def test_unreadable_images_are_refused_or_skipped(tmp_path: Path) -> None:
    """As in a folder."""
    good: list[Any] = [jpeg(n) for n in range(4)]
    source = {"ant": [*good, tmp_path / "none.jpg", b"text"]}
    with pytest.raises(ImageError, match=r"none\.jpg: cannot be read"):
        mrdc.plan(source, "20kB", embed=project)
    assert len(mrdc.plan(source, "20kB", embed=project, skip_bad=True).skipped) == 2
