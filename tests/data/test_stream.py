"""The order of classes and their phases."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrdc._utils.errors import DataError, UsageError
from mrdc.data.images import ImageSet, Splits
from mrdc.data.order import class_order, read_superclasses, superclass_order
from mrdc.data.photo import Photo
from mrdc.data.splits import open_splits
from mrdc.data.stream import make_stream, open_stream, phase_sizes
from tests.conftest import make_photos

groups = st.lists(st.sampled_from(["cat", "dog", "bird", "fish"]), min_size=1, max_size=30)
seeds = st.integers(0, 2**32 - 1)


def fake_splits(classes: int = 10) -> Splits:
    """Three training images and one test image per class, of 100 + label bytes."""

    def images(part: str, count: int) -> ImageSet:
        names = tuple(f"c{label:02d}" for label in range(classes))
        photos = tuple(
            [Photo(f"{name}/{part}{number}", bytes) for number in range(count)] for name in names
        )
        return ImageSet(names, photos, tuple([100 + label] * count for label in range(classes)))

    return Splits(images("train", 3), images("test", 1), held_out=False)


@given(st.integers(0, 60), seeds)
def test_a_class_order_has_each_class_once(classes: int, seed: int) -> None:
    """As plain integers, for JSON; shuffled with numpy's legacy seed, as in the papers."""
    order = class_order(classes, seed)
    assert sorted(order) == list(range(classes))
    assert all(type(label) is int for label in order)
    assert class_order(100, 1993)[:8] == [68, 56, 78, 8, 23, 84, 90, 65]


@given(groups, seeds)
def test_superclass_orders(names: list[str], seed: int) -> None:
    """Similar classes are adjacent; dissimilar ones alternate while their superclasses last."""
    orders = [superclass_order(names, kind, seed) for kind in ("similar", "dissimilar")]
    assert all(sorted(order) == list(range(len(names))) for order in orders)
    similar, dissimilar = ([names[label] for label in order] for order in orders)
    assert sum(one != other for one, other in pairwise(similar)) == len(set(names)) - 1
    left = Counter(names)
    while dissimilar:
        turn = [name for name in left if left[name]]
        assert sorted(dissimilar[: len(turn)]) == sorted(turn)
        dissimilar = dissimilar[len(turn) :]
        left -= Counter(turn)


def test_superclass_orders_depend_on_the_seed() -> None:
    """It shuffles the superclasses, and the classes within each."""
    names = [f"g{label // 5}" for label in range(50)]
    for kind in ("similar", "dissimilar"):
        first, again, other = (superclass_order(names, kind, seed) for seed in (1, 1, 2))
        assert first == again != other
    assert superclass_order(names, "similar", 1) != list(range(50))


@pytest.mark.parametrize(
    ("classes", "phases", "first", "sizes"),
    [
        (100, 5, "half", (50, 10, 10, 10, 10, 10)),
        (200, 25, "half", (100, *[4] * 25)),
        (7, 2, "half", (4, 2, 1)),
        (10, 3, "equal", (4, 3, 3)),
        (10, 1, "equal", (10,)),
        (10, 3, 4, (4, 2, 2, 2)),
        (10, 4, "1", (1, 3, 2, 2, 2)),
        (2, 1, "half", (1, 1)),
    ],
)
def test_phase_sizes_by_hand(
    classes: int, phases: int, first: str | int, sizes: tuple[int, ...]
) -> None:
    """The papers' settings, and some that do not divide evenly."""
    assert phase_sizes(classes, phases, first) == sizes


@given(st.data())
def test_phases_share_the_remaining_classes_evenly(data: st.DataObject) -> None:
    """All classes, the right number of phases, sizes that differ by at most one, larger first."""
    classes = data.draw(st.integers(2, 300))
    first = data.draw(st.sampled_from(["half", "equal"]) | st.integers(1, classes - 1))
    start = {"half": (classes + 1) // 2, "equal": 0}.get(str(first), first)
    assert isinstance(start, int)
    phases = data.draw(st.integers(1, classes - start))
    sizes = phase_sizes(classes, phases, first)
    assert sum(sizes) == classes
    assert len(sizes) == phases + (first != "equal")
    rest = sizes[1:] if start else sizes
    assert start == 0 or sizes[0] == start
    assert max(rest) - min(rest) <= 1
    assert list(rest) == sorted(rest, reverse=True)
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("classes", "phases", "first", "message"),
    [
        (10, 0, "half", "phases must be at least 1, got 0"),
        (10, 6, "half", "10 classes cannot make 6 phases after a first phase of 5: 5 phases at"),
        (10, 11, "equal", "10 classes cannot make 11 phases: 10 phases at most, of one class each"),
        (10, 1, 10, "after a first phase of 10: 0 phases at most"),
        (10, 1, "12", "after a first phase of 12: 0 phases at most"),
        (10, 2, 0, "first must be at least 1 class, got 0"),
        (10, 2, "-3", "first must be at least 1 class, got -3"),
        (10, 2, "third", "first must be half, equal or a number of classes, got 'third'"),
    ],
)
def test_impossible_phases_are_refused(
    classes: int, phases: int, first: str | int, message: str
) -> None:
    """The message gives the numbers and what is allowed."""
    with pytest.raises(UsageError, match=message):
        phase_sizes(classes, phases, first)


def test_labels_are_positions_in_the_stream(tmp_path: Path) -> None:
    """Name, photos and sizes at a label belong to one class, in training and test."""
    make_photos(tmp_path / "train", classes=6, images=2)
    make_photos(tmp_path / "test", classes=6, images=1)
    splits = open_splits(tmp_path)
    stream = make_stream(splits, 3)
    order = np.arange(6)
    np.random.RandomState(1993).shuffle(order)
    assert stream.classes == tuple(f"class{label}" for label in order)
    assert stream.test.classes == stream.train.classes
    for images in (stream.train, stream.test):
        for name, photos, sizes in zip(images.classes, images.photos, images.sizes, strict=True):
            assert {photo.id.split("/")[0] for photo in photos} == {name}
            assert [len(photo.load()) for photo in photos] == sizes
    assert splits.train.classes == tuple(f"class{label}" for label in range(6))


def test_phases_of_a_stream() -> None:
    """Half, then the rest; label i of a phase is start + i of the stream."""
    stream = make_stream(fake_splits(10), 2)
    assert stream.sizes == (5, 3, 2)
    assert stream.phases == [range(5), range(5, 8), range(8, 10)]
    assert [stream.seen(phase) for phase in range(3)] == [5, 8, 10]
    for phase, labels in enumerate(stream.phases):
        fresh = stream.fresh(phase)
        assert fresh.classes == tuple(stream.classes[label] for label in labels)
        for place, photos in enumerate(fresh.photos):
            assert photos == stream.train.photos[labels.start + place]
    assert stream.original_bytes == 104.5


def test_orders_by_name_and_by_seed() -> None:
    """A seed from a file or a flag may be text."""
    splits = fake_splits(10)
    assert make_stream(splits, 2, order="sorted").classes == splits.train.classes
    assert make_stream(splits, 2, order="7").classes == make_stream(splits, 2, order=7).classes
    assert make_stream(splits, 2, order=7).classes != make_stream(splits, 2).classes


def test_a_file_of_superclasses_overrides_the_data_set(tmp_path: Path) -> None:
    """With or without a heading; phases of similar classes have one superclass, others all."""
    splits = replace(fake_splits(8), superclasses=tuple("aabbaabb"))

    def parities(order: str, file: Path | None = None) -> list[set[int]]:
        stream = make_stream(splits, 2, "equal", order, file)
        return [{int(name[1:]) % 2 for name in stream.fresh(phase).classes} for phase in range(2)]

    file = tmp_path / "groups.csv"
    rows = [f"{name}, {int(name[1:]) % 2}\n" for name in reversed(splits.train.classes)]
    file.write_text("".join(["class,superclass\n", *rows]))
    assert sorted(map(len, parities("similar", file))) == [1, 1]
    file.write_text("".join(rows))
    assert parities("dissimilar", file) == [{0, 1}, {0, 1}]
    assert parities("similar") == [{0, 1}, {0, 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,cat\na,dog\n", "line 2: 'a' appears twice; give each class once"),
        ("a,cat\nz,dog\n", "line 2: 'z' is not a class of the data set"),
        ("a,cat\n", "no superclass for b, c, d and 1 more"),
        ("a\n", "line 1 must be class,superclass, got 'a'"),
        ("", "no row of class,superclass"),
    ],
)
def test_superclasses_that_do_not_fit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """The message names the line, the classes, or the file."""
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_superclasses(tmp_path / "groups.csv", list("abcde"))
    with pytest.raises(DataError, match=r"no\.csv: cannot be read"):
        make_stream(fake_splits(), 2, order="similar", superclasses=tmp_path / "no.csv")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("similar", "order similar needs the superclass of each class, .* a CSV of class,super"),
        ("random", "order must be a seed, sorted, similar or dissimilar, got 'random'"),
        (-1, r"from 0 to 2\*\*32 - 1, got -1"),
        (str(2**32), "got 4294967296"),
    ],
)
def test_impossible_streams_are_refused(order: str | int, message: str) -> None:
    """The message states what is allowed; one class is not a stream."""
    with pytest.raises(UsageError, match=message):
        make_stream(fake_splits(), 2, order=order)
    with pytest.raises(DataError, match="at least 2 classes, the data set has 1"):
        make_stream(fake_splits(1), 1, "equal", order)


def test_the_fingerprint_identifies_a_stream() -> None:
    """It depends on order, phases, photos and bytes."""
    splits = fake_splits()
    renamed = replace(splits.test, photos=(splits.test.photos[1], *splits.test.photos[1:]))
    larger = replace(splits.train, sizes=([100, 100, 101], *splits.train.sizes[1:]))
    streams = [
        make_stream(splits, 2),
        make_stream(splits, 3),
        make_stream(splits, 2, order=7),
        make_stream(replace(splits, test=renamed), 2),
        make_stream(replace(splits, train=larger), 2),
    ]
    prints = [stream.fingerprint() for stream in streams]
    assert len(set(prints)) == len(prints)
    assert make_stream(fake_splits(), 2).fingerprint() == prints[0]
    assert len(prints[0]) == 64


def test_open_stream_opens_and_cuts(photos: Path) -> None:
    """A source becomes a stream that knows its held-out and ignored files."""
    (photos / "notes.txt").write_text("hello")
    stream = open_stream(photos, phases=1, order="sorted", holdout=0.25)
    assert stream.classes == ("class0", "class1", "class2")
    assert (stream.sizes, len(stream.train), len(stream.test)) == ((2, 1), 18, 6)
    assert stream.held_out
    assert stream.ignored == ["notes.txt: not an image (by its ending)"]
    made, opened = make_stream(open_splits(photos), 1), open_stream(photos, phases=1)
    assert made.fingerprint() == opened.fingerprint()


def test_photos_can_be_left_out_of_a_stream() -> None:
    """By id in each split, along with their sizes, as long as every class keeps one."""
    stream = make_stream(fake_splits(4), 2, order="sorted")
    left = stream.without(train_ids=["c01/train0", "c01/train2", "c03/test0"])
    assert [photo.id for photo in left.train.photos[1]] == ["c01/train1"]
    assert left.train.sizes[1] == [101]
    assert (len(left.train), left.test) == (10, stream.test)
    with pytest.raises(DataError, match="no training image of c02 is left; each class needs one"):
        stream.without([f"c02/train{number}" for number in range(3)])
    with pytest.raises(DataError, match="no test image of c00, c03 is left"):
        stream.without(test_ids={"c00/test0", "c03/test0"})
