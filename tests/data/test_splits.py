"""Training and test images in published and common layouts."""

import hashlib
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.exceptions import VisibleDeprecationWarning

from mrdc._utils.errors import DataError, UsageError
from mrdc.codec.image import Pixels
from mrdc.data import DATASETS, open_images
from mrdc.data.images import ImageSet, Splits
from mrdc.data.published import SUPERCLASSES
from mrdc.data.splits import open_splits
from mrdc.data.textures import textures_splits
from tests.conftest import jpeg, make_photos

# Superclass number of each class of CIFAR-100, in the order of the published files.
COARSE = [
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
]  # fmt: skip


def ids(images: ImageSet) -> list[list[str]]:
    return [[photo.id for photo in of_class] for of_class in images.photos]


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_registered_set_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, `plan` and `pack` find it."""
    made = Splits(*textures_splits(classes=2, images=3, test_images=1), held_out=False)
    monkeypatch.setitem(DATASETS, "mine", lambda: made)
    assert open_splits("mine") is made
    assert open_images("mine") is made.train
    with pytest.raises(DataError, match="or textures, mine, cifar100:FOLDER"):
        open_splits("others")


def test_textures_have_test_images_that_are_not_training_images() -> None:
    """The training split is the set of plan and pack; test images are numbered after it."""
    splits = open_splits("textures")
    assert not splits.held_out
    assert ids(splits.train) == ids(open_images("textures"))
    assert [len(of_class) for of_class in splits.test.photos] == [20] * 10
    assert splits.test.photos[3][0].id == "texture03/0060.jpg"
    train, test = textures_splits(classes=2, images=3, test_images=3)
    seen = {photo.load() for photo in train.all_photos}
    assert not seen & {photo.load() for photo in test.all_photos}


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation", "Test"])
def test_train_and_test_folders_are_both_read(name: str, tmp_path: Path) -> None:
    """Ids are relative to the split, as in `open_images`."""
    make_photos(tmp_path / "Train", classes=2, images=3)
    make_photos(tmp_path / name, classes=2, images=1)
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.test.classes == ("class0", "class1")
    assert ids(splits.train) == ids(open_images(tmp_path))
    assert ids(splits.test) == [["class0/00.jpg"], ["class1/00.jpg"]]
    assert splits.test.photos[1][0].load() == jpeg(100)
    assert (splits.held_out, splits.superclasses) == (False, None)


def test_test_is_preferred_to_val(tmp_path: Path) -> None:
    """Not if test has no labels, as in competitions."""
    make_photos(tmp_path / "train", classes=2, images=2)
    make_photos(tmp_path / "test", classes=2, images=3)
    make_photos(tmp_path / "val", classes=2, images=1)
    assert len(open_splits(tmp_path).test) == 6
    shutil.rmtree(tmp_path / "test")
    write(tmp_path / "test" / "00.jpg", jpeg(0))
    assert len(open_splits(tmp_path).test) == 2


def make_cub(root: Path) -> Path:
    """Two classes, with two training images and one test image each."""
    names = [f"{bird}/{number}.jpg" for bird in ("002.Finch", "001.Gull") for number in range(3)]
    for number, name in enumerate(names):
        write(root / "images" / name, jpeg(number))
    rows = list(enumerate(names, start=1))
    write(root / "images.txt", "".join(f"{n} {name}\n" for n, name in rows))
    write(root / "image_class_labels.txt", "".join(f"{n} {2 - (n > 3)}\n" for n, _ in rows))
    write(root / "train_test_split.txt", "".join(f"{n} {int(n % 3 != 0)}\n" for n, _ in rows))
    write(root / "classes.txt", "1 001.Gull\n2 002.Finch\n\n")
    (root / "parts").mkdir()
    return root


@pytest.mark.parametrize("parent", [False, True])
def test_cub_as_published(parent: bool, tmp_path: Path) -> None:
    """The published split comes from the lists next to images/; the parent folder works, too."""
    root = make_cub(tmp_path / "CUB_200_2011")
    splits = open_splits(tmp_path if parent else root)
    assert splits.train.classes == ("001.Gull", "002.Finch")
    assert ids(splits.train)[0] == ["001.Gull/0.jpg", "001.Gull/1.jpg"]
    assert ids(splits.test) == [["001.Gull/2.jpg"], ["002.Finch/2.jpg"]]
    assert splits.test.photos[0][0].load() == jpeg(5)
    assert splits.test.sizes[0] == [len(jpeg(5))]
    assert not splits.held_out


def make_tiny(root: Path) -> Path:
    for number, wnid in enumerate(("n02", "n01")):
        write(root / "train" / wnid / "images" / f"{wnid}_0.JPEG", jpeg(number))
        write(root / "train" / wnid / f"{wnid}_boxes.txt", "n 0 0 1 1")
        write(root / "val" / "images" / f"val_{number}.JPEG", jpeg(10 + number))
    write(root / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t0\nval_1.JPEG\tn01\t0\t0\n")
    write(root / "test" / "images" / "test_0.JPEG", jpeg(20))
    write(root / "wnids.txt", "n01\nn02\n")
    return root


def test_tiny_imagenet_as_published(tmp_path: Path) -> None:
    """Labels of val/ come from its list, or from class folders; test/ has no labels."""
    splits = open_splits(make_tiny(tmp_path))
    assert splits.train.classes == splits.test.classes == ("n01", "n02")
    assert ids(splits.train) == [["n01/images/n01_0.JPEG"], ["n02/images/n02_0.JPEG"]]
    assert ids(splits.test) == [["images/val_1.JPEG"], ["images/val_0.JPEG"]]
    assert splits.test.photos[0][0].load() == jpeg(11)
    shutil.rmtree(tmp_path / "val" / "images")
    for number, wnid in enumerate(("n02", "n01")):
        write(tmp_path / "val" / wnid / "images" / f"val_{number}.JPEG", jpeg(10 + number))
    assert ids(open_splits(tmp_path).test)[0] == ["n01/images/val_1.JPEG"]


@pytest.mark.parametrize("nesting", ["", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_folders(nesting: str, tmp_path: Path) -> None:
    """As torchvision expects them, or from Kaggle with an unlabelled test/."""
    make_photos(tmp_path / nesting / "train", classes=2, images=2)
    make_photos(tmp_path / nesting / "val", classes=2, images=1)
    write(tmp_path / nesting / "test" / "ILSVRC2012_test_00000001.JPEG", jpeg(0))
    splits = open_splits(tmp_path)
    assert (len(splits.train), len(splits.test)) == (4, 2)


def test_a_hundred_classes_of_imagenet(tmp_path: Path) -> None:
    """Drawn with numpy's legacy generator, consecutive, or ten of every hundred; sorted."""
    wnids = [f"n{number:08d}" for number in range(1000)]
    for part in ("train", "val"):
        for wnid in wnids:
            write(tmp_path / part / wnid / "0.JPEG", b"x")
    chosen = np.random.RandomState(1993).choice(wnids, 100, replace=False)
    tens = [wnid for number, wnid in enumerate(wnids) if number % 100 < 10]
    for kind, classes in (
        ("sub", sorted(chosen.tolist())),
        ("similar", wnids[:100]),
        ("dissimilar", tens),
    ):
        splits = open_splits(f"imagenet-{kind}:{tmp_path}")
        assert splits.train.classes == splits.test.classes == tuple(classes)
        assert ids(splits.test)[1] == [f"{classes[1]}/0.JPEG"]
    assert sorted(chosen)[:3] == ["n00000007", "n00000011", "n00000014"]


def test_without_a_test_split_a_share_of_each_class_is_held_out(photos: Path) -> None:
    """Each image is in one split, each split has at least one; the seed chooses, order is kept."""
    whole, splits = open_images(photos), open_splits(photos, holdout=0.25)
    assert splits.held_out
    assert splits.train.classes == splits.test.classes == whole.classes
    for all_of, train, test in zip(ids(whole), ids(splits.train), ids(splits.test), strict=True):
        assert len(test) == 2
        assert sorted(train + test) == all_of
        assert (train, test) == (sorted(train), sorted(test))
    assert ids(open_splits(photos, holdout=0.25).test) == ids(splits.test)
    assert ids(open_splits(photos, holdout=0.25, seed=1).test) != ids(splits.test)
    assert splits.test.photos[1][0].load() in {jpeg(100 + number) for number in range(8)}
    assert splits.test.sizes[1][0] == len(splits.test.photos[1][0].load())
    few, many = (open_splits(photos, holdout=share) for share in (0.01, 0.99))
    assert (len(few.test), len(many.train)) == (3, 3)


def test_images_of_a_csv_and_a_lone_train_folder_are_held_out(tmp_path: Path) -> None:
    """Missing files of a CSV are refused, or accepted on request."""
    make_photos(tmp_path / "one" / "train", classes=2, images=5)
    assert len(open_splits(tmp_path / "one").test) == 2
    rows = "".join(f"class{n % 2}/0{n // 2}.jpg,{n % 2}\n" for n in range(10))
    file = write(tmp_path / "one" / "train" / "list.csv", rows)
    splits = open_splits(file)
    assert (splits.held_out, len(splits.train), len(splits.test)) == (True, 8, 2)
    (file.parent / "class0" / "00.jpg").unlink()
    with pytest.raises(DataError, match="1 of 10 missing"):
        open_splits(file)
    assert len(open_splits(file, missing=True).train) == 8


class Dated:
    """Warns when it is unpickled, like the published files with some versions of numpy."""

    def __reduce__(self) -> tuple[Any, ...]:
        return warnings.warn, ("dated", VisibleDeprecationWarning)


def make_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> list[Pixels]:
    """Three training images and one test image per class, accepted by torchvision."""
    from torchvision.datasets import CIFAR100

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4 * len(names), 32, 32, 3), dtype=np.uint8)
    flat = images.transpose(0, 3, 1, 2).reshape(-1, 3072)
    labels = [number % len(names) for number in range(len(images))]
    first = 3 * len(names)
    files: dict[str, dict[str, Any]] = {
        "train": {"data": flat[:first], "fine_labels": labels[:first]},
        "test": {"data": flat[first:], "fine_labels": labels[first:]},
        "meta": {"fine_label_names": names},
    }
    sums = {}
    for name, content in files.items():
        data = pickle.dumps({**content, "more": Dated()})
        write(root / "cifar-100-python" / name, data)
        sums[name] = hashlib.md5(data).hexdigest()
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})
    return list(images)


def test_cifar100_through_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels as arrays, raw sizes, superclasses of the published table; also for `open_images`."""
    images = make_cifar(tmp_path, monkeypatch, ["bee", "apple", "crab"])
    for root in (tmp_path, tmp_path / "cifar-100-python"):
        splits = open_splits(f"cifar100:{root}")
        assert splits.train.classes == splits.test.classes == ("apple", "bee", "crab")
        assert splits.superclasses == (
            "fruit_and_vegetables",
            "insects",
            "non-insect_invertebrates",
        )
        assert ids(splits.train)[1] == ["train/00000", "train/00003", "train/00006"]
        assert splits.train.sizes[0] == [3072] * 3
        pixels = splits.train.photos[0][1].load()
        assert isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8
        assert np.array_equal(pixels, images[4])
        assert ids(splits.test)[2] == ["test/00002"]
        assert ids(open_images(f"cifar100:{root}")) == ids(splits.train)


def test_the_table_of_superclasses_is_the_published_one() -> None:
    """Twenty superclasses of five classes, numbered as in the files."""
    numbers = {
        name: number
        for number, (_, names) in enumerate(sorted(SUPERCLASSES.items()))
        for name in names
    }
    assert [numbers[name] for name in sorted(numbers)] == COARSE


def test_cifar100_that_is_damaged_or_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is unpickled; the message says what to unpack and where."""
    make_cifar(tmp_path, monkeypatch, ["apple", "bee"])
    write(tmp_path / "cifar-100-python" / "train", b"cos\nsystem\n(S'false'\ntR.")
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"missing, or not .* as published; unpack cifar-100-p"):
            open_splits(f"cifar100:{root}")


def both(root: Path, train: dict[str, int], test: dict[str, int]) -> Path:
    """Split folders with these numbers of images of each class."""
    for part, counts in (("train", train), ("test", test)):
        for name, count in counts.items():
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                write(root / part / name / f"{number}.jpg", jpeg(number))
    return root


def flat_val(root: Path) -> Path:
    make_photos(root / "train", classes=2, images=1)
    return write(root / "val" / "ILSVRC2012_val_00000001.JPEG", jpeg(0)).parent.parent


def cub_without(root: Path, name: str, text: str | None) -> Path:
    make_cub(root)
    (root / name).unlink() if text is None else write(root / name, text)
    return root


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "no", r"no: no such folder or file; give .*textures, cifar100:FOLDER"),
        (lambda root: "cifar100:", r"give .*cifar100:FOLDER, imagenet-sub:FOLDER"),
        (
            lambda root: both(root, {"a": 1, "b": 1}, {"b": 1}),
            "only the training split has a; both splits must have the same classes",
        ),
        (
            lambda root: both(root, {"z": 1}, {"z": 1, **dict.fromkeys("abcde", 1)}),
            "only the test split has a, b, c and 2 more",
        ),
        (lambda root: both(root, {"a": 0, "b": 1}, {"a": 1, "b": 1}), "no training image of a;"),
        (lambda root: both(root, {"a": 1, "b": 1}, {"a": 1, "b": 0}), "no test image of b; each"),
        (flat_val, "val: no class folders; val must have one folder for each class, like train"),
        (lambda root: cub_without(root, "classes.txt", None), r"classes\.txt: cannot be read"),
        (
            lambda root: cub_without(root, "classes.txt", "1 001.Gull\n"),
            r"image 1 of images\.txt needs a class",
        ),
        (
            lambda root: cub_without(root, "train_test_split.txt", "1 2\n"),
            r"image 1 of images\.txt needs .* 0 or 1",
        ),
        (
            lambda root: cub_without(root, "images.txt", "1 a.jpg\n1 b.jpg\n"),
            r"images\.txt: line 2 must be a unique 'number path', got '1 b\.jpg'",
        ),
        (lambda root: cub_without(root, "images.txt", "1\n"), "line 1 must be a unique 'number"),
        (
            lambda root: f"imagenet-sub:{both(root, {'a': 1}, {'a': 1})}",
            "train: imagenet-sub needs the 1000 classes of ImageNet, found 1",
        ),
        (lambda root: f"imagenet-sub:{root}/no", "no: no train/ and val/ in it; give imagenet-sub"),
        (
            lambda root: make_photos(root, classes=1, images=1),
            r"class 'class0' has 1 image\(s\); without a test split each class needs 2",
        ),
    ],
)
def test_refusals(make: Callable[[Path], str | Path], message: str, tmp_path: Path) -> None:
    """Each names the source and what is allowed."""
    with pytest.raises(DataError, match=message):
        open_splits(make(tmp_path))


@pytest.mark.parametrize("holdout", [0.0, 1.0, -0.1, float("nan")])
def test_bad_holdouts_and_seeds_are_refused(holdout: float, photos: Path) -> None:
    """Neither split may be empty, and numpy takes no negative seed."""
    with pytest.raises(UsageError, match="holdout must lie between 0 and 1, got"):
        open_splits(photos, holdout=holdout)
    with pytest.raises(UsageError, match="seed must be 0 or more, got -1"):
        open_splits(photos, seed=-1)
