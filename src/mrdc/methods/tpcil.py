"""TPCIL: topology-preserving class-incremental learning (Tao et al., 2020).

The features of each class are covered by a graph of vertices, fitted by competitive Hebbian
learning; the images nearest to the vertices are the exemplars, and later phases preserve the
similarities between vertices, up to shift and scale.

There is no public code, so these are our choices: network, head and initial rows as in LUCIR,
old rows fixed; 10 passes per class, with rates from 0.5 to 0.01 and reaches from m / 2 to 0.1;
a vertex is the old network's feature of its stored image, so that both sides of a comparison
see the same pixels; every step compares 128 vertices, spread over the classes, which pass
through the network with the batch; weight 10.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mrdc.data.examples import Companions, Places
from mrdc.distributed.group import world
from mrdc.methods.base import Method, Needs
from mrdc.methods.lesson import Lesson
from mrdc.methods.shared import grow_imprinted
from mrdc.nn.heads import SplitCosine
from mrdc.nn.net import Net
from mrdc.planning.selection import unit_rows

PASSES = 10
RATES = (0.5, 0.01)  # step of a vertex, at the start and at the end
LAST_REACH = 0.1  # in ranks; half the number of vertices at the start


def hebbian(features: NDArray[np.float64], count: int, seed: int) -> NDArray[np.float64]:
    """Cover features (n, d) with vertices (count, d), by competitive Hebbian learning.

    For each feature, vertices are ranked by distance, r = 0, 1, ...; each moves towards it
    by rate * exp(-r / reach). Both shrink exponentially.
    """
    rng = np.random.default_rng(seed)
    n = len(features)
    vertices = features[rng.permutation(n)[:count]].copy()
    order = np.concatenate([rng.permutation(n) for _ in range(PASSES)])
    ranks = np.empty(len(vertices))
    for step, index in enumerate(order):
        time = step / len(order)
        rate = RATES[0] * (RATES[1] / RATES[0]) ** time
        reach = (count / 2) * (LAST_REACH / (count / 2)) ** time
        away = features[index] - vertices
        ranks[np.argsort((away**2).sum(1), kind="stable")] = np.arange(len(vertices))
        vertices += rate * np.exp(-ranks / reach)[:, None] * away
    return vertices


def nearest_images(features: NDArray[np.float64], vertices: NDArray[np.float64]) -> list[int]:
    """Assign a distinct image to each vertex, nearest pairs first."""
    squares = (features**2).sum(1) - 2 * vertices @ features.T  # up to |v|^2
    squares += (vertices**2).sum(1)[:, None]
    taken: dict[int, int] = {}
    used: set[int] = set()
    for pair in np.argsort(squares, axis=None, kind="stable"):
        vertex, image = divmod(int(pair), len(features))
        if vertex not in taken and image not in used:
            taken[vertex] = image
            used.add(image)
    return [taken[vertex] for vertex in range(len(vertices))]


def topology(now: Tensor, before: Tensor) -> Tensor:
    """Minus the correlation of all pairwise similarities, now and before; rows (n, d) each."""
    a, b = (pairs(rows) for rows in (now, before))
    a, b = a - a.mean(), b - b.mean()
    return -F.cosine_similarity(a, b, dim=0)


def pairs(rows: Tensor) -> Tensor:
    """Cosines of all pairs of rows (n, d), each once, in fp32."""
    with torch.autocast(rows.device.type, enabled=False):
        unit = F.normalize(rows.float(), dim=1)
        i, j = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
        return (unit @ unit.T)[i, j]


def spread(labels: NDArray[np.intp], count: int, rng: np.random.Generator) -> Places:
    """Random indices of `count` vertices, taking one per class in turn."""
    order = rng.permutation(len(labels))
    turn = np.empty(len(labels), np.intp)  # how many of its class come before it
    seen: Counter[int] = Counter()
    for place in order.tolist():
        turn[place] = seen[labels[place]]
        seen[labels[place]] += 1
    return order[np.argsort(turn[order], kind="stable")][:count]


@dataclass(kw_only=True)
class TPCIL(Method):
    """Cross-entropy, and a graph of exemplars whose shape is preserved."""

    weight: float = 10.0  # of the topology
    vertices: int = 128  # compared per step

    def __post_init__(self) -> None:
        self.picked: dict[int, list[int]] = {}  # images of vertices, by class
        self.before = torch.empty(0, 0)  # features of the old network, by vertex
        self.compared = 0  # vertices per step, over all processes

    @property
    def needs(self) -> Needs:
        return Needs(variant="lucir", head=SplitCosine)

    def start_phase(self, lesson: Lesson) -> None:
        if lesson.phase:
            self.before = lesson.features(lesson.memory).to(lesson.model.mean.device)
            first, labels = len(lesson.fresh), np.array(lesson.memory.labels)
            count = min(self.vertices, len(labels))

            def choose(batch: Places, rng: np.random.Generator) -> tuple[Places, Places]:
                vertices = world().part(spread(labels, count, rng))
                return first + vertices, vertices

            self.compared = count
            lesson.companions = Companions(choose, count, cropped=False)
        grow_imprinted(lesson)

    def loss(self, model: Net, old: Net | None, x: Tensor, y: Tensor, *more: Tensor) -> Tensor:
        """Cross-entropy, and the topology of companions: images of vertices, and their numbers."""
        if not more:
            return super().loss(model, old, x, y)
        seen, vertices = more
        out = model(torch.cat([x, seen]))
        n = len(x)
        shares = world().bounds(self.compared)
        now, vertices = (world().gather(one, shares) for one in (out.features[n:], vertices))
        kept = topology(now, self.before[vertices])
        return F.cross_entropy(out.logits[:n], y) + self.weight * kept

    def before_store(self, lesson: Lesson) -> None:
        counts = Counter(lesson.preview().labels)
        features, labels = lesson.features(lesson.fresh), np.array(lesson.fresh.labels)
        for label, count in counts.items():
            rows = unit_rows(features[torch.from_numpy(labels == label)])
            graph = hebbian(rows, count, lesson.seed(f"vertices {label}"))
            self.picked[label] = nearest_images(rows, graph)

    def end_phase(self, lesson: Lesson) -> None:
        self.picked = {}

    def arrange(self, ids: list[str], ranking: Sequence[int], label: int) -> Sequence[int]:
        chosen = set(self.picked.get(label, ()))
        return sorted(ranking, key=lambda image: image not in chosen)
