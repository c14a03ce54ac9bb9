"""Choose among measured candidates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from mrdc._utils.errors import UsageError
from mrdc.planning.volume import from_log

Rule = Literal["contiguous", "paper"]


@dataclass(frozen=True)
class Candidate:
    """A codec and quality: what it would store, and how faithful that is."""

    codec: str
    quality: int | None
    quantity: int  # images that fit the budget
    bytes: int = 0  # their size
    log_volume_ratio: float = math.nan  # log R_q; nan if unknown
    excluded: Mapping[str, str] = field(default_factory=dict)  # classes left out of R_q, and why
    sampled: Mapping[str, str] = field(default_factory=dict)  # classes measured on some images
    feasible: bool = False  # whether the rule allows it
    verdict: str = ""  # why, in words
    per_class: tuple[int, float, int] = (0, 0.0, 0)  # fewest, mean and most images of a class
    kept_sources: int = 0  # images stored as their source bytes: encoding does not shrink them
    duplicates: int = 0  # exact duplicates found, which are stored once
    exact: Mapping[str, float] | None = None  # k-DPP log-probabilities and log Z_q, and L_2

    @property
    def volume_ratio(self) -> float:
        """R_q."""
        return from_log(self.log_volume_ratio)

    def __str__(self) -> str:
        return self.codec if self.quality is None else f"{self.codec} {self.quality}"

    def to_json(self) -> dict[str, Any]:
        fewest, mean, most = self.per_class
        return {
            "codec": self.codec,
            "quality": self.quality,
            "quantity": self.quantity,
            "bytes": self.bytes,
            "volume_ratio": _finite(self.volume_ratio),
            "log_volume_ratio": _finite(self.log_volume_ratio),
            "feasible": self.feasible,
            "verdict": self.verdict,
            "excluded_classes": dict(self.excluded),
            "sampled_classes": dict(self.sampled),
            "per_class": {"fewest": fewest, "mean": mean, "most": most},
            "kept_sources": self.kept_sources,
            "duplicates": self.duplicates,
            **{name: _finite(value) for name, value in (self.exact or {}).items()},
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(
    candidates: Sequence[Candidate], rule: Rule = "contiguous", epsilon: float = 0.5
) -> list[Candidate]:
    """Candidates with `feasible` and `verdict` set, in the order given.

    `contiguous` goes down from a codec's best quality and stops before the first failure,
    because R_q can dip below 1 and come back. `paper` allows any that passes.
    """
    if rule not in ("contiguous", "paper"):
        raise UsageError(f"rule must be 'contiguous' or 'paper', got {rule!r}")
    if not 0 < epsilon < math.inf:
        raise UsageError(f"epsilon must be a number above 0, got {epsilon}")
    judged: dict[int, Candidate] = {}
    best_first = sorted(enumerate(candidates), key=lambda p: (p[1].codec, -(p[1].quality or 0)))
    for _, group in groupby(best_first, key=lambda pair: pair[1].codec):
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
            failed |= not feasible and distance >= epsilon  # an unknown R_q is no failure
            judged[index] = replace(candidate, feasible=feasible, verdict=verdict)
    return [judged[index] for index in range(len(candidates))]


def choose_quality(judged: Sequence[Candidate]) -> int | None:
    """Index of the feasible candidate that stores most images; None if there is none.

    If several store the same number (all images fit), the best quality wins: there is no
    reason to distort images to save bytes that nobody needs.
    """

    def worth(index: int) -> tuple[int, int, float, int]:
        one = judged[index]
        return (-one.quantity, -(one.quality or 101), abs(one.log_volume_ratio), one.bytes)

    return min((i for i, one in enumerate(judged) if one.feasible), key=worth, default=None)
