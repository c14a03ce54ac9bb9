"""How much faster are herding and the k-DPP normaliser than plain loops?"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from common import SEED, compare, emit, machine, options, race
from mrdc.planning.selection import herding
from mrdc.planning.volume import SINGULAR, log_normaliser

ROWS, COLUMNS, PICKS = 1300, 512, 200  # a class of ImageNet, features of a ResNet-18

Features = NDArray[np.float64]


def features() -> Features:
    """Rows that resemble a class: a common part plus noise, none negative."""
    rng = np.random.default_rng(SEED)
    common = rng.normal(0, 1, COLUMNS)
    return np.maximum(0, common + rng.normal(0, 1, (ROWS, COLUMNS)))


def plain_herding(features: Features, count: int) -> list[int]:
    """Herding with a Python loop over all rows in every step."""
    rows = [row / np.linalg.norm(row) for row in features]
    mean = sum(rows) / len(rows)
    target, ranking = mean, list[int]()
    while len(ranking) < count:
        closeness = [float(row @ target) for row in rows]
        pick = closeness.index(max(closeness))
        if pick not in ranking:
            ranking.append(pick)
        target = target + mean - rows[pick]
    return ranking


def log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def plain_normaliser(features: Features, k: int) -> float:
    """The recursion over eigenvalues, one Python number at a time."""
    sums = [0.0] + [-math.inf] * k
    for eigenvalue in map(math.log, eigenvalues(features)):
        for size in range(k, 0, -1):
            sums[size] = log_add(sums[size], sums[size - 1] + eigenvalue)
    return sums[k]


def eigenvalues(features: Features) -> list[float]:
    """Eigenvalues of the Gram matrix, which take most of the normaliser's time."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    return [value for value in np.linalg.eigvalsh(rows @ rows.T).tolist() if value > SINGULAR]


def report(what: str, same: bool, **runs: Callable[[], object]) -> None:
    """Emit how `plain` and `mrdc` compare."""
    figures = compare(race(7, **runs), "plain", "mrdc")
    shape = {"rows": ROWS, "columns": COLUMNS, "picks": PICKS}
    emit("selection", what=what, same=same, **shape, **figures, **machine())


def main() -> None:
    options(__doc__).parse_args()
    x = features()
    tensor = torch.from_numpy(x)
    report(
        "herding",
        herding(x, PICKS).tolist() == plain_herding(x, PICKS),
        plain=lambda: plain_herding(x, PICKS),
        mrdc=lambda: herding(x, PICKS),
    )
    report(
        "log_normaliser",
        math.isclose(log_normaliser(tensor, PICKS), plain_normaliser(x, PICKS), rel_tol=1e-9),
        plain=lambda: plain_normaliser(x, PICKS),
        mrdc=lambda: log_normaliser(tensor, PICKS),
        eigenvalues=lambda: eigenvalues(x),
    )


if __name__ == "__main__":
    main()
