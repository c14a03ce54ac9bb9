"""Choose among measured candidates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Literal

from mrdc._utils.errors import UsageError
from mrdc._utils.typed import check_words
from mrdc.codec.scaled import split_scale
from mrdc.planning.settings import JPEGS, LIMITS, QUALITIES, SYMBOLS, Criterion, SearchSettings
from mrdc.planning.volume import from_log

Rule = Literal["contiguous", "paper"]
NEARLY = 0.02  # quantities that differ by less than this share count as equal
NEARLY_LOW = 0.15  # the same for JPEG below the paper's qualities, which distorts much more
BETTER_FAILS = "a better quality fails"  # a verdict


@dataclass(frozen=True)
class Candidate:
    """A codec and quality: what it would store, and how faithful that is."""

    codec: str
    quality: int | None
    quantity: int  # images that fit the budget
    bytes: int = 0  # their size
    log_volume_ratio: float = math.nan  # log R_q; nan if unknown
    ratio_per_image: float = math.nan  # r, which is R_q per stored image; nan if unknown
    ratio_error: float = 0.0  # standard error of r, if only some classes were measured
    discrepancy: float = math.nan  # MMD^2 between all originals and these, mean over classes
    excluded: Mapping[str, str] = field(default_factory=dict)  # classes left out of both ratios
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

    def value(self, criterion: Criterion) -> float:
        """The number that a criterion looks at; nan if unknown."""
        return float(getattr(self, criterion.replace("-", "_")))

    def __str__(self) -> str:
        return self.codec if self.quality is None else f"{self.codec} {self.quality}"

    def to_json(self) -> dict[str, Any]:
        fewest, mean, most = self.per_class
        return {
            "codec": self.codec,
            "quality": self.quality,
            "scale": split_scale(self.codec)[1],
            "quantity": self.quantity,
            "bytes": self.bytes,
            "volume_ratio": _finite(self.volume_ratio),
            "log_volume_ratio": _finite(self.log_volume_ratio),
            "ratio_per_image": _finite(self.ratio_per_image),
            "ratio_error": _finite(self.ratio_error),
            "discrepancy": _finite(self.discrepancy),
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


def check_criterion(settings: SearchSettings) -> None:
    """Refuse words that are not known, and a bound that says nothing."""
    check_words(settings)
    if settings.epsilon is None:
        return
    if settings.criterion not in LIMITS:
        raise UsageError(
            f"epsilon {settings.epsilon:g}: bounds R_q or r; {settings.criterion} has no bound"
        )
    if not 0 < settings.epsilon < math.inf:
        raise UsageError(f"epsilon must be a number above 0, got {settings.epsilon}")


def judge(candidates: Sequence[Candidate], settings: SearchSettings) -> list[Candidate]:
    """Candidates with `feasible` and `verdict` set, in the order given.

    `contiguous` goes down from a codec's best quality and largest scale and stops before the
    first failure, because ratios can dip below 1 and come back. `paper` allows any that passes.
    """
    check_criterion(settings)
    criterion, judged = settings.criterion, list(candidates)
    values = [candidate.value(criterion) for candidate in candidates]
    fails = []  # not if unknown
    for candidate, value in zip(candidates, values, strict=True):
        limits = settings.limits_of(candidate.codec, candidate.quality)
        low, high = limits or (-math.inf, math.inf)
        fails.append(value <= low or value >= high)
    failed = list(compress(candidates, fails))
    for index, (candidate, value, far) in enumerate(zip(candidates, values, fails, strict=True)):
        if candidate.quantity == 0:
            feasible, verdict = False, candidate.verdict
        elif math.isnan(value):
            feasible, verdict = False, f"{SYMBOLS[criterion]} unknown"
        elif far:
            feasible, verdict = False, "too far from 1"
        elif settings.rule == "contiguous" and any(_better(one, candidate) for one in failed):
            feasible, verdict = False, BETTER_FAILS
        else:
            feasible, verdict = True, "fits" if settings.limits is None else "passes"
        judged[index] = replace(candidate, feasible=feasible, verdict=verdict)
    return judged


def _better(one: Candidate, other: Candidate) -> bool:
    """Whether a candidate has the other's codec, and neither a lower quality nor scale."""
    (codec, scale), (other_codec, other_scale) = split_scale(one.codec), split_scale(other.codec)
    quality, other_quality = (math.inf if c.quality is None else c.quality for c in (one, other))
    return codec == other_codec and quality >= other_quality and scale >= other_scale


def best_first(candidates: Sequence[Candidate]) -> list[int]:
    """Indices: lossless candidates, then codec by codec, the best quality first."""
    codecs = list(dict.fromkeys(candidate.codec for candidate in candidates))

    def place(index: int) -> tuple[bool, int, int]:
        one = candidates[index]
        return one.quality is not None, codecs.index(one.codec), -(one.quality or 0)

    return sorted(range(len(candidates)), key=place)


def choose_quality(judged: Sequence[Candidate], criterion: Criterion) -> int | None:
    """Index of the best feasible candidate; None if there is none.

    For a ratio, the best stores the most images; for the discrepancy, it has the smallest.
    """
    best: int | None = None
    for index in best_first(judged):
        if judged[index].feasible and (
            best is None or _beats(judged[index], judged[best], criterion)
        ):
            best = index
    return best


def _beats(new: Candidate, old: Candidate, criterion: Criterion) -> bool:
    """Whether to prefer a candidate to one of better quality, or of another codec.

    If both store about as many images, the better quality wins: there is no reason to distort
    images for next to nothing. Qualities of two codecs cannot be compared, so the discrepancy
    decides.
    """
    low = split_scale(new.codec)[0] in JPEGS and (new.quality or 100) < min(QUALITIES)
    nearly = abs(new.quantity - old.quantity) < (NEARLY_LOW if low else NEARLY) * old.quantity
    if nearly and (old.quality is None or old.codec == new.codec):
        return False
    if nearly or criterion == "discrepancy":
        return new.discrepancy < old.discrepancy
    return new.quantity > old.quantity
