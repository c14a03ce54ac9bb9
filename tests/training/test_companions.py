"""Images that come along with a batch, and stages that go on."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import mrdc.training.classes
import mrdc.training.feed
import mrdc.training.prepare
from mrdc.codec.image import Pixels
from mrdc.data.batch_crops import centre_crops, crop_batch
from mrdc.data.crops import centre_crop, tensor
from mrdc.data.examples import Companions, Examples, Places
from mrdc.data.loader import grouped
from mrdc.data.photo import Photo
from mrdc.methods.base import Lesson
from mrdc.training.classes import Run
from mrdc.training.feed import Feed, Resident, chosen, in_batches, open_feed
from mrdc.training.fit import Loss, Step, Stop, fit
from mrdc.training.resume import Keeper
from mrdc.training.settings import TrainSettings
from tests.conftest import jpeg
from tests.training.test_exemplars import run_settings, stream

pytestmark = pytest.mark.usefixtures("seeded")

Choice = Callable[[Places, np.random.Generator], tuple[Places, Places]]

CPU = torch.device("cpu")
RESIDENT = pytest.mark.parametrize("resident", ["gpu", "ram", "stream"])
CROPPED = pytest.mark.parametrize("cropped", [True, False])
RNG = np.random.default_rng(0)


def examples(images: Sequence[bytes | Pixels], labels: Sequence[int] | None = None) -> Examples:
    """Images that are labelled, and named, by their places unless labels are given."""
    photos = [Photo(str(place), partial(_same, image)) for place, image in enumerate(images)]
    return Examples(tuple(photos), tuple(range(len(photos)) if labels is None else labels))


def _same(data: bytes | Pixels) -> bytes | Pixels:
    return data


def greys(count: int) -> Examples:
    """Of several sizes, each of one grey: ten times its place."""
    sides = itertools.cycle([(12, 12), (9, 20), (30, 14)])
    return examples([np.full((*next(sides), 3), 10 * n, np.uint8) for n in range(count)])


def varied(count: int) -> Examples:
    """JPEG files of several sizes, with detail."""
    return examples([jpeg(n, 95, 20 + n % 7, 40 - n % 11) for n in range(count)])


def ramp(height: int, width: int) -> Pixels:
    """Red grows to the right, green downwards, as far as they can."""
    down, right = np.mgrid[0:height, 0:width]
    colours = [255 * right / max(width - 1, 1), 255 * down / max(height - 1, 1), 0 * right]
    image: Pixels = np.rint(np.stack(colours, 2)).astype(np.uint8)
    return image


def itself(choose: Callable[[Places, np.random.Generator], Places]) -> Choice:
    """A choice of places that are told, too."""

    def both(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        places = choose(batch, rng)
        return places, places

    return both


def drawn(count: int, among: int, cropped: bool) -> Companions:
    """So many at random, whatever the batch."""
    return Companions(itself(lambda batch, rng: rng.integers(among, size=count)), count, cropped)


def everyone(among: int, cropped: bool) -> Companions:
    """All images, with every batch."""
    return Companions(itself(lambda batch, rng: np.arange(among)), among, cropped)


def opened(source: Examples, resident: Resident, companions: Companions | None = None) -> Feed:
    return open_feed(source, 8, CPU, resident, threads=2, companions=companions)


def everything(feed: Feed, seed: int = 0, epoch: int = 0) -> list[Tensor]:
    """All of an epoch in batches of 5: images, labels, companions and their places."""
    return [torch.cat(part) for part in zip(*feed.epoch(5, seed, epoch), strict=True)]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# Batches and groups


@given(count=st.integers(1, 60), batch_size=st.integers(1, 9))
def test_batches_lose_nothing_and_leave_none_alone(count: int, batch_size: int) -> None:
    """In their order, all of the size asked for but the last, which has two at least."""
    order = np.random.default_rng(count).permutation(count)
    batches = in_batches(order, batch_size)
    assert np.concatenate(batches).tolist() == order.tolist()
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(batches[-1]) <= batch_size + 1
    assert len(batches[-1]) > 1 or count == 1


@pytest.mark.parametrize(
    ("count", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (5, [5]), (4, [4]), (1, [1])]
)
def test_batches_by_hand(count: int, sizes: list[int]) -> None:
    """Of 4: a ninth image joins the second batch, a tenth makes a third."""
    assert [len(batch) for batch in in_batches(np.arange(count), 4)] == sizes


@pytest.mark.parametrize("threads", [1, 3])
def test_groups_come_whole_and_in_order(threads: int) -> None:
    """Each as one batch of its items' views, however many threads make them."""
    groups = [[3, 1], [4], [1, 5, 9, 2], [6]]
    made = list(grouped(lambda item: torch.full((3, 2, 1), item), groups, threads))
    assert [views.shape for views in made] == [(len(group), 3, 2, 1) for group in groups]
    assert [views[:, 0, 0, 0].tolist() for views in made] == groups
    assert list(grouped(lambda item: torch.zeros(3, 1, 1), [], threads)) == []


def test_groups_are_made_a_little_ahead() -> None:
    """Of a thousand views, the first group waits for a few only."""
    made: list[int] = []

    def view(item: int) -> Tensor:
        made.append(item)
        return torch.zeros(3, 1, 1)

    groups = grouped(view, [list(range(n, n + 4)) for n in range(0, 1000, 4)], 1)
    next(groups)
    assert 4 <= len(made) < 100
    assert len(list(groups)) == 249
    assert sorted(made) == list(range(1000))


def test_nobody_comes_along_where_nobody_asked() -> None:
    """Else those that each batch and the generator say, and what is told of them."""
    batches = [np.array([4, 7, 2]), np.array([1])]
    for groups in chosen(None, batches, RNG):
        assert [(len(group), group.dtype) for group in groups] == [(0, batches[0].dtype)] * 2
    asked: list[tuple[Places, np.random.Generator]] = []

    def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        asked.append((batch, rng))
        return batch[::-1], batch + 10

    places, told = chosen(Companions(choose, 0, True), batches, RNG)
    assert [part.tolist() for part in places] == [[2, 7, 4], [1]]
    assert [part.tolist() for part in told] == [[14, 17, 12], [11]]
    assert all(batch is batches[n] and rng is RNG for n, (batch, rng) in enumerate(asked))
    assert len(asked) == 2


# Feeds


@RESIDENT
@CROPPED
def test_companions_are_the_images_at_their_places(resident: Resident, cropped: bool) -> None:
    """The grey tells who an image is; the batch's own images and labels come first."""
    feed = opened(greys(23), resident, drawn(3, 23, cropped))
    seen: list[int] = []
    for x, y, more, places in feed.epoch(5, 0, 0):
        assert (x.mean((1, 2, 3), dtype=torch.float) - 10 * y).abs().max() < 0.1
        assert (more.shape, places.shape) == ((3, 3, 8, 8), (3,))
        assert (more.mean((1, 2, 3), dtype=torch.float) - 10 * places).abs().max() < 0.1
        seen += y.tolist()
    assert sorted(seen) == list(range(23))


@RESIDENT
def test_companions_depend_on_their_batch(resident: Resident) -> None:
    """The next two places after each member's, member by member."""

    def choose(batch: Places, rng: np.random.Generator) -> Places:
        return np.stack([(batch + 1) % 12, (batch + 2) % 12], 1).ravel()

    feed = opened(greys(12), resident, Companions(itself(choose), 0, True))
    for _, y, more, places in feed.epoch(5, 0, 0):
        expected = torch.stack([(y + 1) % 12, (y + 2) % 12], 1).ravel()
        assert torch.equal(places, expected)
        assert (more.mean((1, 2, 3), dtype=torch.float) - 10 * places).abs().max() < 0.1


@RESIDENT
def test_a_cropped_companion_looks_as_it_does_in_its_own_batch(resident: Resident) -> None:
    """All through an epoch, in the company of any batch; otherwise in the next one."""
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
def test_a_companion_that_is_not_cropped_is_the_evaluation_view(resident: Resident) -> None:
    """To the bit from threads; on the GPU to a pixel, whatever the shape and the size.

    Images of more than 16 are scaled down first there.
    """
    sides = [(18, 18), (12, 20), (23, 14), (16, 16), (80, 60), (40, 70)]
    images = [ramp(*side) for side in sides]
    feed = opened(examples(images), resident, everyone(len(sides), False))
    _, _, more, _ = next(iter(feed.epoch(8, 0, 0)))
    for image, view in zip(images, more, strict=True):
        expected = centre_crop(tensor(image), 8)
        if resident != "gpu":
            assert torch.equal(view, expected)
            continue
        steps = [(expected[c, -1, -1].int() - expected[c, 0, 0].int()).item() / 7 for c in (0, 1)]
        difference = (view - expected.float()).abs().amax((1, 2))
        for number, step in enumerate(steps):
            assert difference[number] < step + 2
        assert difference[2] < 0.01


@RESIDENT
@CROPPED
def test_threads_change_no_companion(resident: Resident, cropped: bool) -> None:
    """However many decode, the same images and the same companions."""
    made = []
    for threads in (1, 3):
        feed = open_feed(
            varied(20), 8, CPU, resident, threads=threads, companions=drawn(4, 20, cropped)
        )
        made.append(everything(feed))
    assert equal(*made)


@RESIDENT
def test_companions_of_epochs_and_seeds_differ_and_repeat(resident: Resident) -> None:
    """Their places belong to (seed, epoch), and so do their crops."""
    feed = opened(varied(12), resident, drawn(6, 12, True))
    first = everything(feed)
    assert equal(first, everything(feed))
    assert equal(first, everything(opened(varied(12), resident, drawn(6, 12, True))))
    for other in (everything(feed, epoch=1), everything(feed, seed=1)):
        assert not torch.equal(other[3], first[3])
        assert not torch.equal(other[2], first[2])
    per_batch = first[3].view(-1, 6)
    assert len(set(map(tuple, per_batch.tolist()))) == len(per_batch)


@RESIDENT
@pytest.mark.parametrize(
    "companions", [everyone(12, True), everyone(12, False), drawn(3, 12, True)]
)
def test_batches_do_not_mind_their_company(resident: Resident, companions: Companions) -> None:
    """The same images in the same order with and without companions, drawn at random or not."""
    alone = everything(opened(varied(12), resident))
    assert len(alone) == 2
    assert equal(everything(opened(varied(12), resident, companions))[:2], alone)


@RESIDENT
@CROPPED
def test_a_batch_may_have_no_companions(resident: Resident, cropped: bool) -> None:
    """Then there are no images and no places."""
    feed = opened(greys(6), resident, Companions(itself(lambda batch, _: batch[:0]), 0, cropped))
    for x, y, more, places in feed.epoch(4, 0, 0):
        assert len(x) == len(y) > 0
        assert (more.shape, places.shape) == ((0, 3, 8, 8), (0,))


@RESIDENT
def test_what_is_told_of_companions_need_not_be_their_places(resident: Resident) -> None:
    """Nor as many: here each member's label, thrice, beside one image."""

    def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
        return batch[:1], np.repeat(batch, 3)

    for _, y, more, told in opened(greys(12), resident, Companions(choose, 0, True)).epoch(5, 0, 0):
        assert len(more) == 1
        assert told.tolist() == y.repeat_interleave(3).tolist()


def test_many_companions_are_cropped_a_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that neighbours of a whole batch take no more room on a GPU than the batch."""
    sizes: list[int] = []

    def watched(images: Tensor, crops: Tensor, size: int) -> Tensor:
        sizes.append(len(images))
        return crop_batch(images, crops, size)

    monkeypatch.setattr(mrdc.training.feed, "crop_batch", watched)
    feed = opened(greys(12), "gpu", everyone(12, True))
    _, _, more, _ = next(iter(feed.epoch(5, 0, 0)))
    assert sizes == [5, 5, 5, 2]
    assert (more.mean((1, 2, 3)) - 10 * torch.arange(12)).abs().max() < 0.1


# Evaluation views in batches


def through_crops(image: Pixels, size: int) -> Tensor:
    """The evaluation view by `centre_crops`."""
    height, width = (np.array([side], np.int64) for side in image.shape[:2])
    crops = np.stack(centre_crops(height, width, size)).astype(np.float32)
    return crop_batch(tensor(image)[None], torch.from_numpy(crops), size)[0]


def shift(image: Pixels, size: int) -> float:
    """How far the pixels of a view of a ramp are from those of `centre_crop`, in view pixels.

    A grey level is lost to rounding.
    """
    expected = centre_crop(tensor(image), size).float()
    difference = (through_crops(image, size) - expected).abs().amax((1, 2)) - 1
    height, width = image.shape[:2]
    pixel = min(height, width) / round(size * 256 / 224)
    steps: list[float] = [255 / (side - 1) * pixel for side in (width, height)]
    return max(float(difference[n]) / step for n, step in enumerate(steps))


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
    """To a pixel and a half at the edges, for images that are made smaller for it."""
    short = round(size * 256 / 224)
    assert shift(ramp(short + high, short + wide), size) < 1.5


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


@pytest.mark.parametrize(("height", "width", "size"), [(37, 37, 32), (64, 64, 32), (37, 50, 32)])
def test_centre_crops_start_where_the_evaluation_view_does(
    height: int, width: int, size: int
) -> None:
    """The middle of the view to a grey level."""
    image = ramp(height, width)
    middle = slice(size // 4, -size // 4)
    difference = through_crops(image, size) - centre_crop(tensor(image), size).float()
    assert difference[:, middle, middle].abs().max() < 1.01


# The loop


@dataclass
class Tuples:
    """A feed of images, labels and further tensors, in an order of (seed, epoch)."""

    parts: tuple[Tensor, ...]
    companions: Companions | None = None

    def __len__(self) -> int:
        return len(self.parts[0])

    def epoch(self, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(self)))
        for index in torch.split(order, batch_size):
            yield tuple(part[index] for part in self.parts)


def tuples(*more: Tensor) -> Tuples:
    images = torch.randint(0, 256, (10, 3, 4, 4), dtype=torch.uint8)
    return Tuples((images, torch.arange(10) % 2, *more))


TRAINING = TrainSettings(
    epochs=5, lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4, brightness=0.3,
    milestones=(0.6,),
)  # fmt: skip


def small() -> nn.Module:
    norm, conv = nn.BatchNorm2d(4), nn.Conv2d(3, 4, 3)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


def learning(model: nn.Module) -> Loss:
    return lambda x, y: nn.functional.cross_entropy(model(x.float() / 255), y)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_loss_sees_all_that_a_feed_brings(count: int) -> None:
    """Images, labels, and as many further tensors as there are, row by row, untouched."""
    model, seen = nn.Linear(1, 1), list[tuple[Tensor, ...]]()
    feed = tuples(*(torch.arange(10) + 100 * number for number in range(count)))

    def loss(*batch: Tensor) -> Tensor:
        seen.append(batch)
        return model.weight.sum()

    fit(model, loss, feed, replace(TRAINING, epochs=1, brightness=0.0), seed=3)
    expected = list(feed.epoch(4, 3, 0))
    assert [len(batch) for batch in seen] == [2 + count] * 3
    assert all(equal(list(a), list(b)) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_step_takes_tuples_of_any_length(length: int) -> None:
    """The weight goes down by the rate times the sum of all tensors, which is its gradient."""
    weight = nn.Parameter(torch.zeros(()))
    training = replace(TRAINING, lr=0.5, momentum=0.0, weight_decay=0.0)
    step = Step(
        lambda *batch: weight * torch.stack(batch).sum(), [weight], training, None, False,
        captures=False,
    )  # fmt: skip
    step(*(torch.ones(2) * n for n in range(length)))
    assert weight.item() == -0.5 * 2 * sum(range(length))


@pytest.mark.parametrize("cuts", [(1,), (2, 3), (1, 1, 4)])
def test_training_in_pieces_is_training_at_once(cuts: tuple[int, ...]) -> None:
    """Bit for bit: weights, statistics and momentum, over a schedule, with random brightness."""
    feed, whole = tuples(), small()
    model = copy.deepcopy(whole)
    last = fit(whole, learning(whole), feed, TRAINING, seed=3)
    stop: Stop | None = None
    for cut in cuts:
        stop = fit(model, learning(model), feed, TRAINING, seed=3, resume=stop, until=cut)
        assert stop.epoch == cut
    assert not equal(list(model.state_dict().values()), list(whole.state_dict().values()))
    stop = fit(model, learning(model), feed, TRAINING, seed=3, resume=stop)
    assert stop.epoch == last.epoch == 5
    assert equal(list(model.state_dict().values()), list(whole.state_dict().values()))
    assert equal(stop.momentum, last.momentum)
    assert all(bool(buffer.any()) for buffer in last.momentum)


def test_a_stop_can_be_gone_on_with_twice() -> None:
    """What one continuation does is not seen by the other."""
    feed, model = tuples(), small()
    stop = fit(model, learning(model), feed, TRAINING, seed=3, until=2)
    kept = copy.deepcopy(model), copy.deepcopy(stop)
    fit(model, learning(model), feed, TRAINING, seed=3, resume=stop, until=4)
    assert equal(stop.momentum, kept[1].momentum)
    assert stop.epoch == 2
    again = kept[0]
    fit(again, learning(again), feed, TRAINING, seed=3, resume=stop, until=4)
    assert equal(list(again.state_dict().values()), list(model.state_dict().values()))


def test_nothing_is_trained_that_has_been_already() -> None:
    """Until an epoch that is over: the same stop comes back, and no weight moves."""
    feed, model = tuples(), small()
    stop = fit(model, learning(model), feed, TRAINING, seed=3, until=2)
    before = copy.deepcopy(model.state_dict())
    same = fit(model, learning(model), feed, TRAINING, seed=3, resume=stop, until=2)
    assert same.epoch == 2 and equal(same.momentum, stop.momentum)
    assert equal(list(model.state_dict().values()), list(before.values()))


# Stages of a run


@dataclass
class Listens(Keeper):
    """Hears of epochs."""

    epochs: list[tuple[int | None, int]] = field(default_factory=list)  # stage, epoch

    def event(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "epoch":
            self.epochs.append((fields["stage"], fields["epoch"]))


def test_a_stage_that_goes_on_keeps_its_name_and_its_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Opened once, at the first of its calls, and closed after the main stage.

    Its batches are those that one call would see; a later stage has a number of its own.
    """
    monkeypatch.setattr(mrdc.training.prepare, "WIDTHS", {"resnet18-narrow": 2})
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    opened: list[Examples] = []

    def watched(part: Examples, *rest: Any) -> Feed:
        opened.append(part)
        return open_feed(part, *rest)

    monkeypatch.setattr(mrdc.training.classes, "open_feed", watched)
    keeper = Listens()
    run = Run(run_settings(), stream(2), keeper)
    sides = [varied(6)]
    sides.append(sides[0] + Examples())  # equal, but another
    seen: list[tuple[Tensor, Tensor]] = []
    open_at_end: list[int] = []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen.append((x, y))
        total: Tensor = run.model(x).scores.sum()
        return 0 * total

    def end_epoch(lesson: Lesson, epoch: int) -> None:
        stops = [lesson.fit(side, lesson.training, loss, resume=Stop(epoch, []), until=epoch + 1)
                 for side in sides]  # fmt: skip
        assert [stop.epoch for stop in stops] == [epoch + 1] * 2

    def end_phase(lesson: Lesson) -> None:
        open_at_end.append(len(run.beside))
        lesson.fit(sides[0], replace(lesson.training, epochs=1), loss)
        lesson.fit(sides[0], replace(lesson.training, epochs=1), loss)
        open_at_end.append(len(run.beside))
        lesson.store()

    monkeypatch.setattr(run.method, "end_epoch", end_epoch)
    monkeypatch.setattr(run.method, "end_phase", end_phase)
    run.learn(0)
    assert keeper.epochs == [
        (0, 1), (None, 1), (None, 1), (0, 2), (None, 2), (None, 2), (1, 1), (2, 1)
    ]  # fmt: skip
    assert [id(part) for part in opened[1:]] == [id(sides[n]) for n in (0, 1, 0, 0)]
    assert open_at_end == [0, 0]
    stages = [
        ("beside 0", 0),
        ("beside 1", 0),
        ("beside 0", 1),
        ("beside 1", 1),
        ("1", 0),
        ("2", 0),
    ]
    feed = open_feed(varied(6), 8, CPU, "ram")
    expected = [
        list(feed.epoch(8, run.seed(f"loader 0 {stage}"), epoch)) for stage, epoch in stages
    ]
    assert len(seen) == len(expected)
    for batch, (same,) in zip(seen, expected, strict=True):
        assert equal(list(batch), list(same))
