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
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.splits import Splits, open_splits
from mrdc.data.stream import (
    class_order,
    make_stream,
    phase_sizes,
    read_superclasses,
    superclass_order,
)
from tests.conftest import make_photos

groups = st.lists(st.sampled_from(["cat", "dog", "bird", "fish"]), min_size=1, max_size=30)
seeds = st.integers(0, 2**32 - 1)


def fake_splits(classes: int = 10) -> Splits:
    """Three training images and one test image a class, of 100 + class bytes."""

    def images(part: str, count: int) -> ImageSet:
        names = tuple(f"c{label:02d}" for label in range(classes))
        photos = tuple(
            [Photo(f"{name}/{part}{number}", bytes) for number in range(count)] for name in names
        )
        return ImageSet(names, photos, tuple([100 + label] * count for label in range(classes)))

    return Splits(images("train", 3), images("test", 1), held_out=False)


def test_the_order_is_that_of_the_papers() -> None:
    """Hundred classes shuffled with numpy's legacy seed 1993."""
    assert class_order(100, 1993)[:8] == [68, 56, 78, 8, 23, 84, 90, 65]


@given(st.integers(0, 60), seeds)
def test_a_class_order_has_each_class_once(classes: int, seed: int) -> None:
    """And plain integers, which JSON takes."""
    order = class_order(classes, seed)
    assert sorted(order) == list(range(classes))
    assert all(type(label) is int for label in order)


@given(groups, st.sampled_from(["similar", "dissimilar"]), seeds)
def test_a_superclass_order_has_each_class_once(names: list[str], kind: str, seed: int) -> None:
    """Whatever the superclasses."""
    order = superclass_order(names, kind, seed)  # type: ignore[arg-type]
    assert sorted(order) == list(range(len(names)))


@given(groups, seeds)
def test_similar_classes_stand_together(names: list[str], seed: int) -> None:
    """A superclass begins once and ends once."""
    stream = [names[label] for label in superclass_order(names, "similar", seed)]
    changes = sum(one != other for one, other in pairwise(stream))
    assert changes == len(set(names)) - 1


@given(groups, seeds)
def test_dissimilar_classes_take_turns(names: list[str], seed: int) -> None:
    """Every round has one class of each superclass that has any left."""
    stream = [names[label] for label in superclass_order(names, "dissimilar", seed)]
    left = Counter(names)
    while stream:
        turn = [name for name in left if left[name]]
        assert sorted(stream[: len(turn)]) == sorted(turn)
        stream = stream[len(turn) :]
        left -= Counter(turn)


def test_superclasses_and_classes_within_are_shuffled() -> None:
    """By the seed alone."""
    names = [f"g{label // 5}" for label in range(50)]
    for kind in ("similar", "dissimilar"):
        first = superclass_order(names, kind, 1)
        assert first == superclass_order(names, kind, 1)
        assert first != superclass_order(names, kind, 2)
    assert superclass_order(names, "similar", 1) != list(range(50))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_numpy_cannot_take_are_refused(seed: int) -> None:
    """With the range."""
    with pytest.raises(UsageError, match=r"from 0 to 2\*\*32 - 1, got"):
        class_order(5, seed)


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
    """The papers' settings, and some that do not divide."""
    assert phase_sizes(classes, phases, first) == sizes


@given(st.data())
def test_phases_share_what_is_left_evenly(data: st.DataObject) -> None:
    """All classes, the right number of phases, sizes that differ by one, larger ones first."""
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
    """With the numbers and what is allowed."""
    with pytest.raises(UsageError, match=message):
        phase_sizes(classes, phases, first)


def test_labels_are_places_in_the_stream(tmp_path: Path) -> None:
    """At every label, name, photos and sizes are of one class, in training and test."""
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
    """Half, then the rest; local label i of a phase is start + i of the stream."""
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
    """A seed may be text, as it comes from a file or a flag."""
    splits = fake_splits(10)
    assert make_stream(splits, 2, order="sorted").classes == splits.train.classes
    assert make_stream(splits, 2, order="7").classes == make_stream(splits, 2, order=7).classes
    assert make_stream(splits, 2, order=7).classes != make_stream(splits, 2).classes


def test_superclasses_come_from_the_file_before_the_data(tmp_path: Path) -> None:
    """Phases of similar classes have one superclass, of dissimilar ones all."""
    splits = replace(fake_splits(8), superclasses=tuple("aabbaabb"))

    def parities(order: str, file: Path | None = None) -> list[set[int]]:
        stream = make_stream(splits, 2, "equal", order, file)
        return [{int(name[1:]) % 2 for name in stream.fresh(phase).classes} for phase in range(2)]

    file = tmp_path / "groups.csv"
    file.write_text("".join(f"{name},{int(name[1:]) % 2}\n" for name in splits.train.classes))
    assert sorted(map(len, parities("similar", file))) == [1, 1]
    assert parities("dissimilar", file) == [{0, 1}, {0, 1}]
    assert parities("similar") == [{0, 1}, {0, 1}]


def test_a_csv_of_superclasses(tmp_path: Path) -> None:
    """In any order, with or without a header."""
    file = tmp_path / "groups.csv"
    for header in ("", "class,superclass\n"):
        file.write_text(f"{header}b, bird\na,cat\n")
        assert read_superclasses(file, ["a", "b"]) == ("cat", "bird")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,cat\na,dog\n", "line 2: 'a' is there twice; give each class once"),
        ("a,cat\nz,dog\n", "line 2: 'z' is no class of the data set"),
        ("a,cat\n", "no superclass for b, c, d and 1 more"),
        ("a\n", "line 1 must be class,superclass, got 'a'"),
        ("", "no row of class,superclass"),
    ],
)
def test_superclasses_that_do_not_fit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """With the line, or the classes."""
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_superclasses(tmp_path / "groups.csv", list("abcde"))


def test_a_missing_file_of_superclasses_is_refused(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(DataError, match=r"no\.csv: cannot be read"):
        make_stream(fake_splits(), 2, order="similar", superclasses=tmp_path / "no.csv")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("similar", "order similar needs the superclass of each class, .* a CSV of class,super"),
        ("random", "order must be a seed, sorted, similar or dissimilar, got 'random'"),
        (-1, "must be from 0"),
    ],
)
def test_orders_that_cannot_be_are_refused(order: str | int, message: str) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError, match=message):
        make_stream(fake_splits(), 2, order=order)


def test_one_class_is_no_stream() -> None:
    """There is nothing to tell apart."""
    with pytest.raises(DataError, match="at least 2 classes, the data set has 1"):
        make_stream(fake_splits(1), 1, "equal")


def test_the_fingerprint_tells_streams_apart() -> None:
    """Order, phases, photos and bytes all count; the same stream has the same one."""
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
