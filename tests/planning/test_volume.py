"""Volumes, their ratios, and the exact k-DPP."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mrdc._utils.errors import UsageError, VolumeError
from mrdc.planning.volume import (
    from_log,
    gram,
    log_normaliser,
    log_partition_ratio,
    log_subset_probability,
    log_volume,
    phase_ratio,
    volume_ratio,
)

SQUARE = torch.eye(2)
HALF = torch.tensor([[1.0, 0.0], [math.cos(math.pi / 6), 0.5]])  # 30 degrees
EIGHTH = torch.tensor([[1.0, 0.0], [math.sqrt(63) / 8, 1 / 8]])


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("features", "volume"),
    [
        (torch.eye(3), 1.0),
        (7 * torch.eye(3), 1.0),  # rows are scaled to length 1
        (torch.tensor([[1.0, 0.0], [0.5, math.sqrt(3) / 2]]), math.sin(math.pi / 3)),
        (HALF, 0.5),
    ],
)
def test_volume_by_hand(features: Tensor, volume: float) -> None:
    """A unit cube, and parallelograms of the area sin(angle)."""
    assert log_volume(features) == pytest.approx(math.log(volume), abs=1e-6)


@pytest.mark.parametrize(
    ("angle", "log"), [(0, -math.inf), (1e-6, -math.inf), (1e-4, math.log(1e-4))]
)
def test_rows_that_rounding_cannot_tell_apart_have_no_volume(angle: float, log: float) -> None:
    """At an angle a the smaller eigenvalue is 1 - cos a, about a^2 / 2; the bound is 1e-10."""
    features = torch.tensor([[1.0, 0.0], [1.0, angle]], dtype=torch.double)
    assert log_volume(features) == pytest.approx(log, abs=1e-3)


def test_more_rows_than_dimensions_are_refused() -> None:
    """Every such volume is zero; the message names the fix."""
    with pytest.raises(
        VolumeError, match=r"5 rows in 4 dimensions.*at most 4 rows, or use volume='ridge'"
    ):
        log_volume(rows(5, 4))


def test_volumes_against_determinants() -> None:
    """Half of log det L; ridge takes any number of rows: half of log det(I + L / 0.1)."""
    features = rows(6, 4)
    expected = 0.5 * math.log(torch.linalg.det(torch.eye(6) + gram(features) / 0.1).item())
    assert log_volume(features, "ridge") == pytest.approx(expected)
    plain = 0.5 * math.log(torch.linalg.det(gram(rows(8, 20))).item())
    assert log_volume(rows(8, 20)) == pytest.approx(plain, rel=1e-10)


def test_phase_ratio_is_the_geometric_mean_of_class_ratios() -> None:
    """Ratios 1/2 and 1/8 give 1/4; equal features exactly 1; overflow is clamped."""
    assert volume_ratio(SQUARE, HALF) == pytest.approx(0.5, abs=1e-6)
    assert volume_ratio(rows(20, 64), rows(20, 64)) == 1.0
    found = phase_ratio({"a": (SQUARE, HALF), "b": (SQUARE, EIGHTH)})
    assert found.value == pytest.approx(0.25, abs=1e-6)
    assert found.excluded == found.sampled == {}
    assert from_log(1e4) > 1e300 and from_log(-1e4) == 0 and math.isnan(from_log(math.nan))


def test_ratio_per_image_does_not_depend_on_the_number_of_images() -> None:
    """Two rows 30 degrees apart: R = 1/2, r = 1/2^(1/2). Twice as many: R = 1/4, the same r."""
    found = phase_ratio({"a": (SQUARE, HALF)})
    twice = phase_ratio({"a": (torch.eye(4), torch.kron(torch.eye(2), HALF))})
    assert found.per_image == pytest.approx(0.5**0.5, abs=1e-6)
    assert (twice.value, twice.per_image) == pytest.approx((0.25, 0.5**0.5), abs=1e-6)
    both = phase_ratio({"a": (SQUARE, HALF), "b": (torch.eye(4), torch.eye(4))})
    assert both.per_image == pytest.approx(0.5**0.25, abs=1e-6)  # the geometric mean over classes


def test_degenerate_classes_are_left_out_and_named() -> None:
    """Equal originals, equal compressed images, or a single image; nan if no class is left."""
    good, same = rows(3, 8), rows(1, 8).repeat(3, 1)
    bad = {"twins": (same, good), "blurred": (good, same), "one": (good[:1],) * 2}
    found = phase_ratio({"good": (good, good), **bad})
    assert found.value == 1.0
    assert list(found.by_class) == ["good"]
    assert found.excluded == {
        "twins": "originals that look the same to the embedding",
        "blurred": "images that look the same once compressed",
        "one": "one image",
    }
    assert math.isnan(phase_ratio(bad).value) and math.isnan(phase_ratio(bad).per_image)


def test_large_classes_are_measured_on_a_seeded_sample() -> None:
    """Half as many rows as dimensions, the same of both sides; others are measured whole."""
    original, compressed = rows(9, 8), rows(9, 8, 1)
    pairs = {"large": (original, compressed), "full": (original[:8], compressed[:8])}
    found = phase_ratio(pairs)
    assert found == phase_ratio(pairs)
    assert found.sampled == {"large": "R_q measured on 4 of 9 images (8 dimensions)"}
    sample = torch.from_numpy(np.random.default_rng(0).permutation(9)[:4])
    expected = log_volume(compressed[sample]) - log_volume(original[sample])
    assert found.by_class["large"] == expected
    mean = (expected / 4 + found.by_class["full"] / 8) / 2
    assert found.log_per_image == pytest.approx(mean)
    assert found.by_class["full"] == log_volume(compressed[:8]) - log_volume(original[:8])
    assert phase_ratio(pairs, "ridge").sampled == {}


# The exact k-DPP


def brute_force(features: Tensor, k: int) -> float:
    """The sum over all subsets, one determinant each."""
    kernel = gram(features)
    subsets = itertools.combinations(range(len(features)), k)
    return math.log(sum(torch.linalg.det(kernel[list(s)][:, list(s)]).item() for s in subsets))


@pytest.mark.parametrize(
    ("n", "d", "k"), [(8, 12, 1), (8, 12, 4), (8, 12, 7), (8, 12, 8), (9, 5, 4)]
)
def test_normaliser_against_brute_force(n: int, d: int, k: int) -> None:
    """On small kernels, one of them singular: its zero eigenvalues add nothing."""
    features = rows(n, d)
    assert log_normaliser(features, k) == pytest.approx(brute_force(features, k), rel=1e-8)


def test_volumes_at_their_limits() -> None:
    """Zero beyond the rank, no underflow for similar rows, and no more rows than there are."""
    similar = torch.ones(512) + 0.1 * rows(300, 512)
    assert torch.linalg.det(gram(similar)).item() == 0.0 and -1500 < log_volume(similar) < -372
    assert log_normaliser(rows(9, 5), 6) == -math.inf
    features = torch.ones(512) + 0.01 * rows(400, 512)
    assert -3000 < log_normaliser(features, 200) < -700
    with pytest.raises(UsageError, match="k must be from 0 to 3 rows, got 4"):
        log_normaliser(rows(3, 5), 4)


def test_subset_probabilities_sum_to_one() -> None:
    """Over all subsets of three of six; and the only subset of all rows is certain."""
    features = rows(6, 8)
    subsets = itertools.combinations(range(6), 3)
    assert sum(math.exp(log_subset_probability(features, s)) for s in subsets) == pytest.approx(1)
    assert log_subset_probability(features, range(6)) == pytest.approx(0, abs=1e-9)


def test_r_squared_z_is_the_ratio_of_probabilities() -> None:
    """R_q^2 Z_q = P(compressed subset) / P(original subset), the identity behind L_2."""
    original, compressed, subset = rows(9, 16), rows(9, 16, 1), [0, 3, 5, 8]
    log_r = log_volume(compressed[subset]) - log_volume(original[subset])
    log_z = log_partition_ratio(original, compressed, 4)
    before, after = (log_subset_probability(f, subset) for f in (original, compressed))
    assert 2 * log_r + log_z == pytest.approx(after - before)
