"""Companions: further images that come with every batch."""

import itertools
from collections.abc import Callable

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
from mrdc.data.loader import grouped
from mrdc.training.feed import Feed, Resident, chosen, in_batches, open_feed, shrunk
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


# Batches and groups


@given(count=st.integers(1, 60), batch_size=st.integers(1, 9))
def test_batches_lose_nothing_and_leave_no_image_alone(count: int, batch_size: int) -> None:
    """In order, all of the given size except the last, which has at least two."""
    order = np.random.default_rng(count).permutation(count)
    batches = in_batches(order, batch_size)
    assert np.concatenate(batches).tolist() == order.tolist()
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 < len(batches[-1]) <= batch_size + 1 or count == 1


@pytest.mark.parametrize(
    ("count", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (5, [5]), (4, [4]), (1, [1])]
)
def test_batches_by_hand(count: int, sizes: list[int]) -> None:
    """Batches of 4: a ninth image joins the second batch, a tenth makes a third."""
    assert [len(batch) for batch in in_batches(np.arange(count), 4)] == sizes


@pytest.mark.parametrize("threads", [1, 3])
def test_groups_come_whole_and_in_order(threads: int) -> None:
    """Each as one batch of its items' views."""
    groups = [[3, 1], [4], [1, 5, 9, 2], [6]]
    made = list(grouped(lambda item: torch.full((3, 2, 1), item), groups, threads))
    assert [views.shape for views in made] == [(len(group), 3, 2, 1) for group in groups]
    assert [views[:, 0, 0, 0].tolist() for views in made] == groups
    assert list(grouped(lambda item: torch.zeros(3, 1, 1), [], threads)) == []


def test_groups_are_made_a_little_ahead() -> None:
    """The first of 250 groups waits for a few views only."""
    made: list[int] = []

    def view(item: int) -> Tensor:
        made.append(item)
        return torch.zeros(3, 1, 1)

    groups = grouped(view, [list(range(n, n + 4)) for n in range(0, 1000, 4)], 1)
    next(groups)
    assert 4 <= len(made) < 100
    assert len(list(groups)) == 249
    assert sorted(made) == list(range(1000))


def test_companions_are_chosen_by_batch_and_generator() -> None:
    """Empty without companions; numbers are whatever the choice says."""
    rng, asked = np.random.default_rng(0), list[tuple[Places, np.random.Generator]]()
    batches = [np.array([4, 7, 2]), np.array([1])]
    for groups in chosen(None, batches, rng):
        assert [(len(group), group.dtype) for group in groups] == [(0, batches[0].dtype)] * 2

    def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        asked.append((batch, rng))
        return batch[::-1], batch + 10

    places, numbers = chosen(Companions(choose, 0, True), batches, rng)
    assert [part.tolist() for part in places] == [[2, 7, 4], [1]]
    assert [part.tolist() for part in numbers] == [[14, 17, 12], [11]]
    assert [(id(batch), given) for batch, given in asked] == [(id(b), rng) for b in batches]


# Feeds


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
def test_companions_depend_on_their_batch(resident: Resident) -> None:
    """The next two images after each member, member by member."""

    def choose(batch: Places, rng: np.random.Generator) -> Places:
        return np.stack([(batch + 1) % 12, (batch + 2) % 12], 1).ravel()

    feed = opened(greys(12), resident, companions(choose, 0, True))
    for _, y, more, places in feed.epoch(5, 0, 0):
        assert torch.equal(places, torch.stack([(y + 1) % 12, (y + 2) % 12], 1).ravel())
        assert off_by(more, places) < 0.1


@RESIDENT
@CROPPED
def test_batch_may_have_any_number_of_companions_and_numbers(
    resident: Resident, cropped: bool
) -> None:
    """None at all; or one image, and each member's label three times."""
    none = companions(lambda batch, _: batch[:0], 0, cropped)
    for x, y, more, places in opened(greys(6), resident, none).epoch(4, 0, 0):
        assert len(x) == len(y) > 0
        assert (more.shape, places.shape) == ((0, 3, 8, 8), (0,))
    one = Companions(lambda batch, _: (batch[:1], np.repeat(batch, 3)), 0, cropped)
    for _, y, more, numbers in opened(greys(12), resident, one).epoch(5, 0, 0):
        assert len(more) == 1
        assert numbers.tolist() == y.repeat_interleave(3).tolist()


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
    """Places and crops depend on (seed, epoch) alone, and never on the threads."""
    feed = opened(varied(12), resident, drawn(6, 12, True))
    first = everything(feed)
    assert equal(first, everything(feed))
    for threads in (1, 3):
        again = opened(varied(12), resident, drawn(6, 12, True), threads)
        assert equal(first, everything(again))
    for other in (everything(feed, epoch=1), everything(feed, seed=1)):
        assert not torch.equal(other[3], first[3])
        assert not torch.equal(other[2], first[2])
    per_batch = first[3].view(-1, 6)
    assert len(set(map(tuple, per_batch.tolist()))) == len(per_batch)


@RESIDENT
@pytest.mark.parametrize("more", [everyone(12, True), everyone(12, False), drawn(3, 12, True)])
def test_batches_do_not_depend_on_companions(resident: Resident, more: Companions) -> None:
    """The same images in the same order with and without them."""
    alone = everything(opened(varied(12), resident))
    assert len(alone) == 2
    assert equal(everything(opened(varied(12), resident, more))[:2], alone)


def test_many_companions_are_cropped_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they take no more room on a GPU than the batch."""
    sizes: list[int] = []

    def watched(images: Tensor, crops: Tensor, size: int) -> Tensor:
        sizes.append(len(images))
        return crop_batch(images, crops, size)

    monkeypatch.setattr("mrdc.training.feed.crop_batch", watched)
    _, _, more, _ = next(iter(opened(greys(12), "gpu", everyone(12, True)).epoch(5, 0, 0)))
    assert sizes == [5, 5, 5, 2]
    assert off_by(more, torch.arange(12)) < 0.1


# Evaluation views in batches


def through_crops(image: Pixels, size: int) -> Tensor:
    """The evaluation view by `centre_crops`."""
    height, width = (np.array([side], np.int64) for side in image.shape[:2])
    crops = np.stack(centre_crops(height, width, size)).astype(np.float32)
    return crop_batch(tensor(image)[None], torch.from_numpy(crops), size)[0]


@settings(max_examples=60, deadline=None)
@given(
    sides=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=5),
    size=st.integers(8, 224),
)
def test_centre_crops_are_squares_in_the_middle(sides: list[tuple[int, int]], size: int) -> None:
    """As large a part of the short side as the view is of its own, up to rounding; not mirrored."""
    height, width = (np.array(side, np.int64) for side in zip(*sides, strict=True))
    top, left, h, w, flip = centre_crops(height, width, size)
    short, least = round(size * 256 / 224), np.minimum(height, width)
    half = 0.56 * least / short  # a pixel of the view
    for start, length, whole in ((top, h, height), (left, w, width)):
        np.testing.assert_allclose(length, size / short * least, rtol=0.07)
        assert (abs(start + length / 2 - whole / 2) <= half).all()
        assert (start >= 0).all() and (start + length <= whole + 1e-3).all()
    assert not flip.any()


@settings(max_examples=60, deadline=None)
@given(size=st.integers(4, 24), high=st.integers(0, 40), wide=st.integers(0, 40))
def test_centre_crops_are_the_evaluation_view(size: int, high: int, wide: int) -> None:
    """To a pixel and a half of the view, and a grey level, if the image is made smaller for it."""
    short = round(size * 256 / 224)
    image = ramp(short + high, short + wide)
    difference = (through_crops(image, size) - centre_crop(tensor(image), size).float()).abs()
    height, width = image.shape[:2]
    pixel = min(height, width) / short
    for channel, side in enumerate((width, height)):
        assert difference[channel].max() - 1 < 1.5 * 255 / (side - 1) * pixel


@settings(max_examples=60, deadline=None)
@given(size=st.integers(4, 24), high=st.integers(2, 30), wide=st.integers(2, 30))
def test_centre_crops_of_small_images_are_numbers(size: int, high: int, wide: int) -> None:
    """Between the darkest and the brightest of the image, also where it is enlarged."""
    view = through_crops(ramp(high, wide), size)
    assert view.isfinite().all()
    assert view.min() > -0.01 and view.max() < 255.01


def test_long_images_are_numbers_on_the_gpu() -> None:
    """64 x 16 become 16 x 4, and then 18 x 9 around a view of 8."""
    feed = opened(examples([ramp(64, 16), ramp(16, 64)]), "gpu", everyone(2, False))
    _, _, more, _ = next(iter(feed.epoch(2, 0, 0)))
    assert more.isfinite().all()


@pytest.mark.parametrize(("height", "width"), [(37, 37), (64, 64), (37, 50)])
def test_centre_crops_start_where_the_evaluation_view_does(height: int, width: int) -> None:
    """The middle of the view to a grey level."""
    image = ramp(height, width)
    difference = through_crops(image, 32) - centre_crop(tensor(image), 32).float()
    assert difference[:, 8:-8, 8:-8].abs().max() < 1.01
