"""R_q: the volume that features span after compression, over the volume before (Sec. 4).

The volume is that of the parallelotope spanned by the feature rows, scaled to length 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from mrdc._utils.errors import UsageError, VolumeError
from mrdc._utils.extras import Tensor, torch

Volume = Literal["gram", "ridge"]

SINGULAR = 1e-10  # eigenvalues below this are within the rounding of fp32 features
LARGEST_LOG = 700.0  # log of the largest float, with a margin
RIDGE = 0.1  # lambda of the ridge volume


def gram(features: Tensor) -> Tensor:
    """Inner products of the rows scaled to length 1, in float64, shape (n, n)."""
    rows = torch.nn.functional.normalize(features.double(), dim=1)
    return rows @ rows.T


def log_volume(features: Tensor, volume: Volume = "gram") -> float:
    """Log-volume spanned by feature rows scaled to length 1, shape (n, d).

    Half the log-determinant of the Gram matrix L (Sec. 4.2), in logs because det underflows
    for many similar rows; -inf if rows coincide. The "ridge" volume, which is not the paper's,
    is half of log det(I + L / 0.1), finite for any n.

    Raises:
        VolumeError: n > d, where every volume is zero.
    """
    n, d = features.shape
    kernel = gram(features)
    if volume == "ridge":
        identity = torch.eye(n, dtype=kernel.dtype, device=kernel.device)
        return 0.5 * float(torch.linalg.slogdet(identity + kernel / RIDGE).logabsdet)
    if n > d:
        raise VolumeError(
            f"features has {n} rows in {d} dimensions, so its volume is zero; pass at most {d} "
            "rows, or use volume='ridge', which is not the paper's"
        )
    eigenvalues = torch.linalg.eigvalsh(kernel)
    if eigenvalues[0] < SINGULAR:
        return -math.inf
    return 0.5 * float(eigenvalues.log().sum())


def from_log(log: float) -> float:
    """Exponential, clamped to the range of a float."""
    return math.exp(min(log, LARGEST_LOG))


def volume_ratio(original: Tensor, compressed: Tensor, volume: Volume = "gram") -> float:
    """R_q of one set: features (n, d) of images before and after compression."""
    return from_log(log_volume(compressed, volume) - log_volume(original, volume))


@dataclass(frozen=True)
class PhaseRatio:
    """R_q over the classes of a phase."""

    log: float = 0.0  # mean over classes of log Vol(compressed) - log Vol(original)
    log_per_image: float = 0.0  # mean over classes of the same, divided by the images of the class
    log_error: float = 0.0  # standard error of this mean, if classes were drawn from many
    by_class: Mapping[str, float] = field(default_factory=dict)  # the same for each class in it
    excluded: Mapping[str, str] = field(default_factory=dict)  # classes left out, and why
    sampled: Mapping[str, str] = field(default_factory=dict)  # classes measured on some images

    @property
    def value(self) -> float:
        """R_q: the geometric mean of the ratios of the classes."""
        return from_log(self.log)

    @property
    def per_image(self) -> float:
        """r: the same per image, so that it does not grow with their number."""
        return from_log(self.log_per_image)


def phase_ratio(
    features: Mapping[str, tuple[Tensor, Tensor]], volume: Volume = "gram"
) -> PhaseRatio:
    """R_q and r of a phase, from (original, compressed) features of each class.

    A class with zero volume, or with one image (whose volume is 1 at any quality), says
    nothing about quality: it is left out and named. The volume of more rows than dimensions
    is zero, so such a class is measured on a seeded sample of half as many rows as dimensions.
    """
    by_class: dict[str, float] = {}
    per_image: list[float] = []
    excluded: dict[str, str] = {}
    sampled: dict[str, str] = {}
    for name, pair in features.items():
        n, d = pair[0].shape
        if volume == "gram" and n > d >= 4:
            rows = torch.from_numpy(np.random.default_rng(0).permutation(n)[: d // 2])
            pair = pair[0][rows], pair[1][rows]
            sampled[name] = f"R_q measured on {d // 2:,} of {n:,} images ({d:,} dimensions)"
        original, compressed = (log_volume(rows, volume) for rows in pair)
        if n < 2:
            excluded[name] = "one image"
        elif math.isinf(original):
            excluded[name] = "originals that look the same to the embedding"
        elif math.isinf(compressed):
            excluded[name] = "images that look the same once compressed"
        else:
            by_class[name] = compressed - original
            per_image.append(by_class[name] / len(pair[0]))
    if not by_class:
        return PhaseRatio(math.nan, math.nan, math.nan, {}, excluded, sampled)
    log, log_per_image = fmean(by_class.values()), fmean(per_image)
    error = stdev(per_image) / math.sqrt(len(per_image)) if per_image[1:] else math.nan
    return PhaseRatio(log, log_per_image, error, by_class, excluded, sampled)


# The exact k-DPP that the paper sets aside as too expensive


def log_normaliser(features: Tensor, k: int) -> float:
    """Log of the sum of det(L_M) over all subsets M of k rows.

    This is the k-th elementary symmetric polynomial of the nonzero eigenvalues of L (those of
    the smaller of its two forms), by a recursion in log space; -inf if k exceeds the rank.
    """
    rows = torch.nn.functional.normalize(features.double(), dim=1)
    n, d = rows.shape
    if not 0 <= k <= n:
        raise UsageError(f"k must be from 0 to {n} rows, got {k}")
    values = torch.linalg.eigvalsh(rows.T @ rows if d < n else rows @ rows.T).cpu().numpy()
    sums = np.full(k + 1, -np.inf)
    sums[0] = 0.0
    for log_eigenvalue in np.log(values[values > SINGULAR]):
        sums[1:] = np.logaddexp(sums[1:], sums[:-1] + log_eigenvalue)
    return float(sums[k])


def log_subset_probability(features: Tensor, subset: Sequence[int] | Tensor) -> float:
    """Log-probability that the k-DPP over all rows (n, d) draws this subset."""
    rows = torch.as_tensor(subset)
    return 2 * log_volume(features[rows]) - log_normaliser(features, len(rows))


def log_partition_ratio(original: Tensor, compressed: Tensor, k: int) -> float:
    """Log Z_q: the k-DPP normaliser of all originals over that of all compressed.

    R_q^2 Z_q is then P(compressed subset) / P(original subset), and the
    paper's second goal is L_2 = |R_q^2 Z_q - 1|.
    """
    return log_normaliser(original, k) - log_normaliser(compressed, k)
