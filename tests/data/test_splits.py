"""Training and test images in the layouts that people have."""

import hashlib
import pickle
import subprocess
import sys
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
from mrdc.data.cifar import SUPERCLASSES, superclasses
from mrdc.data.images import ImageSet
from mrdc.data.splits import Splits, open_splits
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


def test_a_set_of_ones_own_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry, for `plan` and `pack` as for runs."""
    made = Splits(*textures_splits(classes=2, images=3, test_images=1), held_out=False)
    monkeypatch.setitem(DATASETS, "mine", lambda: made)
    assert open_splits("mine") is made
    assert open_images("mine") is made.train
    with pytest.raises(DataError, match="or textures, mine, cifar100:FOLDER"):
        open_splits("others")


def test_textures_have_test_images_that_are_not_training_images() -> None:
    """The training side is the set of plan and pack; test numbers follow on."""
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
    """Ids are relative to the split, as when only the training part is read."""
    make_photos(tmp_path / "Train", classes=2, images=3)
    make_photos(tmp_path / name, classes=2, images=1)
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.test.classes == ("class0", "class1")
    assert ids(splits.train) == ids(open_images(tmp_path))
    assert ids(splits.test) == [["class0/00.jpg"], ["class1/00.jpg"]]
    assert splits.test.photos[1][0].load() == jpeg(100)
    assert (splits.held_out, splits.superclasses) == (False, None)


def test_test_goes_before_val(tmp_path: Path) -> None:
    """Validation images are for choosing, not for measuring."""
    make_photos(tmp_path / "train", classes=2, images=2)
    make_photos(tmp_path / "test", classes=2, images=3)
    make_photos(tmp_path / "val", classes=2, images=1)
    assert len(open_splits(tmp_path).test) == 6


def test_a_test_folder_without_labels_is_passed_over(tmp_path: Path) -> None:
    """Competitions keep the labels of their test images."""
    make_photos(tmp_path / "train", classes=2, images=2)
    make_photos(tmp_path / "val", classes=2, images=1)
    write(tmp_path / "test" / "00.jpg", jpeg(0))
    assert len(open_splits(tmp_path).test) == 2


def make_cub(root: Path) -> Path:
    """Two birds, two training images and one test image each."""
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
    """Its own split, from the lists beside images/; the folder above will do."""
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
    """Labels of val/ come from its list, and test/ has none."""
    splits = open_splits(make_tiny(tmp_path))
    assert splits.train.classes == splits.test.classes == ("n01", "n02")
    assert ids(splits.train) == [["n01/images/n01_0.JPEG"], ["n02/images/n02_0.JPEG"]]
    assert ids(splits.test) == [["images/val_1.JPEG"], ["images/val_0.JPEG"]]
    assert splits.test.photos[0][0].load() == jpeg(11)


def test_tiny_imagenet_with_val_sorted_into_classes(tmp_path: Path) -> None:
    """A common preparation; the list may stay behind."""
    root = make_tiny(tmp_path)
    for number, wnid in enumerate(("n02", "n01")):
        write(root / "val" / wnid / "images" / f"val_{number}.JPEG", jpeg(10 + number))
        (root / "val" / "images" / f"val_{number}.JPEG").unlink()
    (root / "val" / "images").rmdir()
    assert ids(open_splits(root).test)[0] == ["n01/images/val_1.JPEG"]


@pytest.mark.parametrize("nesting", ["", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_folders(nesting: str, tmp_path: Path) -> None:
    """As torchvision wants them, or as they come from Kaggle with a test/ without labels."""
    make_photos(tmp_path / nesting / "train", classes=2, images=2)
    make_photos(tmp_path / nesting / "val", classes=2, images=1)
    write(tmp_path / nesting / "test" / "ILSVRC2012_test_00000001.JPEG", jpeg(0))
    splits = open_splits(tmp_path)
    assert (len(splits.train), len(splits.test)) == (4, 2)


def test_imagenet_sub_is_the_published_hundred(tmp_path: Path) -> None:
    """Numpy's legacy choice among the sorted wnids, then sorted again."""
    wnids = [f"n{number:08d}" for number in range(1000)]
    for part in ("train", "val"):
        for wnid in wnids:
            write(tmp_path / part / wnid / "0.JPEG", b"x")
    splits = open_splits(f"imagenet-sub:{tmp_path}")
    np.random.seed(1993)
    chosen = np.random.choice(wnids, 100, replace=False)
    assert splits.train.classes == splits.test.classes == tuple(sorted(chosen.tolist()))
    assert splits.train.classes[:3] == ("n00000007", "n00000011", "n00000014")
    assert ids(splits.test)[0] == ["n00000007/0.JPEG"]


def test_without_a_test_split_a_share_of_each_class_is_set_aside(photos: Path) -> None:
    """Every image is on one side, the seed says on which, and the order stays."""
    whole, splits = open_images(photos), open_splits(photos, holdout=0.25)
    assert splits.held_out
    assert splits.train.classes == splits.test.classes == whole.classes
    for all_of, train, test in zip(ids(whole), ids(splits.train), ids(splits.test), strict=True):
        assert len(test) == 2
        assert sorted(train + test) == all_of
        assert train == sorted(train)
        assert test == sorted(test)
    assert ids(open_splits(photos, holdout=0.25).test) == ids(splits.test)
    assert ids(open_splits(photos, holdout=0.25, seed=1).test) != ids(splits.test)
    assert splits.test.photos[1][0].load() in {jpeg(100 + number) for number in range(8)}
    assert splits.test.sizes[1][0] == len(splits.test.photos[1][0].load())


@pytest.mark.parametrize(("holdout", "aside"), [(0.01, 1), (0.99, 1)])
def test_both_sides_keep_at_least_one_image(holdout: float, aside: int, tmp_path: Path) -> None:
    """Whatever the share."""
    splits = open_splits(make_photos(tmp_path, classes=2, images=2), holdout=holdout)
    assert [len(of_class) for of_class in splits.test.photos] == [aside, aside]
    assert [len(of_class) for of_class in splits.train.photos] == [1, 1]


def test_a_csv_and_a_lone_train_folder_are_held_out_too(tmp_path: Path) -> None:
    """All that read_images reads."""
    make_photos(tmp_path / "one" / "train", classes=2, images=5)
    assert len(open_splits(tmp_path / "one").test) == 2
    rows = "".join(f"class{n % 2}/0{n // 2}.jpg,{n % 2}\n" for n in range(10))
    splits = open_splits(write(tmp_path / "one" / "train" / "list.csv", rows))
    assert (splits.held_out, len(splits.train), len(splits.test)) == (True, 8, 2)


class Dated:
    """Warns when it is unpickled, as the published files do under some versions of numpy."""

    def __reduce__(self) -> tuple[Any, ...]:
        return warnings.warn, ("dated", VisibleDeprecationWarning)


def make_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> list[Pixels]:
    """Three training images and one test image a class, and their sums known to torchvision."""
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
    """Pixels as arrays, raw bytes as size, superclasses from the published table."""
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
        assert isinstance(pixels, np.ndarray)
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels, images[4])
        assert ids(splits.test)[2] == ["test/00002"]
        assert not splits.held_out


def test_the_table_of_superclasses_is_the_published_one() -> None:
    """Twenty of five, and number by number as in the files."""
    classes = sorted(name for names in SUPERCLASSES.values() for name in names)
    assert len(set(classes)) == 100
    numbers = {name: number for number, name in enumerate(sorted(SUPERCLASSES))}
    assert [numbers[name] for name in superclasses(classes)] == COARSE


def test_cifar100_that_is_damaged_or_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is unpickled; the message says what to unpack where."""
    make_cifar(tmp_path, monkeypatch, ["apple", "bee"])
    write(tmp_path / "cifar-100-python" / "train", b"cos\nsystem\n(S'false'\ntR.")
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"missing, or not .* as published; unpack cifar-100-p"):
            open_splits(f"cifar100:{root}")


def both(root: Path, train: dict[str, int], test: dict[str, int]) -> Path:
    """Split folders with so many images of each class."""
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
        (flat_val, "val: no class folders; val must have one folder for each class, as train has"),
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
            r"images\.txt: line 2 must be 'number path', each once, got '1 b\.jpg'",
        ),
        (lambda root: cub_without(root, "images.txt", "1\n"), "line 1 must be 'number path'"),
        (
            lambda root: f"imagenet-sub:{both(root, {'a': 1}, {'a': 1})}",
            "train: imagenet-sub is drawn from the 1000 classes of ImageNet, found 1",
        ),
        (lambda root: f"imagenet-sub:{root}/no", "no: no train/ and val/ there; give imagenet-sub"),
        (
            lambda root: make_photos(root / "x", classes=1, images=1).parent / "x",
            r"class 'class0' has 1 image\(s\); without a test split each class needs 2",
        ),
    ],
)
def test_refusals(make: Callable[[Path], str | Path], message: str, tmp_path: Path) -> None:
    """Each names what was given and what is allowed."""
    with pytest.raises(DataError, match=message):
        open_splits(make(tmp_path))


@pytest.mark.parametrize("holdout", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_leaves_nothing_is_refused(holdout: float, photos: Path) -> None:
    """Neither side may be empty."""
    with pytest.raises(UsageError, match="holdout must lie between 0 and 1, got"):
        open_splits(photos, holdout=holdout)


def test_a_negative_seed_is_refused(photos: Path) -> None:
    """Numpy takes none."""
    with pytest.raises(UsageError, match="seed must be 0 or more, got -1"):
        open_splits(photos, seed=-1)


def test_data_is_imported_without_torch() -> None:
    """It would cost seconds where nothing is trained."""
    code = "import sys, mrdc.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_splits_are_values() -> None:
    """Nothing downstream can swap a side."""
    splits = Splits(*textures_splits(1, 1, 1), held_out=False)
    with pytest.raises(AttributeError):
        splits.held_out = True  # type: ignore[misc]


@pytest.mark.parametrize(
    "kind, first, last",
    [
        ("imagenet-similar", "n00000000", "n00000099"),
        ("imagenet-dissimilar", "n00000000", "n00000909"),
    ],
)
def test_imagenet_can_be_cut_into_similar_and_dissimilar_classes(
    tmp_path: Path, kind: str, first: str, last: str
) -> None:
    """A hundred classes that stand together, or ten of every hundred."""
    for split in ("train", "val"):
        for wnid in range(1000):
            folder = tmp_path / split / f"n{wnid:08d}"
            folder.mkdir(parents=True)
            (folder / "x.jpg").touch()
    classes = open_splits(f"{kind}:{tmp_path}").train.classes
    assert (len(classes), classes[0], classes[-1]) == (100, first, last)
