"""Feeds show the same images wherever they are kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mrdc.codec.image import decode
from mrdc.data.crops import centre_crop, resize, tensor
from mrdc.data.examples import Examples, from_images
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.training.batches import Feed, in_batches
from mrdc.training.evaluate import Views
from mrdc.training.feed import Resident, free_memory, open_feed
from mrdc.training.gpu_feed import GpuFeed
from mrdc.training.host_feed import HostFeed
from mrdc.training.pictures import Decoded, Files
from tests.conftest import jpeg, pixels
from tests.training.feeds import CPU, PLACES, equal, everything, examples, photo, plain, varied

RESIDENT = pytest.mark.parametrize("resident", PLACES)


# Examples


def test_examples_are_decoded_images_and_labels() -> None:
    """From files and pixels alike; sums and picks keep order; image sets count from a label on."""
    image = pixels(0)
    both = Examples((photo("a", jpeg(1)),), (7,)) + Examples((photo("b", image),), (8,))
    assert torch.equal(both[0][0], tensor(decode(jpeg(1))))
    assert torch.equal(both[1][0], tensor(image))
    picked = both.pick([1, 0, 1])
    assert picked.labels == (8, 7, 8) and len(picked) == 3
    assert [one.id for one in picked.photos] == ["b", "a", "b"]
    photos: tuple[list[Photo], ...] = ([photo("a", b"")], [], [photo("b", b""), photo("c", b"")])
    images = ImageSet(("x", "y", "z"), photos, ([0], [], [0, 0]))
    assert from_images(images).labels == (0, 2, 2)
    assert from_images(images, 10).labels == (10, 12, 12)
    assert [one.id for one in from_images(images).photos] == ["a", "b", "c"]


# Feeds


@RESIDENT
@settings(max_examples=15, deadline=None)
@given(
    sides=st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=2, max_size=20),
    batch_size=st.integers(1, 8),
    epoch=st.integers(0, 3),
)
def test_every_image_comes_once_per_epoch(
    resident: Resident, sides: list[tuple[int, int]], batch_size: int, epoch: int
) -> None:
    feed = open_feed(plain(sides), 8, CPU, resident, threads=2)
    assert len(feed) == len(sides)
    sizes = [len(labels) for _, labels in feed.epoch(batch_size, 0, epoch)]
    assert sizes == [len(batch) for batch in in_batches(np.arange(len(sides)), batch_size)]
    images, labels = everything(feed, 0, epoch, batch_size)
    assert sorted(labels.tolist()) == list(range(len(sides)))
    assert images.shape == (len(sides), 3, 8, 8)
    assert (images.float() - labels[:, None, None, None]).abs().max() < 0.01


@RESIDENT
def test_epochs_and_seeds_differ_and_repeat(resident: Resident) -> None:
    """Order and crops depend only on (seed, epoch), never on threads."""
    feed = open_feed(varied(), 8, CPU, resident, threads=2)
    first = everything(feed)
    if resident == "stream":  # decoding once or every time is a matter of speed
        assert equal(first, everything(open_feed(varied(), 8, CPU, "ram")))
    assert equal(first, everything(feed))
    for threads in (1, 3, None):
        assert equal(first, everything(open_feed(varied(), 8, CPU, resident, threads=threads)))
    for images, _ in (everything(feed, epoch=1), everything(feed, seed=1)):
        assert not torch.equal(images, first[0])
        assert not torch.equal(images.sort(0).values, first[0].sort(0).values)
    orders = {tuple(everything(feed, epoch=epoch)[1].tolist()) for epoch in range(3)}
    assert len(orders | {tuple(range(12))}) == 4


def kept(feed: Feed, index: int) -> Tensor:
    """An image (3, h, w) as a feed has it before cropping."""
    if isinstance(feed, GpuFeed):
        height, width = feed.sides[index]
        return feed.images[index, :height, :, :width].permute(1, 0, 2)
    assert isinstance(feed, HostFeed)
    return feed.images.image(index)


@RESIDENT
@pytest.mark.parametrize(
    ("before", "after"),
    [((10, 16), (10, 16)), ((17, 34), (8, 16)), ((100, 1), (16, 1)), ((1, 100), (1, 16))],
)
def test_all_feeds_shrink_images_over_twice_the_size_of_a_view(
    before: tuple[int, int], after: tuple[int, int], resident: Resident
) -> None:
    """To twice that on the long side, keeping the aspect ratio; thin images keep a pixel."""
    image = pixels(0, *before)
    found = kept(open_feed(examples([image]), 8, CPU, resident, threads=1), 0)
    assert found.shape == (3, *after)
    assert torch.equal(found, resize(tensor(image), *after))


def test_canvas_is_as_large_as_the_largest_image() -> None:
    """Each image whole in its corner, over several uploads, with its own label."""
    source = plain([(2, 3)] * 512 + [(5, 2)] * 512 + [(4, 9), (2, 2)])
    feed = GpuFeed(source, 8, CPU, threads=2)
    assert feed.images.shape == (1026, 5, 3, 9)  # rows, channels, columns
    for index in (0, 1, 511, 512, 513, 1023, 1024, 1025):
        image = source[index][0]
        assert torch.equal(kept(feed, index), image)
    images, labels = everything(feed, batch_size=100)
    assert sorted(labels.tolist()) == list(range(1026))
    assert (images.mean((1, 2, 3)) - labels % 256).abs().max() < 0.1


@pytest.mark.parametrize(("room", "kind"), [(75_001, Decoded), (74_999, Files)])
def test_auto_keeps_images_in_ram_if_they_take_less_than_40_percent_of_it(
    monkeypatch: pytest.MonkeyPatch, room: int, kind: type
) -> None:
    """100 images of 300 bytes; estimated from a sample."""
    assert 2**20 < free_memory(CPU) < 2**50
    monkeypatch.setattr("mrdc.training.feed.free_memory", lambda device: room)
    feed = open_feed(plain([(10, 10)] * 100), 8, CPU)
    assert isinstance(feed, HostFeed)
    assert isinstance(feed.images, kind)


# Evaluation views


@pytest.mark.parametrize("resident", ["ram", "stream"])
def test_views_keep_order_and_labels(resident: Resident) -> None:
    """Centre crops of everything added, in that order, on every pass."""
    views = Views(8, CPU, resident, threads=2)
    assert list(views) == []
    expected = Examples()
    for part in (varied(7), plain([(9, 20)] * 130), varied(2)):
        views.add(part)
        expected += part
        for _ in range(2):
            images, labels = (torch.cat(half) for half in zip(*views, strict=True))
            assert labels.tolist() == list(expected.labels)
            assert images.dtype == torch.uint8
            for index, image in enumerate(images):
                assert torch.equal(image, centre_crop(expected[index][0], 8))


@pytest.mark.parametrize(("room", "reads"), [(10**9, 1), (100, 2)])
def test_views_are_made_once_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch, room: int, reads: int
) -> None:
    """The file is read when the view is added; without room, on every pass."""
    seen: list[bytes] = []

    def load() -> bytes:
        seen.append(jpeg(0))
        return seen[-1]

    monkeypatch.setattr("mrdc.training.evaluate.free_memory", lambda device: room)
    views = Views(8, CPU, "auto", threads=1)
    views.add(Examples((Photo("a", load),), (0,)))
    assert len([list(views) for _ in range(2)]) == 2
    assert len(seen) == reads
