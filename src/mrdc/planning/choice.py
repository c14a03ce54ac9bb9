"""Choose among measured candidates."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeVar

from mrdc._utils.errors import UsageError
from mrdc.planning.volume import from_log

Rule = Literal["contiguous", "paper"]


@dataclass(frozen=True)
class Candidate:
    """A codec and quality, what it would store, and how faithful that is.

    Attributes:
        quantity: images that fit the budget, and `bytes` their bytes.
        log_volume_ratio: log R_q; nan where it cannot be had.
        excluded: classes left out of R_q, and why.
        feasible: whether the rule allows it.
        verdict: why, in words.
    """

    codec: str
    quality: int | None
    quantity: int
    bytes: int
    log_volume_ratio: float
    excluded: Mapping[str, str]
    feasible: bool = False
    verdict: str = ""

    @property
    def volume_ratio(self) -> float:
        """R_q."""
        return from_log(self.log_volume_ratio)

    def __str__(self) -> str:
        return self.codec if self.quality is None else f"{self.codec} {self.quality}"


C = TypeVar("C", bound=Candidate)


def judge(candidates: Iterable[C], rule: Rule = "contiguous", epsilon: float = 0.5) -> list[C]:
    """Candidates with `feasible` and `verdict` set, in the order given.

    `contiguous`: from a codec's best quality down, stop before the first
    failure, since R_q can dip below 1 and come back. `paper`: any that passes.
    """
    if rule not in ("contiguous", "paper"):
        raise UsageError(f"rule must be 'contiguous' or 'paper', got {rule!r}")
    if not 0 < epsilon < math.inf:
        raise UsageError(f"epsilon must be a number above 0, got {epsilon}")
    candidates = list(candidates)
    judged: dict[int, C] = {}
    ordered = sorted(enumerate(candidates), key=lambda pair: _order(pair[1]))
    for _, group in groupby(ordered, key=lambda pair: pair[1].codec):
        failed = False
        for index, candidate in group:
            distance = abs(candidate.volume_ratio - 1)
            if candidate.quantity == 0:
                feasible, verdict = False, candidate.verdict
            elif math.isnan(distance):
                feasible, verdict = False, "R_q unknown"
            elif distance >= epsilon:
                feasible, verdict = False, "too far from 1"
            elif failed and rule == "contiguous":
                feasible, verdict = False, "a better quality fails"
            else:
                feasible, verdict = True, "passes"
            failed |= not feasible and distance >= epsilon  # not where nothing was measured
            judged[index] = replace(candidate, feasible=feasible, verdict=verdict)
    return [judged[index] for index in range(len(candidates))]


def _order(candidate: Candidate) -> tuple[str, int]:
    return candidate.codec, -(candidate.quality or 0)


def choose_quality(candidates: Iterable[C], rule: Rule = "contiguous", epsilon: float = 0.5) -> C:
    """The feasible candidate that stores most images.

    Where several store the same number (all images fit) the best quality is
    taken: saving bytes that nobody needs is no reason to distort.

    Raises:
        UsageError: none is feasible; give `original` as a candidate, which always is.
    """
    feasible = [c for c in judge(candidates, rule, epsilon) if c.feasible]
    if not feasible:
        raise UsageError("no candidate passes; add the codec 'original', whose R_q is 1")
    most = max(candidate.quantity for candidate in feasible)
    return min(
        (candidate for candidate in feasible if candidate.quantity == most),
        key=lambda c: (-(c.quality or 101), abs(c.log_volume_ratio), c.bytes),
    )
