"""The memory of a run: previews, ranks, budgets, substitutes, and images encoded once."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from mrdc._utils.clock import Clock
from mrdc._utils.errors import BudgetError, UsageError
from mrdc.codec import CODECS
from mrdc.codec.image import Pixels, decode
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import embed
from mrdc.planning import search as planning
from mrdc.planning.selection import herding, kernel_herding
from mrdc.training.exemplars import Arrange, Exemplars, keep_order
from mrdc.training.settings import MemorySettings
from tests.conftest import CHEAP
from tests.helpers import small_stream
from tests.planning.commands import Counting

pytestmark = pytest.mark.usefixtures("seeded")


def stream(*sizes: int, images: int = 8) -> Stream:
    """Small JPEG files with the same names in every class."""
    made = small_stream(*sizes, images=images, height=20, width=24)
    photos = tuple(
        [Photo(str(n), one.load) for n, one in enumerate(of_class)]
        for of_class in made.train.photos
    )
    return Stream(replace(made.train, photos=photos), made.test, sizes)


def filling(
    source: Stream | None = None, arrange: Arrange = keep_order, **memory: Any
) -> Exemplars:
    """The memory of two phases of two classes, by default with originals."""
    usual: dict[str, Any] = {"budget": "6/class", "quality": "original", "qualities": (50,)}
    settings = MemorySettings(**usual | memory)
    return Exemplars(settings, source or stream(2, 2), arrange, threads=2)


def store(made: Exemplars, *phases: int) -> Exemplars:
    for phase in phases:
        made.store(phase, CHEAP, Clock())
    return made


def held(memory: ReplayMemory) -> dict[tuple[int, str], bytes]:
    """Stored files by label and name."""
    names = [name for label in memory.labels for name in memory.sources(label)]
    keys = zip(memory.targets, names, strict=True)
    return {key: memory.encoded(place) for place, key in enumerate(keys)}


# Budgets


def fits(budget: int, *codecs: str) -> bool:
    """Whether a budget holds an image of every class."""
    try:
        filling(codec=codecs, quality="auto", budget=str(budget)).check()
    except BudgetError:
        return False
    return True


def test_a_budget_is_refused_only_if_no_codec_fits_it() -> None:
    """The order of the codecs does not matter."""
    budgets = range(1500, 6000, 500)
    alone = [[fits(budget, codec) for budget in budgets] for codec in ("jpeg", "webp")]
    assert alone[0] != alone[1]
    for codecs in (("jpeg", "webp"), ("webp", "jpeg")):
        assert [fits(budget, *codecs) for budget in budgets] == list(
            map(any, zip(*alone, strict=True))
        )


# Searching and encoding


@pytest.mark.parametrize("quality", ["auto", "dynamic", "50"])
def test_images_that_the_search_encoded_are_stored(
    quality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is encoded once, and stored as without a search."""
    codec = Counting()
    monkeypatch.setitem(CODECS, codec.name, codec)
    made = filling(codec=(codec.name,), qualities=(50, 40), quality=quality, budget="2/class")
    plain = ReplayMemory(made.budget, CODECS["jpeg"], 50)
    for phase, labels in enumerate(made.stream.phases):
        codec.calls.clear()
        store(made, phase)
        photos = {label: made.stream.train.photos[label] for label in labels}
        for label, of_class in photos.items():
            pixels = [of_class[int(name)].pixels() for name in made.memory.sources(label)]
            assert [codec.calls[one.tobytes(), made.quality] for one in pixels] == [1] * len(pixels)
        assert {given for _, given in codec.calls} == {50, 40}
        ranks = {label: herding(embed(of, CHEAP)[0], 8) for label, of in photos.items()}
        plain.quality = made.quality
        plain.add({label: [photos[label][n] for n in order] for label, order in ranks.items()})
    assert made.quality in (40, 50)
    assert held(made.memory) == held(plain)


@pytest.mark.parametrize(("room", "times"), [(1e9, {1}), (0, {4})])
def test_originals_are_decoded_once_for_all_qualities(
    room: float, times: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is room for their pixels; else for features, and for every candidate."""
    seen: Counter[bytes] = Counter()

    def counted(data: bytes, name: str) -> Pixels:
        seen[data] += 1
        return decode(data, name)

    monkeypatch.setattr("mrdc.data.photo.decode", counted)
    monkeypatch.setattr("mrdc.training.exemplars.free_memory", lambda device: room)
    made = filling(quality="auto", qualities=(50, 40), budget="90/class")
    store(made, 0)
    originals = [photo.load() for photo in made.stream.fresh(0).all_photos]
    assert {seen[data] for data in originals if isinstance(data, bytes)} == times


def test_features_of_a_preview_are_used_if_the_network_is_the_same() -> None:
    """The key identifies the network; without a key they are not used."""
    calls: list[int] = []

    def network(images: Tensor) -> Tensor:
        calls.append(len(images))
        return CHEAP.network(images)

    made, watched = filling(quality="50"), replace(CHEAP, network=network)
    for key, more in ((None, True), ("a", True), ("a", False), ("b", True)):
        calls.clear()
        made.preview(0, replace(watched, key=key), Clock())
        assert (sum(calls) >= 16) == more, key
    calls.clear()
    made.store(0, replace(watched, key="b"), Clock())
    assert held(made.memory) == held(store(filling(quality="50"), 0).memory)


@pytest.mark.parametrize(("quality", "searches"), [("auto", 1), ("dynamic", 1), ("50", 0)])
def test_preview_chooses_the_quality_if_none_is_chosen_yet(
    quality: str, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per phase, so that what is stored is what was previewed."""
    budgets: list[object] = []

    def search(*arguments: Any, **options: Any) -> Any:
        budgets.append(arguments[1])
        return planning.search(*arguments, **options)

    monkeypatch.setattr("mrdc.training.exemplars.search", search)
    made = filling(quality=quality, criterion="volume-ratio", epsilon=1e9)
    assert made.quality == (50 if quality == "50" else None)
    seen = made.preview(0, CHEAP, Clock())
    assert (made.quality, seen.quality, len(budgets)) == (50, 50, searches)
    assert len(made.memory) == 0
    made.settings = replace(made.settings, epsilon=1e-9)  # by which nothing passes
    store(made, 0)
    assert (made.quality, made.memory.quality, len(budgets)) == (50, 50, 1)
    assert held(made.memory) == held(seen)
    assert [candidate.quality for candidate in made.found.candidates] == [None, 50]


def test_a_run_stores_at_a_scale() -> None:
    """A fixed quality at a fixed scale; two scales need a search."""
    made = store(filling(quality="50", scale=(0.5,), qualities=(50,)), 0, 1)
    assert made.memory.codec.name == "jpeg@0.5"
    assert made.summary()["codec"] == "jpeg@0.5"
    shape = made.stream.train.photos[0][0].pixels().shape
    assert {photo.pixels().shape for photo in made.memory.examples().photos} == {shape}
    with pytest.raises(UsageError, match=r"--memory.quality 50: give one --memory.scale with it"):
        filling(quality="50", scale=(1.0, 0.5))


@pytest.mark.parametrize(("quality", "compressed"), [("10", True), ("original", False)])
def test_kernel_herding_ranks_compressed_images_of_a_known_quality(
    quality: str, compressed: bool
) -> None:
    """So that the stored images, not their sources, represent all originals."""
    made = store(
        filling(quality=quality, select="kernel_herding", budget="3/class", qualities=(10,)), 0
    )
    differ = False
    for label in (0, 1):
        photos = made.stream.train.photos[label]
        everything = ReplayMemory("1MB", made.pair[0], made.pair[1])
        everything.add({0: [photo.load() for photo in photos]})
        rows, targets = embed(everything.examples().photos, CHEAP)[0], made.features[label]
        order = kernel_herding(rows if compressed else targets, len(photos), 0, targets)
        names = made.memory.sources(label)
        assert [photos[place].id for place in order[: len(names)]] == names
        differ |= order.tolist() != kernel_herding(targets, len(photos)).tolist()
    assert differ is compressed  # otherwise the two could not be told apart


def test_preview_holds_the_new_classes_alone() -> None:
    """As they will be stored, give or take one at the end; the memory is unchanged."""
    made = store(filling(), 0)
    before = held(made.memory)
    seen = made.preview(1, CHEAP, Clock())
    assert seen.labels == [2, 3]
    assert held(made.memory) == before
    store(made, 1)
    assert made.memory.labels == [0, 1, 2, 3]
    for label in (2, 3):
        shown, stored = seen.sources(label), made.memory.sources(label)
        both = min(len(shown), len(stored))
        assert shown[:both] == stored[:both] and abs(len(shown) - len(stored)) <= 1
        assert all(held(seen)[label, n] == held(made.memory)[label, n] for n in shown[:both])


def test_fixed_budget_is_shared_with_older_classes() -> None:
    """10 originals: all for the first two classes, half of them for the next two."""
    made = filling(budget="10 originals", accounting="file")
    for phase, room in enumerate((10, 5)):
        seen = made.preview(phase, CHEAP, Clock())
        store(made, phase)
        assert abs(made.found.candidates[0].quantity - room) <= 1
        assert abs(len(seen) - room) <= 1


@pytest.mark.parametrize("pairing", ["paired", "independent"])
def test_images_are_ranked_by_originals_or_by_compressed_images(pairing: str) -> None:
    """By herding, in the order that the method makes of it; the best that fit are stored."""
    source = stream(2, images=12)
    made = filling(source, lambda ids, ranks, label: ranks[::-1], pairing=pairing, quality="10")
    store(made, 0)
    differ = False
    for label in (0, 1):
        photos = made.stream.train.photos[label]
        coded = ReplayMemory("1MB", "jpeg", 10)
        coded.add({0: photos})
        files = [Photo(str(n), partial(coded.encoded, n)) for n in range(12)]
        by_file, by_code = (herding(embed(of, CHEAP)[0], 12)[::-1] for of in (photos, files))
        differ |= by_file.tolist() != by_code.tolist()
        names = made.memory.sources(label)
        ranks = by_file if pairing == "paired" else by_code
        assert len(names) > 1 and names == [photos[n].id for n in ranks[: len(names)]]
    assert differ  # otherwise the two pairings could not be told apart


# Substitutes


@pytest.mark.parametrize("quality", ["90", "original"])
@pytest.mark.parametrize("phase", [0, 1])
def test_substitutes_are_stored_instead(quality: str, phase: int) -> None:
    """Under their labels and names, and nothing else of the phase; older classes are kept."""
    plain, other = filling(quality=quality), filling(quality=quality)
    store(other, *range(phase))
    store(plain, *range(phase + 1))
    before = held(plain.memory)
    label = 2 * phase + 1
    first, second = (plain.memory.sources(n) for n in (label - 1, label))
    names = [name for name in second if name in first][:2]  # in both classes
    substitutes = {
        (label, name): np.full((16, 16, 3), (10 + 40 * n, 200, 90), np.uint8)
        for n, name in enumerate(names)
    }
    assert len(substitutes) == 2 < len(second)
    substitutes[label - 1, names[0]] = np.full((16, 16, 3), (5, 6, 7), np.uint8)
    other.store(phase, CHEAP, Clock(), substitutes)
    after = held(other.memory)
    for key, wanted in substitutes.items():
        assert after[key][:2] == b"\xff\xd8"
        assert np.abs(decode(after[key]).astype(int) - wanted).max() <= 3
        if quality == "original":
            assert after[key] == CODECS["jpeg"].encode(wanted, 95)
    older = {key: value for key, value in before.items() if key[0] < label - 1}
    assert {key: value for key, value in after.items() if key not in substitutes} == older
    assert other.memory.nbytes <= other.memory.budget_bytes


@pytest.mark.parametrize("quality", ["90", "original"])
def test_substitutes_are_charged_to_the_budget(quality: str) -> None:
    """Noise takes more bytes than a photo, so fewer images fit, first ranks first."""
    plain, other = store(filling(quality=quality), 0), filling(quality=quality)
    rng = np.random.default_rng(0)
    noise = {key: rng.integers(0, 256, (48, 48, 3), dtype=np.uint8) for key in held(plain.memory)}
    other.store(0, CHEAP, Clock(), noise)
    assert other.memory.nbytes <= other.memory.budget_bytes
    assert 2 <= len(other.memory) < len(plain.memory)
    for label in (0, 1):
        kept = other.memory.sources(label)
        assert kept == plain.memory.sources(label)[: len(kept)]
        assert all(decode(held(other.memory)[label, name]).shape == (48, 48, 3) for name in kept)
