"""Companions: extra images that come with every batch."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mrdc.codec.image import Pixels
from mrdc.data.batch_crops import centre_crops, crop_batch
from mrdc.data.crops import centre_crop, tensor
from mrdc.data.examples import Companions, Examples, Places
from mrdc.training.batches import Feed
from mrdc.training.feed import Resident, open_feed
from mrdc.training.pictures import shrunk
from tests.training.feeds import CPU, PLACES, equal, everything, examples, plain, ramp, varied

pytestmark = pytest.mark.usefixtures("seeded")

RESIDENT = pytest.mark.parametrize("resident", PLACES)
CROPPED = pytest.mark.parametrize("cropped", [True, False])


def greys(count: int) -> Examples:
    """Images of several sizes, each of one grey: ten times its label."""
    sides = itertools.cycle([(12, 12), (9, 20), (30, 14)])
    return plain(list(itertools.islice(sides, count)), 10)


def companions(
    choose: Callable[[Places, np.random.Generator], Places], count: int, cropped: bool
) -> Companions:
    """Companions whose numbers are their places."""

    def both(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        places = choose(batch, rng)
        return places, places

    return Companions(both, count, cropped)


def drawn(count: int, among: int, cropped: bool) -> Companions:
    """A random draw, whatever the batch."""
    return companions(lambda batch, rng: rng.integers(among, size=count), count, cropped)


def everyone(among: int, cropped: bool) -> Companions:
    """All images, with every batch."""
    return companions(lambda batch, rng: np.arange(among), among, cropped)


def opened(
    source: Examples, resident: Resident, more: Companions | None = None, threads: int = 2
) -> Feed:
    return open_feed(source, 8, CPU, resident, threads=threads, companions=more)


def off_by(images: Tensor, labels: Tensor) -> float:
    """Largest difference between the grey of an image and that of its label."""
    return float((images.mean((1, 2, 3), dtype=torch.float) - 10 * labels).abs().max())


@RESIDENT
@CROPPED
def test_companions_are_the_images_at_their_places(resident: Resident, cropped: bool) -> None:
    """The grey identifies an image; the batch's own images and labels come first."""
    seen: list[int] = []
    for x, y, more, places in opened(greys(23), resident, drawn(3, 23, cropped)).epoch(5, 0, 0):
        assert (more.shape, places.shape) == ((3, 3, 8, 8), (3,))
        assert off_by(x, y) < 0.1 and off_by(more, places) < 0.1
        seen += y.tolist()
    assert sorted(seen) == list(range(23))


@RESIDENT
@CROPPED
def test_companions_and_their_numbers_depend_on_the_batch(
    resident: Resident, cropped: bool
) -> None:
    """None at all; one image, and each label three times; or the next two after each member."""
    none = companions(lambda batch, _: batch[:0], 0, cropped)
    for x, y, more, places in opened(greys(6), resident, none).epoch(4, 0, 0):
        assert len(x) == len(y) > 0
        assert (more.shape, places.shape) == ((0, 3, 8, 8), (0,))
    one = Companions(lambda batch, _: (batch[:1], np.repeat(batch, 3)), 0, cropped)
    for _, y, more, numbers in opened(greys(12), resident, one).epoch(5, 0, 0):
        assert len(more) == 1
        assert numbers.tolist() == y.repeat_interleave(3).tolist()
    two = companions(lambda b, _: np.stack([(b + 1) % 12, (b + 2) % 12], 1).ravel(), 0, cropped)
    for _, y, more, places in opened(greys(12), resident, two).epoch(5, 0, 0):
        assert torch.equal(places, torch.stack([(y + 1) % 12, (y + 2) % 12], 1).ravel())
        assert off_by(more, places) < 0.1


@RESIDENT
def test_cropped_companion_looks_as_it_does_in_its_own_batch(resident: Resident) -> None:
    """Throughout an epoch, whatever batch it comes with; it differs in the next epoch."""
    feed = opened(varied(12), resident, everyone(12, True))
    views: list[Tensor] = []
    for epoch in (0, 1):
        batches = list(feed.epoch(5, 0, epoch))
        x, y = (torch.cat(part) for part in list(zip(*batches, strict=True))[:2])
        own = x[y.argsort()].float()
        for _, _, more, places in batches:
            assert places.tolist() == list(range(12))
            torch.testing.assert_close(more.float(), own, rtol=0, atol=1e-3)
        views.append(own)
    assert ((views[0] - views[1]).abs().amax((1, 2, 3)) > 1).all()


@RESIDENT
def test_the_views_of_an_epoch_can_be_seen_before_it(resident: Resident) -> None:
    """All of them, in the order of the examples, before any companion is chosen."""
    seen: list[Tensor] = []

    def match(views: Iterator[Tensor]) -> None:
        seen.append(torch.cat(list(views)).float())

    def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        assert len(seen) == epoch + 1
        return batch[:0], batch[:0]

    feed = opened(varied(11), resident, Companions(choose, 0, True, match))
    for epoch in (0, 1):
        x, y = (torch.cat(part) for part in list(zip(*feed.epoch(4, 0, epoch), strict=True))[:2])
        torch.testing.assert_close(seen[epoch], x[y.argsort()].float(), rtol=0, atol=1e-3)


@RESIDENT
def test_companion_that_is_not_cropped_is_the_evaluation_view(resident: Resident) -> None:
    """Exactly from threads, to a pixel on the GPU, whatever shape the image has."""
    sides = [(18, 18), (12, 20), (23, 14), (16, 16), (80, 60), (40, 70)]
    images = [ramp(*side) for side in sides]
    feed = opened(examples(images), resident, everyone(len(sides), False))
    _, _, more, _ = next(iter(feed.epoch(8, 0, 0)))
    for image, view in zip(images, more, strict=True):
        expected = centre_crop(shrunk(tensor(image), 16), 8)
        if resident != "gpu":
            assert torch.equal(view, expected)
            continue
        steps = (expected[:2, -1, -1].float() - expected[:2, 0, 0].float()) / 7
        difference = (view - expected.float()).abs().amax((1, 2))
        assert (difference[:2] < steps + 2).all() and difference[2] < 0.01


@RESIDENT
def test_companions_differ_by_epoch_and_seed_and_repeat(resident: Resident) -> None:
    """Places and crops depend only on (seed, epoch), not on threads; batches on neither."""
    feed = opened(varied(12), resident, drawn(6, 12, True))
    first = everything(feed)
    for more in (None, everyone(12, True), everyone(12, False)):
        assert equal(everything(opened(varied(12), resident, more))[:2], first[:2])
    assert equal(first, everything(feed))
    for threads in (1, 3):
        again = opened(varied(12), resident, drawn(6, 12, True), threads)
        assert equal(first, everything(again))
    for other in (everything(feed, epoch=1), everything(feed, seed=1)):
        assert not torch.equal(other[3], first[3])
        assert not torch.equal(other[2], first[2])
    per_batch = first[3].view(-1, 6)
    assert len(set(map(tuple, per_batch.tolist()))) == len(per_batch)


def test_many_companions_are_cropped_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So they take no more room on a GPU than the batch."""
    sizes: list[int] = []

    def watched(images: Tensor, crops: Tensor, size: int) -> Tensor:
        sizes.append(len(images))
        return crop_batch(images, crops, size)

    monkeypatch.setattr("mrdc.training.gpu_feed.crop_batch", watched)
    _, _, more, _ = next(iter(opened(greys(12), "gpu", everyone(12, True)).epoch(5, 0, 0)))
    assert sizes == [5, 5, 5, 2]
    assert off_by(more, torch.arange(12)) < 0.1


# Evaluation views in batches


def through_crops(image: Pixels, size: int) -> Tensor:
    """The evaluation view by `centre_crops`."""
    height, width = (np.array([side], np.int64) for side in image.shape[:2])
    crops = np.stack(centre_crops(height, width, size)).astype(np.float32)
    return crop_batch(tensor(image)[None], torch.from_numpy(crops), size)[0]


@settings(max_examples=100, deadline=None)
@given(size=st.integers(4, 24), height=st.integers(2, 60), width=st.integers(2, 60))
def test_centre_crops_are_the_evaluation_view(size: int, height: int, width: int) -> None:
    """To a pixel and a half and a grey level if made smaller; within the image's range if not."""
    short, image = round(size * 256 / 224), ramp(height, width)
    view = through_crops(image, size)
    assert view.isfinite().all() and view.min() > -0.01 and view.max() < 255.01
    if min(height, width) < short:
        return
    difference = (view - centre_crop(tensor(image), size).float()).abs()
    pixel = min(height, width) / short
    for channel, side in enumerate((width, height)):
        assert difference[channel].max() - 1 < 1.5 * 255 / (side - 1) * pixel


@pytest.mark.parametrize(("height", "width"), [(37, 37), (64, 64), (37, 50)])
def test_centre_crops_start_where_the_evaluation_view_does(height: int, width: int) -> None:
    """The middle of the view to a grey level."""
    image = ramp(height, width)
    difference = through_crops(image, 32) - centre_crop(tensor(image), 32).float()
    assert difference[:, 8:-8, 8:-8].abs().max() < 1.01
