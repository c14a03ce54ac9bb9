"""Worth of compression in bytes: the originals that would reach the same accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import geometric_mean, mean

from mrdc.experiments.pairs import score
from mrdc.experiments.study_table import Line
from mrdc.training.results import RunResult

BUDGET, QUALITY = "memory.budget", "memory.quality"
ORIGINAL = "original"


@dataclass(frozen=True)
class Point:
    """A run within a budget."""

    arm: str  # everything but the budget and the seed
    budget: str  # as given, such as 5/class
    seed: int
    bytes: int  # the budget after the last phase
    score: float
    original: bool = False
    networks: int = 0  # bytes of the network and of its teacher


@dataclass(frozen=True)
class Worth:
    """The runs of one arm and budget, compared with originals."""

    arm: str
    budget: str
    bytes: float
    networks: float
    scores: list[float]  # by seed
    factors: list[float]  # by seed: bytes that originals need for the same score, per byte
    beyond: int = 0  # seeds whose score originals did not reach with any budget

    @property
    def factor(self) -> float | None:
        """Geometric mean over the seeds that have one."""
        return geometric_mean(self.factors) if self.factors else None

    @property
    def text(self) -> str:
        """4.1 (3.6 to 4.7), with the range over seeds."""
        if self.factor is None:
            return "more than tried" if self.beyond else ""
        low, high = min(self.factors), max(self.factors)
        spread = f" ({low:.1f} to {high:.1f})" if len(self.factors) > 1 else ""
        return f"{self.factor:.1f}{spread}" + (" or more" if self.beyond else "")


def bytes_needed(curve: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """Bytes at which a curve of (bytes, score) first reaches a score; None if it never does.

    Between two budgets the score is linear in the logarithm of bytes. The smallest budget is the
    answer for every score below its own.
    """
    before: tuple[float, float] | None = None
    for size, reached in sorted(curve):
        if reached >= wanted:
            if before is None:
                return size
            part = (wanted - before[1]) / (reached - before[1])
            return exp(log(before[0]) + part * (log(size) - log(before[0])))
        before = size, reached
    return None


def worth(points: Sequence[Point]) -> list[Worth]:
    """Every arm at every budget, against the originals of the same seeds."""
    curves: dict[int, list[tuple[float, float]]] = {}
    places: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        places.setdefault((point.arm, point.budget), []).append(point)
        if point.original:
            curves.setdefault(point.seed, []).append((point.bytes, point.score))
    found = []
    for (arm, budget), here in places.items():
        compared = [p for p in here if not p.original and len(curves.get(p.seed, ())) > 1]
        needed = [(p, bytes_needed(curves[p.seed], p.score)) for p in compared]
        factors = [size / p.bytes for p, size in needed if size is not None]
        size, networks = mean(p.bytes for p in here), mean(p.networks for p in here)
        scores = [p.score for p in here]
        beyond = len(needed) - len(factors)
        found.append(Worth(arm, budget, size, networks, scores, factors, beyond))
    return found


def study_points(lines: Sequence[Line]) -> list[Point]:
    """The runs of a study whose grid has budgets."""
    return [
        point(run, line.name(BUDGET), line.place[BUDGET], line.place[QUALITY] == ORIGINAL)
        for line in lines
        for run in line.runs
        if BUDGET in line.place
    ]


def point(run: RunResult, arm: str, budget: str, original: bool) -> Point:
    """A finished run as a point."""
    size, networks = run.memory.budget_bytes, run.networks_bytes or 0
    return Point(arm, budget, run.seed, size, score(run), original, networks)


def sentence(found: Sequence[Worth]) -> str:
    """The arms and budgets that save bytes."""
    said = [
        f"{one.arm}, {one.budget}: {mean(one.scores):.2f} %, for which originals need "
        + (f"{one.text} times the bytes" if one.factors else "more bytes than were tried")
        for one in found
        if one.factors or one.beyond
    ]
    return f"{'; '.join(said)}." if said else ""
