"""Classes that come again, reservoirs and samples."""

import copy
import io
import pickle
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mrdc._utils.errors import BudgetError, ImageError, UsageError
from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.encode import Arrival
from mrdc.memory.names import Names
from mrdc.memory.replay import ReplayMemory
from mrdc.memory.streams import interleave, priorities
from tests.conftest import jpeg, pixels
from tests.memory.memories import streams


def bitmap(value: int) -> bytes:
    """A small image; all have the same size."""
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (value, 0, 0)).save(file, "BMP")
    return file.getvalue()


BMP = [bitmap(value) for value in range(256)]
SIZE = len(BMP[0])


def room_for(images: int) -> Budget:
    """A budget for this many of `BMP`."""
    return Budget(images * SIZE, "originals", 1.0)


def plain(images: int) -> ReplayMemory:
    return ReplayMemory(room_for(images), "original")


def photos(*names: str) -> list[Photo]:
    return [Photo(name, partial(BMP.__getitem__, int(name[1:]))) for name in names]


# Classes that come again


def test_relative_ranks_are_interleaved() -> None:
    """By hand: two of four old images have 1/8 and 3/8, four new ones 1/8, 3/8, 5/8 and 7/8."""
    old, new = (
        [Arrival(photo) for photo in photos(*names)]
        for names in (("o0", "o1"), ("n0", "n1", "n2", "n3"))
    )
    merged = [item.source for item in interleave(old, 4, new)]
    assert merged == ["o0", "n0", "o1", "n1", "n2", "n3"]
    assert [i.source for i in interleave(old, 2, new)] == ["n0", "o0", "n1", "n2", "o1", "n3"]


def test_old_and_new_images_are_held_in_proportion() -> None:
    """Three arrivals of twenty images in a memory of twelve: four each, the best of them."""
    memory = plain(12)
    for start in (0, 20, 40):
        memory.extend(7, photos(*(f"x{n}" for n in range(start, start + 20))))
    held = sorted(int(name[1:]) for name in memory.sources(7))
    assert held == [0, 1, 2, 3, 20, 21, 22, 23, 40, 41, 42, 43]
    assert memory.seen(7) == 60


def test_extending_makes_room_like_adding() -> None:
    """Other classes lose their lowest ranks, and the shares are equal again."""
    memory = plain(10)
    memory.add({0: photos(*(f"a{n}" for n in range(9))), 1: photos("b100")})
    memory.extend(1, photos(*(f"b{n}" for n in range(101, 120))))
    assert Counter(memory.targets) == {0: 5, 1: 5}
    assert memory.sources(0) == ["a0", "a1", "a2", "a3", "a4"]


def test_unnamed_images_are_numbered_on() -> None:
    """Names stay unique; an image that comes twice is stored once, at its best rank."""
    memory = plain(10)
    memory.extend(3, BMP[:2])
    memory.extend(3, BMP[1:4])
    assert sorted(memory.sources(3)) == ["3/0", "3/2", "3/3", "3/4"]
    assert memory.duplicates() == {3: 1}
    memory.extend(3, [])
    assert memory.seen(3) == 5


def test_images_of_a_class_may_differ_in_encoding() -> None:
    """A class that comes again after a change of quality keeps its older images as they are."""
    memory = ReplayMemory("1MB", "jpeg", 80)
    memory.extend(0, [pixels(0)])
    memory.quality = 20
    memory.extend(0, [pixels(1)])
    assert memory.encoded(0) == CODECS["jpeg"].encode(pixels(0), 80)
    assert memory.encoded(1) == CODECS["jpeg"].encode(pixels(1), 20)


def test_a_class_is_removed() -> None:
    """The others may then grow; a budget per class shrinks with it."""
    memory = ReplayMemory(Budget(2, "class", float(SIZE)), "original")
    memory.add({0: BMP[:1], 1: BMP[10:20]})
    assert Counter(memory.targets) == {0: 1, 1: 3}
    memory.remove(np.int64(0))
    assert (memory.targets.tolist(), memory.budget_bytes) == ([1, 1], 2 * SIZE)
    with pytest.raises(UsageError, match="class 0 is not in the memory, which holds 1"):
        memory.remove(0)
    memory.remove(1)
    assert len(memory) == 0


def test_classes_are_removed_together() -> None:
    """What stays does not depend on their order: the others grow once all are gone."""
    held = []
    for order in ([0, 1], [1, 0]):
        memory = ReplayMemory(Budget(2, "class", float(SIZE)), "original")
        memory.add({label: BMP[10 * label : 10 * label + 6] for label in range(3)})
        memory._remove(order)
        held.append(memory.sources(2))
    assert held[0] == held[1]
    with pytest.raises(UsageError, match="class 5 is not in the memory"):
        memory._remove([2, 5])
    assert memory.labels == [2]


def test_a_class_that_others_need_is_not_removed() -> None:
    """An image larger than its class's share of a budget per class."""
    memory = ReplayMemory(Budget(1, "class", float(len(jpeg(0)) - 50)), "original")
    memory.add({0: BMP[:1], 1: [jpeg(0)]})
    with pytest.raises(BudgetError, match="no image of class '1' fits"):
        memory.remove(0)
    assert memory.targets.tolist() == [0, 1]


# Reservoirs


def offer(memory: ReplayMemory, names: list[str], label: int, **options: Any) -> None:
    memory.reservoir(photos(*names), [label] * len(names), **options)


@pytest.mark.parametrize("over", ["class", "all"])
def test_a_reservoir_is_a_uniform_sample(over: Any) -> None:
    """Each of 20 images is held 5 times of 20; chi-square over 400 seeds."""
    held: Counter[str] = Counter()
    for seed in range(400):
        memory = plain(5)
        for start in (0, 10):
            offer(memory, [f"x{n}" for n in range(start, start + 10)], 0, over=over, seed=seed)
        assert len(memory) == 5
        held.update(memory.sources(0))
    expected = 400 * 5 / 20
    statistic = sum((held[f"x{n}"] - expected) ** 2 / expected for n in range(20))
    assert statistic < 43.8  # 19 degrees of freedom, p = 0.001


@pytest.mark.parametrize("over", ["class", "all"])
def test_batches_do_not_matter_to_a_reservoir(over: Any) -> None:
    """One by one, in batches or repeated: the same images."""
    names = [f"x{n}" for n in range(60)]
    one, batches, twice = plain(8), plain(8), plain(8)
    for name in names:
        offer(one, [name], 0, over=over)
    for start in range(0, 60, 15):
        offer(batches, names[start : start + 15], 0, over=over)
    offer(twice, names, 0, over=over)
    offer(twice, names, 0, over=over)
    assert one.sources(0) == batches.sources(0) == twice.sources(0)
    other = plain(8)
    offer(other, names, 0, over=over, seed=1)
    assert other.sources(0) != one.sources(0)


@pytest.mark.parametrize("over", ["class", "all"])
def test_a_reservoir_holds_exact_duplicates_once(over: Any) -> None:
    """Under the name with the better rank, whichever comes first, with the values beside it."""
    first = min(("x1", "y1"), key=lambda name: priorities(0, 0, Names.of([name]))[0])
    for names in (["x1", "y1"], ["y1", "x1"]):
        memory = plain(10)
        for name in names:
            memory.reservoir(photos(name), [0], over=over, values={"name": [ord(name[0])]})
        assert memory.sources(0) == [first] and memory.duplicates() == {0: 1}
        assert memory.values(0) == {"name": ord(first[0])} and memory.seen(0) == 2


def test_outsized_images_of_a_stream_come_last() -> None:
    """Whatever their priority, so that they do not crowd out the others."""
    memory, large = plain(30), CODECS["png"].encode(pixels(0, 40, 40))
    assert len(large) > 10 * SIZE
    names = [f"x{n}" for n in range(20)]
    memory.reservoir([*photos(*names), Photo("large", lambda: large)], [0] * 21)
    assert sorted(memory.sources(0)) == sorted(names)
    memory = plain(100)
    memory.reservoir([Photo("large", lambda: large)], [0])
    offer(memory, names, 0)
    assert memory.sources(0)[-1] == "large" and len(memory) == 21


def test_a_stream_that_fails_changes_nothing() -> None:
    """Not even by the images before the one that cannot be read, however many they are."""
    memory = plain(300)
    offer(memory, ["x0"], 0)
    with pytest.raises(ImageError, match="text"):
        memory.reservoir([*BMP[1:], *BMP[:60], Photo("text", lambda: b"text")], [1] * 316)
    assert memory.sources(0) == ["x0"] and memory.labels == [0] and memory.seen(0) == 1


def test_copies_of_a_memory_grow_apart() -> None:
    """They share the room behind their images, and neither writes over what the other wrote."""
    first = plain(200)
    offer(first, [f"x{n}" for n in range(50)], 0)
    other = copy.copy(first)
    offer(first, ["x50", "x51"], 0)
    offer(other, ["x60", "x61"], 0)
    again = pickle.loads(pickle.dumps(first))
    offer(again, ["x70"], 0)
    for memory, more in ((first, {50, 51}), (other, {60, 61}), (again, {50, 51, 70})):
        assert set(map(bytes, streams(memory))) == {BMP[n] for n in {*range(50), *more}}


@given(st.lists(st.text(alphabet="ab\udc80é/", max_size=4), unique=True), st.data())
def test_names_are_taken_like_those_of_a_list(texts: list[str], data: st.DataObject) -> None:
    """In any order, with repeats; their priorities depend on nothing else."""
    names = Names.of(texts)
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8) if texts else st.just([]))
    taken = names.take(rows)
    assert list(taken) == [texts[row] for row in rows]
    assert list(taken + names) == [*taken, *texts]
    keys = priorities(3, 1, names)
    assert len(set(keys.tolist())) == len(texts)
    assert priorities(3, 1, taken).tolist() == [keys[row] for row in rows]


def test_priorities_are_spread_evenly() -> None:
    """Over names that differ in little; chi-square over 64 equal ranges."""
    for seed, label in ((0, 0), (0, 1), (1, 0)):
        keys = priorities(seed, label, Names.of(f"class{label}/{n:05d}.jpg" for n in range(6400)))
        counts = np.bincount((keys >> np.uint64(58)).astype(int), minlength=64)
        assert ((counts - 100) ** 2 / 100).sum() < 103.4  # 63 degrees of freedom, p = 0.001


def test_reservoirs_share_by_class_or_not() -> None:
    """90 images of one class and 10 of another, with room for 20."""
    by_class, overall = plain(20), plain(20)
    common, rare = [f"a{n}" for n in range(90)], [f"b{n}" for n in range(100, 110)]
    for memory, over in ((by_class, "class"), (overall, "all")):
        offer(memory, common, 0, over=over)
        offer(memory, rare, 1, over=over)
    assert Counter(by_class.targets) == {0: 10, 1: 10}
    counts = Counter(overall.targets)
    assert sum(counts.values()) == 20 and 1 <= counts[1] <= 6


def test_no_class_is_lost_over_all() -> None:
    """Each class keeps its best image, however many images of others come."""
    memory = plain(3)
    offer(memory, ["a0"], 0, over="all")
    offer(memory, [f"b{n}" for n in range(1, 200)], 1, over="all")
    assert Counter(memory.targets) == {0: 1, 1: 2}
    offer(memory, ["c250"], 2, over="all")
    with pytest.raises(BudgetError, match=r"bytes for the images of 4 classes, so no image"):
        offer(memory, ["d251"], 3, over="all")
    assert Counter(memory.targets) == {0: 1, 1: 1, 2: 1}


def test_full_reservoirs_do_not_encode_what_they_reject() -> None:
    """Of 200 images after the first 50, about 5 / n of each are encoded."""
    memory, calls = plain(5), Counter[str]()
    names = [f"x{n}" for n in range(250)]
    offer(memory, names[:50], 0)

    def load(name: str) -> bytes:
        calls[name] += 1
        return BMP[int(name[1:])]

    for name in names[50:]:
        memory.reservoir([Photo(name, partial(load, name))], [0])
    assert 0 < len(calls) < 25  # 5 * ln(250 / 50) = 8 expected


def test_a_reservoir_uses_room_that_appears() -> None:
    """With a larger budget it fills up again."""
    memory = plain(4)
    offer(memory, [f"x{n}" for n in range(50)], 0)
    memory.rebudget(room_for(9))
    offer(memory, [f"x{n}" for n in range(50, 99)], 0)
    assert len(memory) == 9


def test_wrong_batches_are_refused() -> None:
    """The message says what was given."""
    memory = plain(4)
    for images, labels, options, message in (
        (BMP[:2], [0], {}, "there are 2 images, but 1 labels"),
        (BMP[:1], [0], {"over": "phase"}, "over must be 'class' or 'all', got 'phase'"),
        (BMP[:1], [-1], {}, "label -1 must be a whole number"),
        ([3], [0], {}, "image 0: got int; pass a path"),
        (BMP[:2], [0, 0], {"values": {"x": [1]}}, "got 1 values 'x' for 2 images"),
    ):
        with pytest.raises(UsageError, match=message):
            memory.reservoir(images, labels, **options)  # type: ignore[arg-type]
    assert len(memory) == 0


@pytest.mark.parametrize("over", ["class", "all"])
def test_unreadable_images_of_a_stream_are_skipped(over: Any) -> None:
    """Even if no image of their class can be read."""
    memory, skipped = plain(4), list[ImageError]()
    memory.reservoir([BMP[0], b"text"], [0, 1], over=over, skip=skipped.append)
    assert (memory.targets.tolist(), len(skipped)) == ([0], 1)


# Samples


def test_samples_are_batches_of_images_and_labels() -> None:
    """No image repeats until all are drawn; the seed determines the images."""
    memory = plain(20)
    memory.add({0: BMP[:6], 5: BMP[6:10]})
    images, labels = memory.sample(10)
    assert (images.shape, images.dtype) == ((10, 3, 4, 4), torch.uint8)
    assert sorted(images[:, 0, 0, 0].tolist()) == list(range(10))
    assert torch.equal(labels, torch.where(images[:, 0, 0, 0] < 6, 0, 5))
    assert Counter(memory.draw(25)).most_common()[-1][1] == 2
    first, again = memory.draw(5), memory.draw(5)
    assert first != again
    assert memory.draw(5, seed=3) == memory.draw(5, seed=3)


def test_balanced_samples_draw_every_class_as_often() -> None:
    """However many images it holds; a class with few images is repeated."""
    memory = plain(40)
    memory.add({0: BMP[:30], 1: BMP[30:32], 2: BMP[40:43]})
    labels = memory.sample(9, balanced=True)[1]
    assert Counter(labels.tolist()) == {0: 3, 1: 3, 2: 3}
    counts = Counter(memory.sample(10, balanced=True)[1].tolist())
    assert sorted(counts.values()) == [3, 3, 4]
    few = [memory.draw(1, balanced=True)[0] for _ in range(300)]
    assert 60 < sum(index >= 32 for index in few) < 140


def test_processes_draw_different_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of torchrun, unless a seed is given; the first draws as one alone does."""
    memory = plain(20)
    memory.add({0: BMP[:20]})
    drawn = [plain_copy(memory).draw(5)]
    for name, value in (("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        drawn.append(plain_copy(memory).draw(5))
        assert memory.draw(5, seed=3) == plain_copy(memory).draw(5, seed=3)
    assert drawn[0] == drawn[1] != drawn[2]


def plain_copy(memory: ReplayMemory) -> ReplayMemory:
    other = plain(20)
    other.add({label: memory.encoded_images(label) for label in memory.labels})
    return other


def test_transforms_that_want_other_images_are_explained() -> None:
    """The note says what they get."""
    memory = plain(4)
    memory.add({0: BMP[:1]})

    def wants_pil(image: Any) -> Any:
        raise TypeError("pic should be PIL Image")

    memory.transform = wants_pil
    with pytest.raises(TypeError, match="pic should be PIL Image") as raised:
        memory[0]
    assert "gets tensors (3, h, w) of type uint8" in raised.value.__notes__[0]


def test_samples_are_transformed() -> None:
    """Images of one size after the transform make a batch; others are refused."""
    memory = ReplayMemory("1MB", "original", transform=lambda image: image[:, :2, :2].float())
    memory.add({0: [jpeg(0, 95, 8, 9), jpeg(1, 95, 9, 8)]})
    assert memory.sample(4)[0].shape == (4, 3, 2, 2)
    memory.transform = None
    with pytest.raises(UsageError, match=r"images differ in shape, such as .* a transform"):
        memory.sample(2)
    memory.transform = lambda image: "text"
    assert memory.sample(2)[0] == ["text"] * 2


def test_nothing_can_be_drawn_from_an_empty_memory() -> None:
    """Drawing fewer than one image is refused, too."""
    memory = plain(4)
    with pytest.raises(UsageError, match="the memory is empty: add images before"):
        memory.sample(1)
    memory.add({0: BMP[:1]})
    with pytest.raises(UsageError, match="must be at least 1, got 0"):
        memory.draw(0)


def test_memories_describe_themselves() -> None:
    """The repr gives images, classes, bytes and codec."""
    memory = plain(4)
    memory.add({0: BMP[:2]})
    found = f"<ReplayMemory: 2 images of 1 class, {2 * SIZE} of {4 * SIZE} bytes, original>"
    assert repr(memory) == found
