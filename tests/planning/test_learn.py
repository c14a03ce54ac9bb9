"""`Replay`: ranks, chooses a quality, stores."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from mrdc._utils.errors import BudgetError, MrdcError, UsageError
from mrdc.codec import CODECS
from mrdc.data.photo import Photo
from mrdc.memory.budget import Budget
from mrdc.memory.replay import ReplayMemory
from mrdc.nn.embed import embed
from mrdc.nn.embedder import Embedder
from mrdc.planning.learn import Replay
from mrdc.planning.search import Found, Pool, search
from mrdc.planning.selection import herding, kernel_herding
from mrdc.planning.settings import SearchSettings
from tests.conftest import CHEAP, jpeg, make_photos, pixels
from tests.planning.commands import Counting

pytestmark = pytest.mark.usefixtures("seeded")


def photos(label: int, images: int = 10, start: int = 0) -> list[bytes]:
    return [jpeg(100 * label + n) for n in range(start, start + images)]


def replay(budget: str = "12kB", quality: int | str = "auto", **options: Any) -> Replay:
    usual: dict[str, Any] = {"embed": CHEAP, "qualities": (75, 25), "threads": 1}
    return Replay(budget, quality, **usual | options)


def by_herding(images: list[bytes]) -> list[int]:
    rows = embed([Photo(str(n), lambda i=i: i) for n, i in enumerate(images)], CHEAP)[0]  # type: ignore[misc]
    return [int(n) for n in herding(rows, len(images))]


def test_the_quality_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When images are first learned, or every time if asked; a fixed one needs no search."""
    budgets: list[int] = []

    def counted(pool: Pool, budget: Budget, settings: SearchSettings) -> Found:
        budgets.append(budget.total_bytes(1))
        return search(pool, budget, settings)

    monkeypatch.setattr("mrdc.planning.learn.search", counted)
    cases: Any = (("auto", [12_000], 75), ("dynamic", [12_000, 6_000], 25), (50, [], 50))
    for quality, expected, last in cases:
        budgets.clear()
        made = replay(quality=quality, epsilon=1e9)
        made.learn({0: photos(0), 1: photos(1)}).learn({2: photos(2), 3: photos(3)})
        assert budgets == expected
        assert made.memory.labels == [0, 1, 2, 3]
        assert made.memory.quality == last
    replay(classes=8).learn({0: photos(0), 1: photos(1)})
    assert budgets == [3_000]


def test_images_that_the_search_encoded_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is encoded once, and stored in the order of the selector."""
    codec = Counting()
    monkeypatch.setitem(CODECS, codec.name, codec)
    made = replay("4kB", codec=codec, qualities=50, epsilon=1e9)
    images = [pixels(n) for n in range(20)]
    made.learn({5: images})
    order = [int(name.partition("/")[2]) for name in made.memory.sources(5)]
    assert 0 < len(order) < 20
    files = [CODECS["png"].encode(image) for image in images]
    assert order == by_herding(files)[: len(order)]
    assert [codec.calls[images[n].tobytes(), 50] for n in order] == [1] * len(order)
    assert [candidate.quality for candidate in made.found.candidates] == [None, 50]


def test_settings_of_the_search_are_passed_on() -> None:
    """With a tiny epsilon nothing passes, so originals are kept."""
    made = replay("1MB", epsilon=1e-9, qualities=(30, 20)).learn({0: photos(0)})
    assert made.memory.codec.name == "original"
    made = replay("1MB", epsilon=1e9, codec="webp", select="nearest_mean").learn({0: photos(0)})
    assert str(made.found.chosen) == "original"  # all images fit
    made = replay("5kB", epsilon=1e9, codec="webp", qualities=20).learn({0: photos(0, 30)})
    assert (made.memory.codec.name, made.memory.quality) == ("webp", 20)


def test_more_is_allowed_where_new_images_are_matched() -> None:
    """Wider limits of r, and a lower quality."""
    made = [Replay("12kB", embed=CHEAP, threads=1, matched=matched) for matched in (False, True)]
    plain, matched = (one.learn({0: photos(0)}) for one in made)
    assert (plain.settings.limits, matched.settings.limits) == ((0.95, 1.03), (0.5, 1.5))
    assert 5 in {c.quality for c in matched.found.candidates}
    assert 5 not in {c.quality for c in plain.found.candidates}


def test_classes_may_come_again() -> None:
    """With names that stay unique, and values in the order of the ranking."""
    made = replay("1MB", 50)
    for start in (0, 6):
        images = photos(3, 6, start)
        numbers = {"number": list(range(start, start + 6)), "row": torch.arange(6.0)[:, None]}
        made.learn({np.int64(3): images}, values={np.int64(3): numbers})  # type: ignore[arg-type, dict-item]
    memory = made.memory
    assert memory.seen(3) == len(memory) == 12
    names = [int(name.partition("/")[2]) for name in memory.sources(3)]
    assert [memory.values(n)["number"] for n in range(12)] == names
    first = [n for n in names if n < 6]
    assert first == by_herding(photos(3, 6))
    images, labels = made.sample(4)
    assert images.shape == (4, 3, 24, 32) and labels.tolist() == [3] * 4


class Network(nn.Module):
    """Features of 8 x 8 images that differ in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.dropout = nn.Dropout(0.5)
        self.norm.eval()
        self.shapes: set[tuple[int, ...]] = set()

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        self.shapes.add(tuple(images.shape[1:]))
        return self.features(images)

    def features(self, images: Tensor) -> Tensor:
        assert not self.dropout.training
        result: Tensor = self.dropout(self.norm(images)).flatten(1)
        return result


@pytest.mark.parametrize("method", [False, True])
def test_a_network_in_training_can_embed(method: bool) -> None:
    """It is in evaluation mode meanwhile, and gets the views it is trained on."""
    network = Network()
    network.train()
    network.norm.eval()
    made = Replay(
        "5kB",
        embed=network.features if method else network,
        view=lambda image: image[:, :8, :8].float() / 255,
        transform=lambda image: image.float(),
        qualities=(50,),
    )
    made.learn({0: photos(0), 1: [jpeg(5, 95, 9, 8), *photos(1)]})
    assert network.training and network.dropout.training and not network.norm.training
    assert method or network.shapes == {(3, 8, 8)}
    assert made.memory[0][0].dtype == torch.float32


def test_a_fixed_quality_may_have_a_scale() -> None:
    made = replay("1MB", 50, scale=0.5).learn({0: photos(0, 2)})
    assert made.memory.codec.name == "jpeg@0.5"


def test_kernel_herding_ranks_what_is_stored_if_the_quality_is_known() -> None:
    """But not where features are given, so that nothing is embedded."""
    images = photos(0)
    made = replay("1MB", 5, select="kernel_herding").learn({0: images})
    rows = embed([Photo(str(n), lambda i=i: i) for n, i in enumerate(images)], CHEAP)[0]  # type: ignore[misc]
    kept = ReplayMemory("1MB", "jpeg", 5)
    kept.add({0: images})
    seen = embed([Photo(str(n), partial(kept.encoded, n)) for n in range(len(images))], CHEAP)[0]
    order = kernel_herding(seen, len(images), 0, rows).tolist()
    assert order != kernel_herding(rows, len(images), 0, rows).tolist()
    assert made.memory.sources(0) == [f"0/{n}" for n in order]
    given = replay("1MB", 5, select="kernel_herding", embed=pytest.fail)
    by_given = kernel_herding(rows, len(images), 0, rows).tolist()
    assert given.learn({0: images}, features={0: rows}).memory.sources(0) == [
        f"0/{n}" for n in by_given
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quality": "best"}, "quality must be auto, dynamic, original or a number, got 'best'"),
        ({"quality": 0}, "from 1 to 100, got 0"),
        ({"quality": 50, "codec": ("jpeg", "webp")}, "quality 50 needs one codec, got jpeg, webp"),
        ({"quality": 50, "scale": (1.0, 0.5)}, "quality 50 needs one scale, got 2"),
        ({"epsilo": 1}, "unknown setting of Replay 'epsilo' .did you mean 'epsilon'"),
        ({"select": "hering"}, "unknown selector 'hering'"),
        ({"budget": "lots"}, "invalid budget 'lots'"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    """When the object is created."""
    with pytest.raises(UsageError, match=message):
        replay(**arguments)


def test_wrong_images_change_nothing() -> None:
    """Wrong images of any class, and a budget that nothing fits."""
    made = replay("6kB", 50)
    made.learn({0: photos(0)}).learn({})
    before = made.memory.sources(0)
    for images, message in (
        ({1: photos(1), 2: []}, "class 2 has no image"),
        ({1: photos(1), 2: [torch.rand(3, 8, 8)]}, "image 0 of class 2: got float32 tensor; pass"),
        ({1: photos(1), 0: [b"text"]}, "0/10: not an image file"),
        ({1: made.memory.encoded_images(0)}, "class 1 has encoded images"),
    ):
        with pytest.raises(MrdcError, match=message):
            made.learn(images)
    assert (made.memory.labels, made.memory.sources(0)) == ([0], before)
    with pytest.raises(BudgetError, match="no quality passes and originals do not fit: original"):
        replay("2kB").learn({0: photos(0)})


def test_replays_describe_themselves() -> None:
    """In a console; an empty one is false, like a list."""
    made = replay("1MB", 50)
    assert not made and repr(made).startswith("<Replay of <ReplayMemory: 0 images")
    assert len(made.learn({0: photos(0, 3)})) == 3


def test_features_may_be_given() -> None:
    """Then nothing is embedded; invalid ones are refused."""
    images = photos(0, 6)
    rows = np.random.default_rng(0).normal(size=(6, 4))
    for given in (rows, torch.from_numpy(rows), rows.tolist()):
        made = replay("1MB", 50, embed=pytest.fail).learn({0: images}, features={0: given})
        assert made.memory.sources(0) == [f"0/{n}" for n in herding(rows, 6)]
    for options, features, message in (
        ({"quality": "auto"}, {0: rows}, "features are for a fixed quality and paired ranking"),
        ({"quality": 50}, {0: rows[:5]}, r"class 0 must have the shape \(6, d\), got \(5, 4\)"),
        ({"quality": 50}, {1: rows}, r"class 0 must have the shape \(6, d\), got \(0,\)"),
    ):
        with pytest.raises(UsageError, match=message):
            replay("1MB", **options).learn({0: images}, features=features)


def test_embedders_may_be_given() -> None:
    """As for `plan`."""
    calls: list[int] = []

    def count(images: Tensor) -> Tensor:
        calls.append(len(images))
        return images.flatten(1).float()

    replay("1MB", 50, embed=Embedder(count, size=4)).learn({0: photos(0)})
    assert sum(calls) == 10


def test_data_sets_are_learned_as_their_images_are(tmp_path: Path) -> None:
    """With their labels and names; a class that comes again continues its numbers."""
    data = ImageFolder(make_photos(tmp_path / "photos", classes=3, images=8))
    parts = [Subset(data, range(8, 16)), Subset(data, [0, 1, 16])]
    made, by_label = replay(quality=50), replay(quality=50)
    for part in parts:
        made.learn(part)
        images: dict[int, list[str]] = {}
        for path, label in (data.samples[index] for index in part.indices):
            images.setdefault(label, []).append(path)
        by_label.learn(images)
    assert made.memory.labels == by_label.memory.labels == [1, 0, 2]
    assert made.memory.class_names == dict(enumerate(data.classes))
    assert [*made.memory.encoded_images(1)] == [*by_label.memory.encoded_images(1)]
    plain = [(pixels(seed), 5) for seed in range(3)]
    made = replay(quality=50, select="random_choice").learn(plain).learn(plain[:1])
    assert sorted(made.memory.sources(5)) == ["5/0", "5/1", "5/2"]
    assert made.memory.seen(5) == 4
    with pytest.raises(UsageError, match="label 'owl' must be a whole number"):
        made.learn([(pixels(0), "owl")])
