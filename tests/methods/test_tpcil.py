"""TPCIL: vertices, the images nearest to them, and a topology that is kept."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from torch import Tensor

import mrdc.training.exemplars
from mrdc.data.crops import centre_crop
from mrdc.data.examples import Examples
from mrdc.data.images import ImageSet
from mrdc.data.photo import Photo
from mrdc.data.stream import Stream
from mrdc.memory.replay import ReplayMemory
from mrdc.methods.base import Lesson
from mrdc.methods.tpcil import TPCIL, hebbian, nearest_images, pairs, spread, topology
from mrdc.nn.heads import SplitCosine
from mrdc.nn.net import Net, Output
from mrdc.nn.resnet import ResNet
from mrdc.planning.choice import judge as quality_judge
from mrdc.training.classes import Run
from mrdc.training.feed import from_memory
from mrdc.training.resume import Keeper
from mrdc.training.settings import MemorySettings, RunSettings, TrainSettings
from tests import helpers
from tests.conftest import jpeg

Rows = NDArray[np.float64]
FEATURES = st.tuples(st.integers(1, 12), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-5, 5))
)


pytestmark = pytest.mark.usefixtures("quick")


# Vertices


def slow_hebbian(features: Rows, count: int, seed: int) -> list[list[float]]:
    """The same draws, number by number."""
    rng = np.random.default_rng(seed)
    rows = features.tolist()
    vertices = [list(rows[place]) for place in rng.permutation(len(rows))[:count]]
    order = [int(place) for _ in range(10) for place in rng.permutation(len(rows))]
    for step, place in enumerate(order):
        part = step / len(order)
        rate = math.exp((1 - part) * math.log(0.5) + part * math.log(0.01))
        reach = math.exp((1 - part) * math.log(count / 2) + part * math.log(0.1))
        distances = [math.dist(vertex, rows[place]) for vertex in vertices]
        for number, vertex in enumerate(list(vertices)):
            rank = sum(distance < distances[number] for distance in distances)
            pull = rate * math.exp(-rank / reach)
            vertices[number] = [
                v + pull * (f - v) for v, f in zip(vertex, rows[place], strict=True)
            ]
    return vertices


@pytest.mark.parametrize(("images", "count"), [(9, 4), (12, 1), (5, 5), (7, 2), (3, 6)])
def test_vertices_against_a_loop(images: int, count: int) -> None:
    """Rank by rank, with rates from 0.5 to 0.01 and reaches from half the vertices to 0.1."""
    features = np.random.default_rng(images).normal(size=(images, 3))
    expected = slow_hebbian(features, count, 5)
    np.testing.assert_allclose(hebbian(features, count, 5), expected, rtol=1e-9, atol=1e-9)


def test_a_vertex_on_its_own_by_hand() -> None:
    """One image, one vertex: it is there at once, and stays."""
    assert hebbian(np.array([[3.0, 4.0]]), 1, 0).tolist() == [[3.0, 4.0]]


@settings(max_examples=60, deadline=None)
@given(features=FEATURES, count=st.integers(1, 15), seed=st.integers(0, 99))
def test_vertices_stay_among_the_features(features: Rows, count: int, seed: int) -> None:
    """Never beyond the extremes of any direction; as many as asked for, or as there are."""
    before = features.copy()
    vertices = hebbian(features, count, seed)
    assert vertices.shape == (min(count, len(features)), features.shape[1])
    directions = np.random.default_rng(seed).normal(size=(features.shape[1], 8))
    for axes in (np.eye(features.shape[1]), directions):
        along, bounds = vertices @ axes, features @ axes
        assert (along >= bounds.min(0) - 1e-9).all() and (along <= bounds.max(0) + 1e-9).all()
    assert (features == before).all()


def test_vertices_belong_to_the_seed() -> None:
    """The same seed the same vertices, another seed others."""
    features = np.random.default_rng(0).normal(size=(20, 3))
    first, again, other = (hebbian(features, 4, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert not np.allclose(first, other)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_get_vertices_in_proportion(seed: int) -> None:
    """60 images here and 20 far away: 6 of 8, give or take one, and of their images likewise."""
    rng = np.random.default_rng(seed)
    features = np.concatenate([rng.normal(0, 0.1, (60, 2)), rng.normal(5, 0.1, (20, 2))])
    vertices = hebbian(features, 8, seed)
    assert 5 <= (vertices.sum(1) < 5).sum() <= 7
    assert 5 <= sum(image < 60 for image in nearest_images(features, vertices)) <= 7


# Images of vertices


def slow_nearest(features: Rows, vertices: Rows) -> list[int]:
    """The nearest pair of what is left, again and again."""
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
    """The nearest pairs first; no image twice."""
    rng = np.random.default_rng(seed)
    features, vertices = (
        rng.normal(size=(images, 3)),
        rng.normal(size=(1 + int(part * (images - 1)), 3)),
    )
    found = nearest_images(features, vertices)
    assert found == slow_nearest(features, vertices)
    assert len(set(found)) == len(vertices)


def test_nearest_images_by_hand() -> None:
    """Vertices 0 and 1 both want the image at 1.1; 1 is nearer, so 0 takes the one at -3."""
    features = np.array([[9.0], [1.1], [-3.0]])
    assert nearest_images(features, np.array([[0.0], [1.0]])) == [2, 1]


def test_vertices_that_are_images_are_their_own() -> None:
    """In whatever order."""
    features = np.random.default_rng(0).normal(size=(7, 3))
    assert nearest_images(features, features[[5, 0, 3]]) == [5, 0, 3]
    assert nearest_images(features, features[::-1]) == list(range(7))[::-1]


# Topology


def test_pairs_by_hand() -> None:
    """Of (1, 0), (0, 2) and (3, 3): 0 at right angles, else 1 / sqrt 2; no row with itself."""
    half = math.sqrt(0.5)
    got = pairs(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]))
    torch.testing.assert_close(got, torch.tensor([0.0, half, half]))


@pytest.mark.parametrize("count", [2, 5])
def test_every_pair_comes_once(count: int) -> None:
    """n (n - 1) / 2 of them, rows with themselves left out."""
    assert pairs(torch.ones(count, 3)).shape == (count * (count - 1) // 2,)


@pytest.mark.parametrize("width", [2, 3, 16])
def test_topology_is_minus_the_correlation(width: int) -> None:
    """Numpy's, of the cosines above the diagonal."""
    now, before = torch.randn(6, width), torch.randn(6, width)
    sides = []
    for rows in (now, before):
        unit = (rows / rows.norm(dim=1, keepdim=True)).double().numpy()
        sides.append((unit @ unit.T)[np.triu_indices(6, 1)])
    expected = -np.corrcoef(*sides)[0, 1]
    assert topology(now, before).item() == pytest.approx(expected, abs=1e-5)


def with_cosines(cosines: Sequence[float]) -> Tensor:
    """Three unit rows whose pairs (0, 1), (0, 2) and (1, 2) have these cosines."""
    a, b, c = cosines
    gram = np.array([[1, a, b], [a, 1, c], [b, c, 1]])
    return torch.from_numpy(np.linalg.cholesky(gram)).float()


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((0.5, 0.2, -0.1), -1),
        ((0.6, 0.3, 0.0), -1),  # shifted
        ((0.25, 0.1, -0.05), -1),  # scaled
        ((-0.4, 0.2, 0.8), 1),  # turned round
        ((0.2, 0.5, 0.2), 0),
    ],
)
def test_topology_minds_neither_shift_nor_scale(
    now: tuple[float, float, float], expected: float
) -> None:
    """Of similarities 0.5, 0.2 and -0.1; lengths do not matter either."""
    rows = with_cosines(now) * torch.tensor([[1.0], [7.0], [0.3]])
    got = topology(rows, with_cosines((0.5, 0.2, -0.1)))
    assert got.item() == pytest.approx(expected, abs=1e-5)


def test_a_topology_that_is_kept_has_nothing_to_learn() -> None:
    """-1, and no gradient, where features are as before, or rotated."""
    before = torch.randn(8, 5)
    turn = torch.linalg.qr(torch.randn(5, 5)).Q
    for now in (before.clone(), before @ turn):
        now.requires_grad_()
        loss = topology(now, before)
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == pytest.approx(-1, abs=1e-6)
        assert now.grad is not None and now.grad.abs().max() < 1e-5


def test_a_rotation_changes_no_topology() -> None:
    """Of either side."""
    now, before = torch.randn(8, 5), torch.randn(8, 5)
    turn = torch.linalg.qr(torch.randn(5, 5)).Q
    plain = topology(now, before).item()
    assert topology(now @ turn, before).item() == pytest.approx(plain, abs=1e-5)
    assert topology(now, before @ turn).item() == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (torch.ones(4, 3), torch.eye(4, 3)),
        (torch.eye(4), torch.arange(12.0).view(4, 3).sin()),
        (torch.arange(12.0).view(4, 3).sin(), torch.ones(4, 3)),
        (torch.zeros(4, 3), torch.zeros(4, 3)),
        (torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), torch.eye(2, 3)),
        (torch.ones(1, 3), torch.ones(1, 3)),
    ],
    ids=["same", "right angles", "were the same", "nothing", "one pair", "no pair"],
)
def test_topology_without_spread_is_a_number(now: Tensor, before: Tensor) -> None:
    """0, with gradients that are numbers, where similarities are all equal or none."""
    now = now.clone().requires_grad_()
    loss = topology(now, before)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(0, abs=1e-3)
    assert now.grad is not None and now.grad.isfinite().all()


def test_topology_is_fp32_under_autocast() -> None:
    """In bf16 similarities that hardly differ would be equal."""
    before = torch.ones(16, 8) + 0.05 * torch.randn(16, 8)
    now = torch.ones(16, 8) + 0.05 * torch.randn(16, 8)
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
def test_every_class_has_its_turn(labels: list[int], count: int, seed: int) -> None:
    """No class comes again before all that still can have come as often; no place comes twice."""
    places = spread(np.array(labels), count, np.random.default_rng(seed)).tolist()
    assert len(places) == len(set(places)) == min(count, len(labels))
    have, seen = Counter(labels), Counter[int]()
    for place in places:
        label = labels[place]
        assert all(seen[other] >= min(seen[label], have[other]) for other in have)
        seen[label] += 1


def test_vertices_are_drawn_at_random() -> None:
    """Over 3,000 draws of 2 from classes of 3 and 3 and 3: each place with a probability of 2/9."""
    labels, rng = np.array([0, 0, 1, 2, 0, 1, 2, 1, 2]), np.random.default_rng(0)
    counts = Counter(int(p) for _ in range(3000) for p in spread(labels, 2, rng))
    deviation = math.sqrt(2 / 9 * 7 / 9 / 3000)
    assert all(abs(counts[place] / 3000 - 2 / 9) < 5 * deviation for place in range(9))
    assert len({tuple(spread(labels, 9, rng)) for _ in range(50)}) == 50


# The loss


class Watched:
    """A network that says features times rows of an image's pixels; counts its calls."""

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
    """Cross-entropy of the batch, and 7 times the topology of its companions.

    Both pass through the network together; references are those of the vertices told.
    """
    net, method = Watched(), TPCIL(weight=7.0)
    method.before = torch.randn(6, 4)
    x, y, seen = torch.randn(2, 3, 2, 2), torch.tensor([0, 2]), torch.randn(4, 3, 2, 2)
    loss = method.loss(cast(Net, net), None, x, y, seen, torch.tensor([5, 0, 2, 3]))
    assert len(net.seen) == 1 and torch.equal(net.seen[0], torch.cat([x, seen]))
    logits = 2 * net.features(x) @ net.to_scores
    before = torch.stack([method.before[n] for n in (5, 0, 2, 3)])
    kept = topology(net.features(seen), before)
    assert abs(kept.item()) > 0.01
    assert loss.item() == pytest.approx((F.cross_entropy(logits, y) + 7 * kept).item(), rel=1e-5)


def test_without_companions_the_loss_is_plain() -> None:
    """In the first phase, and in stages that have none; the old network is not asked."""
    x, y = torch.randn(2, 3, 2, 2), torch.tensor([0, 2])
    for old in (None, cast(Net, object())):
        net = Watched()
        loss = TPCIL().loss(cast(Net, net), old, x, y)
        assert len(net.seen) == 1
        expected = F.cross_entropy(2 * net.features(x) @ net.to_scores, y)
        assert loss.item() == pytest.approx(expected.item())
    assert (TPCIL().weight, TPCIL().vertices) == (10.0, 128)


# What is stored


@pytest.mark.parametrize(
    ("picked", "expected"),
    [([5, 0], [0, 5, 3, 1, 4, 2]), ([4, 1, 3], [3, 1, 4, 0, 5, 2]), ([], [3, 0, 1, 5, 4, 2])],
)
def test_picked_images_are_stored_first(picked: list[int], expected: list[int]) -> None:
    """Both they and the others in the order of the ranking."""
    method, ranking = TPCIL(), [3, 0, 1, 5, 4, 2]
    method.picked = {7: picked, 8: [2]}
    assert method.arrange(list("abcdef"), ranking, 7) == expected
    assert method.arrange(list("abcdef"), ranking, 9) == ranking
    assert TPCIL().arrange(list("abcdef"), ranking, 7) == ranking
    assert ranking == [3, 0, 1, 5, 4, 2]


def padded(seed: int, size: int = 2000) -> bytes:
    """A JPEG file of so many bytes, by a comment."""
    data = jpeg(seed, 95, 20, 24)
    more = size - len(data)
    return data[:2] + b"\xff\xfe" + (more - 2).to_bytes(2, "big") + bytes(more - 4) + data[2:]


def stream(images: int = 12) -> Stream:
    """Four classes in two phases; all files have the same number of bytes."""
    made = []
    for first in (0, 50):
        photos = tuple(
            [Photo(f"{c}/{n}", partial(padded, 100 * c + first + n)) for n in range(images)]
            for c in range(4)
        )
        made.append(ImageSet(tuple("abcd"), photos, ([2000] * images,) * 4))
    return Stream(made[0], made[1], (2, 2))


def small_run(*options: str, **memory: Any) -> Run:
    held = MemorySettings(budget="4/class", **{"quality": "original", "candidates": (50,)} | memory)
    chosen = RunSettings(
        "photos", method="tpcil", options=options, network="resnet18-narrow", size=8, device="cpu",
        threads=2, memory=held, train=TrainSettings(epochs=1, lr=0.01, batch_size=8),
    )  # fmt: skip
    return Run(chosen, stream(), Keeper())


def memory_of(run: Run) -> ReplayMemory:
    assert run.exemplars is not None
    return run.exemplars.memory


def test_the_images_of_the_vertices_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both phases: as many as would have been stored anyway, in herding's order."""
    run = small_run()
    assert isinstance(run.method, TPCIL)
    real, previews = run.method.end_phase, list[Examples]()
    chosen: list[dict[int, list[str]]] = []

    def end_phase(lesson: Lesson) -> None:
        assert isinstance(run.method, TPCIL)
        previews.append(lesson.preview())
        features, labels = lesson.features(lesson.fresh), np.array(lesson.fresh.labels)
        chosen.append({})
        for label, count in Counter(previews[-1].labels).items():
            places = np.flatnonzero(labels == label)
            rows = F.normalize(features[places].double(), dim=1).numpy()
            vertices = hebbian(rows, count, run.seed(f"vertices {label}"))
            ids = [lesson.fresh.photos[place].id for place in places]
            chosen[-1][label] = [ids[image] for image in nearest_images(rows, vertices)]
        real(lesson)
        assert run.method.picked == {}

    monkeypatch.setattr(run.method, "end_phase", end_phase)
    for phase in range(2):
        run.learn(phase)
    held = {label: memory_of(run).sources(label) for label in memory_of(run).labels}
    wanted = chosen[0] | chosen[1]
    assert {label: len(ids) for label, ids in held.items()} == dict.fromkeys(range(4), 4)
    assert {label: set(ids) for label, ids in held.items()} == {
        label: set(ids) for label, ids in wanted.items()
    }
    herded = {label: [p.id for e in previews for p, y in zip(e.photos, e.labels, strict=True)
              if y == label] for label in range(4)}  # fmt: skip
    assert any(set(herded[label]) != set(held[label]) for label in range(4))
    for label in range(4):
        both = [name for name in herded[label] if name in held[label]]
        assert [name for name in held[label] if name in herded[label]] == both


@pytest.mark.parametrize("quality", ["auto", "dynamic", "50"])
def test_ratios_are_measured_once_a_phase(quality: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although images are chosen twice: what the choice was made by is what is reported."""
    calls: list[int] = []
    real = quality_judge

    def judge(found: Any, *rule: Any) -> Any:
        calls.append(len(found))
        return real(found, *rule)

    run = small_run(quality=quality)
    monkeypatch.setattr(mrdc.training.exemplars, "judge", judge)
    for phase in range(2):
        run.learn(phase)
    assert calls == [2, 2]  # the originals and one candidate


def test_references_are_the_old_networks_features_of_stored_images() -> None:
    """Decoded as they are stored: of quality 10 they are others than those of the files."""
    run = small_run(quality="10")
    assert isinstance(run.method, TPCIL)
    run.learn(0)
    held = from_memory(memory_of(run))
    expected = run._features(held)
    files = {photo.id: photo for photos in run.stream.train.photos for photo in photos}
    originals = Examples(tuple(files[photo.id] for photo in held.photos), held.labels)
    assert (run._features(originals) - expected).abs().max() > 0.01
    run.learn(1)
    assert torch.equal(run.method.before, expected)
    assert (run._features(held) - expected).abs().max() > 1e-3  # by now the network is another


def tiny() -> Net:
    backbone = ResNet("lucir", 2, "3x3")
    return Net(backbone, SplitCosine(backbone.features)).eval()


def lesson(**given: Any) -> Lesson:
    usual = {"model": tiny(), "training": TrainSettings(), "store": helpers.nothing}
    return helpers.lesson(**usual | given)


def of_labels(*labels: int) -> Examples:
    return Examples(tuple(Photo(str(n), bytes) for n in range(len(labels))), labels)


@pytest.mark.parametrize(("vertices", "count"), [(3, 3), (128, 5)])
def test_companions_are_stored_images_as_they_are(vertices: int, count: int) -> None:
    """Evaluation views, after the new images, spread over the classes; at most all there are."""
    net = tiny()
    net.head.grow(2)
    fresh, memory = of_labels(2, 2), of_labels(0, 0, 0, 1, 1)
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


def test_the_first_phase_has_no_companions() -> None:
    """There is no vertex yet; the head grows all the same."""
    now = lesson(phase=0, old=0, new=2)
    TPCIL().start_phase(now)
    assert now.companions is None
    assert now.model.classes == 2


def test_a_run_compares_what_its_companions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch of the second phase brings decoded evaluation views of the vertices it names."""
    run = small_run("vertices=3", quality="50")
    run.learn(0)
    held = from_memory(memory_of(run))
    real, seen = TPCIL.loss, list[tuple[Tensor, Tensor]]()

    def loss(self: TPCIL, model: Net, old: Net | None, x: Tensor, y: Tensor, *more: Any) -> Tensor:
        seen.append(more)
        return real(self, model, old, x, y, *more)

    monkeypatch.setattr(TPCIL, "loss", loss)
    run.learn(1)
    assert len(seen) == math.ceil((24 + len(held)) / 8)
    for views, vertices in seen:
        assert len(vertices) == 3
        for view, vertex in zip(views, vertices.tolist(), strict=True):
            assert torch.equal(view, centre_crop(held[vertex][0], 8))
