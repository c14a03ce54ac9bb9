"""What training reads: the same images wherever they are kept."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mrdc.training.feed
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels, decode
from mrdc.data.crops import centre_crop, resize, tensor
from mrdc.data.examples import Examples, from_images
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.memory.replay import ReplayMemory
from mrdc.training.feed import (
    Decoded,
    Feed,
    GpuFeed,
    HostFeed,
    Resident,
    Views,
    free_memory,
    from_memory,
    open_feed,
)
from tests.conftest import jpeg, pixels

CPU = torch.device("cpu")
PLACES: list[Resident] = ["gpu", "ram", "stream"]


def photo(name: str, data: bytes | Pixels) -> Photo:
    return Photo(name, partial(_same, data))


def _same(data: bytes | Pixels) -> bytes | Pixels:
    return data


def plain(sides: Sequence[tuple[int, int]]) -> Examples:
    """Images of one grey each, which is also the label (up to 255)."""
    images = [np.full((h, w, 3), grey % 256, np.uint8) for grey, (h, w) in enumerate(sides)]
    photos = (photo(f"grey {grey}", image) for grey, image in enumerate(images))
    return Examples(tuple(photos), tuple(range(len(sides))))


def varied(count: int = 12) -> Examples:
    """JPEG files of several sizes, with detail."""
    photos = (photo(str(n), jpeg(n, 95, 20 + n % 7, 40 - n % 11)) for n in range(count))
    return Examples(tuple(photos), tuple(n % 3 for n in range(count)))


def everything(feed: Feed, seed: int = 0, epoch: int = 0, batch_size: int = 5) -> list[Tensor]:
    """All images and all labels of an epoch, in their order."""
    batches = list(feed.epoch(batch_size, seed, epoch))
    return [torch.cat(part) for part in zip(*batches, strict=True)]


# Examples


def test_examples_are_decoded_images_and_labels() -> None:
    """From files and from pixels alike."""
    image = pixels(0)
    examples = Examples((photo("a", jpeg(1)), photo("b", image)), (7, 8))
    assert len(examples) == 2
    assert torch.equal(examples[0][0], tensor(decode(jpeg(1))))
    assert torch.equal(examples[1][0], tensor(image))
    assert (examples[0][1], examples[1][1]) == (7, 8)


def test_examples_add_up() -> None:
    """Those of the first, then those of the second; neither changes."""
    first, second = plain([(2, 2)] * 2), varied(3)
    both = first + second
    assert both.photos == first.photos + second.photos
    assert both.labels == (0, 1, 0, 1, 2)
    assert (len(first), len(second), len(Examples() + first)) == (2, 3, 2)


@given(indices=st.lists(st.integers(0, 5)))
def test_picking_keeps_the_order_asked_for(indices: list[int]) -> None:
    """Repeats too; labels stay with their photos."""
    picked = plain([(2, 2)] * 6).pick(indices)
    assert picked.labels == tuple(indices)
    assert [p.id for p in picked.photos] == [f"grey {index}" for index in indices]


def test_a_set_of_images_is_labelled_from_the_first_label_on() -> None:
    """Class after class, a class without images too."""
    none: list[Photo] = []
    photos = ([photo("a", b"")], none, [photo("b", b""), photo("c", b"")])
    images = ImageSet(("x", "y", "z"), photos, ([0], [], [0, 0]))
    examples = from_images(images, 10)
    assert examples.labels == (10, 12, 12)
    assert [p.id for p in examples.photos] == ["a", "b", "c"]
    assert from_images(images).labels == (0, 2, 2)


def test_a_memory_gives_its_images_under_their_own_names() -> None:
    """The encoded bytes, in the order of the memory; classes may come in any order."""
    memory = ReplayMemory("1MB", CODECS["jpeg"], 50)
    memory.add({4: [photo("d", jpeg(3))]}, threads=1)
    memory.add({2: [photo("a", jpeg(1)), photo("b", jpeg(2))]}, threads=1)
    examples = from_memory(memory)
    assert [p.id for p in examples.photos] == ["d", "a", "b"]
    assert examples.labels == (4, 2, 2)
    for index in range(3):
        assert torch.equal(examples[index][0], memory[index][0])
        assert examples[index][1] == memory[index][1]
        assert examples.photos[index].load() == memory.encoded(index)


# Feeds


@pytest.mark.parametrize("resident", PLACES)
@settings(max_examples=15, deadline=None)
@given(
    sides=st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=1, max_size=20),
    batch_size=st.integers(1, 8),
    epoch=st.integers(0, 3),
)
def test_every_image_comes_once_an_epoch(
    resident: Resident, sides: list[tuple[int, int]], batch_size: int, epoch: int
) -> None:
    """With its own label, its own grey all over, in batches of the size asked for but the last.

    A lone image at the end joins the batch before it: batch norm needs two.
    """
    feed = open_feed(plain(sides), 8, CPU, resident, threads=2)
    assert len(feed) == len(sides)
    sizes = [len(labels) for _, labels in feed.epoch(batch_size, 0, epoch)]
    cut = [min(batch_size, len(sides) - n) for n in range(0, len(sides), batch_size)]
    if len(cut) > 1 and cut[-1] == 1:
        cut[-2:] = [batch_size + 1]
    assert sizes == cut
    images, labels = everything(feed, 0, epoch, batch_size)
    assert sorted(labels.tolist()) == list(range(len(sides)))
    assert images.shape == (len(sides), 3, 8, 8)
    assert (images.float() - labels[:, None, None, None]).abs().max() < 0.01


@pytest.mark.parametrize("resident", PLACES)
def test_epochs_and_seeds_differ_and_repeat(resident: Resident) -> None:
    """Order and crops belong to (seed, epoch), and to nothing else."""
    feed = open_feed(varied(), 8, CPU, resident, threads=2)
    first = everything(feed)
    for same in (everything(feed), everything(open_feed(varied(), 8, CPU, resident, threads=2))):
        assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    for images, _ in (everything(feed, epoch=1), everything(feed, seed=1)):
        assert not torch.equal(images, first[0])
        assert not torch.equal(images.sort(0).values, first[0].sort(0).values)


@pytest.mark.parametrize("resident", PLACES)
def test_images_are_shuffled_anew_every_epoch(resident: Resident) -> None:
    """Classes come mixed: never in the order of the examples, nor twice in the same."""
    feed = open_feed(plain([(9, 9)] * 20), 8, CPU, resident, threads=2)
    orders = {tuple(everything(feed, epoch=epoch)[1].tolist()) for epoch in range(3)}
    assert len(orders | {tuple(range(20))}) == 4


@pytest.mark.parametrize("resident", PLACES)
@pytest.mark.parametrize("threads", [1, 3, None])
def test_threads_change_no_view(resident: Resident, threads: int | None) -> None:
    """However many decode."""
    feeds = [open_feed(varied(40), 8, CPU, resident, threads=n) for n in (2, threads)]
    first, other = map(everything, feeds)
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_ram_and_stream_give_the_same_batches() -> None:
    """Decoding once or every time is a matter of speed."""
    ram, stream = (open_feed(varied(), 8, CPU, where) for where in ("ram", "stream"))
    for epoch in (0, 1):
        pairs = zip(everything(ram, epoch=epoch), everything(stream, epoch=epoch), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_canvas_grows_with_the_images_that_come() -> None:
    """Over several uploads, each image whole in its corner."""
    examples = plain([(2, 3)] * 512 + [(5, 2)] * 512 + [(4, 9), (2, 2)])
    feed = GpuFeed(examples, 8, CPU, threads=2)
    assert feed.images.shape == (1026, 5, 3, 9)  # rows, channels, columns
    for index in (0, 1, 511, 512, 513, 1023, 1024, 1025):
        image = examples[index][0]
        h, w = image.shape[1:]
        assert feed.sides[index].tolist() == [h, w]
        assert torch.equal(feed.images[index, :h, :, :w], image.permute(1, 0, 2))
        assert feed.images[index].int().sum() == image.int().sum()  # and nothing around it
    assert sorted(everything(feed, batch_size=100)[1].tolist()) == list(range(1026))


@pytest.mark.parametrize(
    ("before", "after"), [((10, 16), (10, 16)), ((40, 20), (16, 8)), ((17, 34), (8, 16))]
)
def test_images_over_twice_the_size_of_a_view_are_scaled_down(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    """To twice that on the long side, in proportion; others are left alone."""
    image = pixels(0, *before)
    feed = GpuFeed(Examples((photo("a", image),), (0,)), 8, CPU, threads=1)
    assert feed.sides.tolist() == [list(after)]
    assert torch.equal(feed.images[0], resize(tensor(image), *after).permute(1, 0, 2))


def test_thin_images_keep_a_pixel_when_scaled_down() -> None:
    """A line of 100 x 1 among views of 8 is reduced to 16 x 1."""
    feed = GpuFeed(plain([(100, 1), (1, 100)]), 8, CPU, threads=1)
    assert feed.sides.tolist() == [[16, 1], [1, 16]]


def test_labels_stay_with_their_images_on_the_gpu() -> None:
    """A bright and a dark class never swap."""
    images = [np.full((6, 6, 3), 200 * (n % 2), np.uint8) for n in range(9)]
    photos = tuple(photo(str(n), image) for n, image in enumerate(images))
    feed = GpuFeed(Examples(photos, tuple(3 + n % 2 for n in range(9))), 4, CPU)
    for views, labels in feed.epoch(2, 0, 0):
        assert torch.equal(views.mean((1, 2, 3)) > 100, labels == 4)


@pytest.mark.parametrize(("room", "kind"), [(10**9, Decoded), (1000, Examples)])
def test_auto_keeps_images_in_ram_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, room: int, kind: type
) -> None:
    """Else they are decoded every time."""
    monkeypatch.setattr(mrdc.training.feed, "free_memory", lambda device: room)
    feed = open_feed(varied(), 8, CPU)
    assert isinstance(feed, HostFeed)
    assert isinstance(feed.images, kind)


def test_auto_judges_all_images_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 images of 300 bytes go into 40 % of 75,000 bytes and more, not of less."""
    examples = plain([(10, 10)] * 100)
    for room, kind in ((75_001, Decoded), (74_999, Examples)):
        monkeypatch.setattr(mrdc.training.feed, "free_memory", lambda device, room=room: room)
        feed = open_feed(examples, 8, CPU)
        assert isinstance(feed, HostFeed)
        assert isinstance(feed.images, kind)


def test_free_memory_is_a_number_of_bytes() -> None:
    """Some megabytes at least, and less than anyone has."""
    assert 2**20 < free_memory(CPU) < 2**50


# Evaluation views


@pytest.mark.parametrize("resident", ["ram", "stream"])
def test_views_keep_order_and_labels(resident: Resident) -> None:
    """Centre crops of all that was added, in that order, again and again."""
    views = Views(8, CPU, resident, threads=2)
    parts = [varied(7), plain([(9, 20)] * 130), varied(2)]
    expected = Examples()
    for part in parts:
        views.add(part)
        expected += part
        for _ in range(2):
            images, labels = (torch.cat(half) for half in zip(*views, strict=True))
            assert labels.tolist() == list(expected.labels)
            assert images.dtype == torch.uint8
            for index, image in enumerate(images):
                assert torch.equal(image, centre_crop(expected[index][0], 8))


def test_views_are_made_once_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read when the view is added, and no more; streamed, whenever it is seen."""
    reads: list[str] = []

    def load() -> bytes:
        reads.append("read")
        return jpeg(0)

    for room, expected in ((10**9, 1), (100, 2)):
        monkeypatch.setattr(mrdc.training.feed, "free_memory", lambda device, room=room: room)
        views = Views(8, CPU, "auto", threads=1)
        reads.clear()
        views.add(Examples((Photo("a", load),), (0,)))
        assert len([list(views) for _ in range(2)]) == 2
        assert len(reads) == expected


def test_no_views_are_no_batches() -> None:
    """Before anything is added."""
    assert list(Views(8, CPU, "auto", threads=1)) == []
