"""TPCIL: vertices, the images nearest to them, and a topology that is preserved."""

import math
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from mrdc.data.crops import centre_crop
from mrdc.data.examples import Examples
from mrdc.data.stream import Stream
from mrdc.methods import Lesson, TrainSettings
from mrdc.methods.tpcil import TPCIL, hebbian, nearest_images, pairs, spread, topology
from mrdc.nn.net import Net, Output
from mrdc.training.pictures import shrunk
from tests import helpers
from tests.conftest import jpeg
from tests.helpers import Run, examples, image_set, lesson, tiny

Rows = NDArray[np.float64]

pytestmark = pytest.mark.usefixtures("quick")


# Vertices


def slow_hebbian(features: Rows, count: int, seed: int) -> Rows:
    """The same draws, vertex by vertex."""
    rng = np.random.default_rng(seed)
    vertices = features[rng.permutation(len(features))[:count]]
    order = [place for _ in range(10) for place in rng.permutation(len(features))]
    for step, place in enumerate(order):
        part = step / len(order)
        rate = math.exp((1 - part) * math.log(0.5) + part * math.log(0.01))
        reach = math.exp((1 - part) * math.log(count / 2) + part * math.log(0.1))
        distances = [math.dist(vertex, features[place]) for vertex in vertices]
        for vertex, distance in zip(vertices, distances, strict=True):
            rank = sum(other < distance for other in distances)
            vertex += rate * math.exp(-rank / reach) * (features[place] - vertex)
    return vertices


@pytest.mark.parametrize(("images", "count"), [(9, 4), (12, 1), (5, 5), (7, 2), (3, 6)])
def test_vertices_against_a_loop(images: int, count: int) -> None:
    """Rank by rank, with rates from 0.5 to 0.01 and reaches from half the vertices to 0.1."""
    features = np.random.default_rng(images).normal(size=(images, 3))
    found = hebbian(features, count, 5)
    np.testing.assert_allclose(found, slow_hebbian(features, count, 5), rtol=1e-9, atol=1e-9)
    assert (found == hebbian(features, count, 5)).all()
    if count > 1:
        assert not np.allclose(found, hebbian(features, count, 6))


# Images of vertices


def slow_nearest(features: Rows, vertices: Rows) -> list[int]:
    """The nearest of the remaining pairs, again and again."""
    found: dict[int, int] = {}
    while len(found) < len(vertices):
        _, vertex, image = min(
            (math.dist(vertices[v], features[i]), v, i)
            for v in range(len(vertices))
            for i in range(len(features))
            if v not in found and i not in found.values()
        )
        found[vertex] = image
    return [found[vertex] for vertex in range(len(vertices))]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 9999), images=st.integers(1, 9), part=st.floats(0, 1))
def test_nearest_images_against_a_loop(seed: int, images: int, part: float) -> None:
    """The nearest pairs first; no image twice; a vertex on an image takes that image."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(images, 3))
    vertices = rng.normal(size=(1 + int(part * (images - 1)), 3))
    found = nearest_images(features, vertices)
    assert found == slow_nearest(features, vertices)
    assert len(set(found)) == len(vertices)
    assert nearest_images(features, features[::-1]) == list(range(images))[::-1]


# Topology


@pytest.mark.parametrize("width", [2, 3, 16])
def test_topology_is_minus_the_correlation(width: int) -> None:
    """Numpy's, of the cosines above the diagonal. Rotating either side changes nothing, and a
    topology that is as before has no gradient."""
    now, before = torch.randn(8, width), torch.randn(8, width)
    sides = []
    for rows in (now, before):
        unit = (rows / rows.norm(dim=1, keepdim=True)).double().numpy()
        sides.append((unit @ unit.T)[np.triu_indices(8, 1)])
    expected = -np.corrcoef(*sides)[0, 1]
    turn = torch.linalg.qr(torch.randn(width, width)).Q
    for a, b in ((now, before), (now @ turn, before), (now, before @ turn)):
        assert topology(a, b).item() == pytest.approx(expected, abs=1e-5)
    for same in (before.clone().requires_grad_(), (before @ turn).requires_grad_()):
        loss = topology(same, before)
        assert loss.item() == pytest.approx(-1, abs=1e-6)
        assert torch.autograd.grad(loss, same)[0].abs().max() < 1e-5


SPREAD = torch.arange(12.0).view(4, 3).sin()


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (torch.ones(4, 3), SPREAD),  # all the same
        (torch.eye(4), SPREAD),  # all at right angles
        (SPREAD, torch.ones(4, 3)),
        (torch.zeros(4, 3), torch.zeros(4, 3)),
        (SPREAD[:2], torch.eye(2, 3)),  # a single pair
        (torch.ones(1, 3), torch.ones(1, 3)),  # none
    ],
)
def test_topology_without_spread_is_zero(now: Tensor, before: Tensor) -> None:
    """With finite gradients, if all similarities are equal or there are none."""
    now = now.clone().requires_grad_()
    loss = topology(now, before)
    assert loss.item() == pytest.approx(0, abs=1e-3)
    assert torch.autograd.grad(loss, now)[0].isfinite().all()


def test_topology_is_fp32_under_autocast() -> None:
    """In bf16 similarities that hardly differ would be equal."""
    now, before = (1 + 0.05 * torch.randn(16, 8) for _ in range(2))
    plain = topology(now, before)
    with torch.autocast("cpu", torch.bfloat16):
        got = topology(now, before)
        assert pairs(now.bfloat16()).dtype == torch.float32
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(plain.item(), abs=1e-6)


# Which vertices


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    count=st.integers(1, 35),
    seed=st.integers(0, 99),
)
def test_classes_take_turns(labels: list[int], count: int, seed: int) -> None:
    """No class comes again before the others, unless they have no more; no vertex twice."""
    places = spread(np.array(labels), count, np.random.default_rng(seed)).tolist()
    assert len(places) == len(set(places)) == min(count, len(labels))
    have, seen = Counter(labels), Counter[int]()
    for place in places:
        label = labels[place]
        assert all(seen[other] >= min(seen[label], have[other]) for other in have)
        seen[label] += 1


def test_vertices_are_drawn_uniformly() -> None:
    """3,000 draws of 2 from three classes of 3: each with a probability of 2/9."""
    labels, rng = np.array([0, 0, 1, 2, 0, 1, 2, 1, 2]), np.random.default_rng(0)
    counts = Counter(int(p) for _ in range(3000) for p in spread(labels, 2, rng))
    deviation = math.sqrt(2 / 9 * 7 / 9 / 3000)
    assert all(abs(counts[place] / 3000 - 2 / 9) < 5 * deviation for place in range(9))
    assert len({tuple(spread(labels, 9, rng)) for _ in range(50)}) == 50


# The loss


class Watched:
    """A linear network that records its inputs."""

    def __init__(self) -> None:
        self.to_features = torch.randn(12, 4)
        self.to_scores = torch.randn(4, 3)
        self.seen: list[Tensor] = []

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.to_features

    def __call__(self, x: Tensor) -> Output:
        self.seen.append(x)
        features = self.features(x)
        scores = features @ self.to_scores
        return Output((), features, scores, 2 * scores)


def test_the_loss_by_hand() -> None:
    """Cross-entropy of the batch, and 7 times the topology of its companions, in one pass."""
    net, method = Watched(), TPCIL(weight=7.0)
    method.before = torch.randn(6, 4)
    x, y, seen = torch.randn(2, 3, 2, 2), torch.tensor([0, 2]), torch.randn(4, 3, 2, 2)
    plain = F.cross_entropy(2 * net.features(x) @ net.to_scores, y)
    for old in (None, cast(Net, object())):  # the old network is not used
        loss = method.loss(cast(Net, net), old, x, y)
        assert loss.item() == pytest.approx(plain.item())
    loss = method.loss(cast(Net, net), None, x, y, seen, torch.tensor([5, 0, 2, 3]))
    assert len(net.seen) == 3 and torch.equal(net.seen[-1], torch.cat([x, seen]))
    kept = topology(net.features(seen), method.before[[5, 0, 2, 3]])
    assert abs(kept.item()) > 0.01
    assert loss.item() == pytest.approx((plain + 7 * kept).item(), rel=1e-5)
    assert (TPCIL().weight, TPCIL().vertices) == (10.0, 128)


# Storing


@pytest.mark.parametrize(
    ("picked", "expected"),
    [([5, 0], [0, 5, 3, 1, 4, 2]), ([4, 1, 3], [3, 1, 4, 0, 5, 2]), ([], [3, 0, 1, 5, 4, 2])],
)
def test_picked_images_are_stored_first(picked: list[int], expected: list[int]) -> None:
    """Picked images and the others are each in the order of the ranking."""
    method, ranking = TPCIL(), [3, 0, 1, 5, 4, 2]
    method.picked = {7: picked, 8: [2]}
    assert method.arrange(list("abcdef"), ranking, 7) == expected
    assert method.arrange(list("abcdef"), ranking, 9) == ranking
    assert ranking == [3, 0, 1, 5, 4, 2]


def padded(seed: int, size: int = 2000) -> bytes:
    """A JPEG file padded to this many bytes by a comment."""
    data = jpeg(seed, 95, 20, 24)
    more = size - len(data)
    return data[:2] + b"\xff\xfe" + (more - 2).to_bytes(2, "big") + bytes(more - 4) + data[2:]


def small_run(method: TPCIL, quality: str = "original") -> Run:
    """Four classes in two phases; all files have the same number of bytes."""
    train, test = (
        image_set([[padded(100 * c + first + n) for n in range(12)] for c in range(4)])
        for first in (0, 50)
    )
    return helpers.small_run(
        method,
        stream=Stream(train, test, (2, 2)),
        memory={"budget": "4/class", "quality": quality},
        train=TrainSettings(epochs=1, lr=0.01, batch_size=8),
    )


def test_the_images_of_the_vertices_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both phases: as many as herding would have stored, in its order."""
    method = TPCIL()
    run = small_run(method)
    real = method.before_store
    herded: dict[int, list[str]] = {}
    chosen: dict[int, list[str]] = {}

    def before_store(lesson: Lesson) -> None:
        assert method.picked == {}
        seen, labels = lesson.preview(), np.array(lesson.fresh.labels)
        features = lesson.features(lesson.fresh)
        for label in set(seen.labels):
            pairs_ = zip(seen.photos, seen.labels, strict=True)
            herded[label] = [photo.id for photo, y in pairs_ if y == label]
            places = np.flatnonzero(labels == label)
            rows = F.normalize(features[places].double(), dim=1).numpy()
            seed = run.learner.seed(f"vertices {label}")
            images = nearest_images(rows, hebbian(rows, len(herded[label]), seed))
            chosen[label] = [lesson.fresh.photos[places[image]].id for image in images]
        real(lesson)

    monkeypatch.setattr(method, "before_store", before_store)
    run.learn(0, 1)
    assert method.picked == {}
    held = {label: run.memory.sources(label) for label in range(4)}
    for label, names in held.items():
        assert len(names) == 4 and set(names) == set(chosen[label])
        both = [name for name in herded[label] if name in names]
        assert [name for name in names if name in both] == both
    assert any(set(herded[label]) != set(held[label]) for label in range(4))


def test_references_are_features_of_stored_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the old network, at quality 10 unlike the files; batches bring views of their vertices."""
    method = TPCIL(vertices=3)
    run = small_run(method, "10").learn(0)
    learner, held = run.learner, run.memory.examples()
    expected = learner.features(held)
    files = {photo.id: photo for photos in learner.stream.train.photos for photo in photos}
    originals = Examples(tuple(files[photo.id] for photo in held.photos), held.labels)
    assert (learner.features(originals) - expected).abs().max() > 0.01
    real, seen = TPCIL.loss, list[tuple[int, Tensor, Tensor]]()

    def loss(self: TPCIL, model: Net, old: Net | None, x: Tensor, y: Tensor, *more: Any) -> Tensor:
        seen.append((len(x), *more))
        return real(self, model, old, x, y, *more)

    monkeypatch.setattr(TPCIL, "loss", loss)
    run.learn(1)
    assert torch.equal(method.before, expected)
    assert (learner.features(held) - expected).abs().max() > 1e-3  # the network has changed
    assert sum(count for count, _, _ in seen) == 24 + len(held)
    for _, views, vertices in seen:
        assert len(vertices) == 3
        for view, vertex in zip(views, vertices.tolist(), strict=True):
            assert torch.equal(view, centre_crop(shrunk(held[vertex][0], 2 * 8), 8))


@pytest.mark.parametrize(("vertices", "count"), [(3, 3), (128, 5)])
def test_companions_are_spread_over_the_memory(vertices: int, count: int) -> None:
    """As evaluation views, positioned after the new images; at most all stored ones."""
    net = tiny(classes=2)
    fresh, memory = examples([2, 2]), examples([0, 0, 0, 1, 1])
    features = {fresh: torch.randn(2, 16), memory: torch.randn(5, 16)}
    method = TPCIL(vertices=vertices)
    now = lesson(model=net, fresh=fresh, memory=memory, features=features.__getitem__)
    method.start_phase(now)
    assert now.companions is not None
    assert (now.companions.count, now.companions.cropped) == (count, False)
    assert net.classes == 3
    assert torch.equal(method.before, features[memory])
    mean = F.normalize(features[fresh], dim=1).mean(0)
    assert F.cosine_similarity(net.head.new[0], mean, dim=0).item() == pytest.approx(1)
    rng, again = (np.random.default_rng(4) for _ in range(2))
    places, told = now.companions.choose(np.array([0, 1]), rng)
    assert told.tolist() == spread(np.array(memory.labels), count, again).tolist()
    assert places.tolist() == (2 + told).tolist()
    now = lesson(phase=0, old=0, new=2, model=tiny())  # without a vertex yet
    method.start_phase(now)
    assert now.companions is None and now.model.classes == 2
