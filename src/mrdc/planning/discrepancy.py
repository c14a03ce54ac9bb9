"""How well stored images stand in for all the originals of a class.

The squared maximum mean discrepancy (Gretton et al., 2012) between the features of the originals P
and those of the stored images Q, every row scaled to length 1:

    MMD^2 = mean k(P, P) + mean k(Q, Q) - 2 mean k(P, Q),    k(a, b) = exp(-|a - b|^2 / h)

It is large if few images are stored (about (1 - mean k) / m for m images) and if compression moves
their features, so the two can be traded without a bound. In float64, in blocks of rows, on the
device of the features.
"""

from itertools import product

from mrdc._utils.extras import Tensor, torch
from mrdc.planning.settings import BANDWIDTH

BLOCK = 1024  # rows that are compared at a time


def kernel(left: Tensor, right: Tensor) -> Tensor:
    """k of every row of `left` (n, d) and every row of `right` (m, d), in float64, shape (n, m)."""
    rows = [torch.nn.functional.normalize(one.double(), dim=1) for one in (left, right)]
    lengths = [one.square().sum(dim=1) for one in rows]  # 1, or 0 for a row of zeros
    products = rows[0] @ rows[1].T
    closeness = products.mul_(2).sub_(lengths[0][:, None]).sub_(lengths[1])  # -|a - b|^2
    return closeness.clamp_max_(0).div_(BANDWIDTH).exp_()


def mean_kernel(left: Tensor, right: Tensor) -> float:
    """Mean of k over all pairs of a row of `left` and a row of `right`."""
    pairs = product(torch.split(left, BLOCK), torch.split(right, BLOCK))
    return sum(float(kernel(a, b).sum()) for a, b in pairs) / (len(left) * len(right))


def discrepancy(originals: Tensor, stored: Tensor, spread: float | None = None) -> float:
    """MMD^2 between the features of all originals (n, d) and of the stored images (m, d).

    `spread` is mean k(P, P), where it is known already.
    """
    within = mean_kernel(originals, originals) if spread is None else spread
    apart = within + mean_kernel(stored, stored) - 2 * mean_kernel(originals, stored)
    return max(0.0, apart)  # rounding may leave equal sets below 0
