"""Volumes, ratios, the exact k-DPP, and the choice."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from mrdc._utils.errors import UsageError, VolumeError
from mrdc.planning.choice import Candidate, choose_quality, judge
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


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


# Volumes


def test_orthonormal_rows_span_unit_volume() -> None:
    """Three orthonormal features span a unit cube."""
    assert log_volume(torch.eye(3)) == pytest.approx(0.0)


def test_rows_are_scaled_to_length_one() -> None:
    """Longer features span no more."""
    assert log_volume(7 * torch.eye(3)) == pytest.approx(0.0)


def test_two_rows_at_sixty_degrees() -> None:
    """The parallelogram has area sin 60."""
    features = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    assert log_volume(features) == pytest.approx(math.log(math.sin(math.pi / 3)), abs=1e-6)


def test_volume_matches_the_determinant_where_that_does_not_underflow() -> None:
    """Half the log-determinant of the Gram matrix."""
    features = rows(8, 20)
    expected = 0.5 * math.log(torch.linalg.det(gram(features)).item())
    assert log_volume(features) == pytest.approx(expected, rel=1e-10)


def test_no_underflow_where_det_is_zero() -> None:
    """300 similar rows: det is 0.0 in float64, the log-volume is an ordinary number."""
    features = torch.ones(512) + 0.1 * rows(300, 512)
    assert torch.linalg.det(gram(features)).item() == 0.0
    assert -1500 < log_volume(features) < -372


def test_equal_rows_have_no_volume() -> None:
    """-inf, not a large negative number that could enter a mean."""
    features = rows(4, 8)
    features[3] = features[0]
    assert log_volume(features) == -math.inf
    features[3] = features[0] * (1 + 1e-7)
    assert log_volume(features) == -math.inf


def test_rows_that_rounding_cannot_tell_apart_have_no_volume() -> None:
    """At an angle a: the smaller eigenvalue is 1 - cos a, about a^2 / 2, and 1e-10 is the bound."""
    for angle, logs in ((1e-6, -math.inf), (1e-4, math.log(1e-4))):
        features = torch.tensor([[1.0, 0.0], [1.0, angle]], dtype=torch.double)
        assert log_volume(features) == pytest.approx(logs, abs=1e-3)


def test_more_rows_than_dimensions_is_an_error_that_names_the_fix() -> None:
    """Every such volume is zero."""
    with pytest.raises(
        VolumeError, match=r"5 rows in 4 dimensions.*at most 4 rows, or use the volume 'ridge'"
    ):
        log_volume(rows(5, 4))


def test_ridge_volume_takes_any_number_of_rows() -> None:
    """Half of log det(I + L / 0.1), against the determinant."""
    features = rows(6, 4)
    expected = 0.5 * math.log(torch.linalg.det(torch.eye(6) + gram(features) / 0.1).item())
    assert log_volume(features, "ridge") == pytest.approx(expected)


def test_ratio_of_the_same_features_is_exactly_one() -> None:
    """R_q = 1 for `original`."""
    features = rows(20, 64)
    assert volume_ratio(features, features.clone()) == 1.0


def test_ratio_by_hand() -> None:
    """From a right angle to 30 degrees: half the area."""
    square = torch.eye(2)
    narrow = torch.tensor([[1.0, 0.0], [math.cos(math.pi / 6), 0.5]])
    assert volume_ratio(square, narrow) == pytest.approx(0.5, abs=1e-6)


def test_phase_ratio_is_the_geometric_mean_of_class_ratios() -> None:
    """Ratios 1/2 and 1/8 give 1/4."""
    narrow = torch.tensor([[1.0, 0.0], [math.cos(math.pi / 6), 0.5]])
    eighth = torch.tensor([[1.0, 0.0], [math.sqrt(63) / 8, 1 / 8]])
    found = phase_ratio({"a": (torch.eye(2), narrow), "b": (torch.eye(2), eighth)})
    assert found.value == pytest.approx(0.25, abs=1e-6)
    assert found.excluded == {}


def test_degenerate_classes_are_left_out_and_named() -> None:
    """Same originals, same when compressed, or a single image."""
    good, same = rows(3, 8), rows(1, 8).repeat(3, 1)
    found = phase_ratio(
        {
            "good": (good, good),
            "twins": (same, good),
            "blurred": (good, same),
            "one": (good[:1],) * 2,
        }
    )
    assert found.value == 1.0
    assert list(found.by_class) == ["good"]
    assert set(found.excluded) == {"twins", "blurred", "one"}
    assert "once compressed" in found.excluded["blurred"]


def test_no_class_left_is_not_a_number() -> None:
    """Rather than a ratio made of nothing."""
    same = rows(1, 8).repeat(3, 1)
    assert math.isnan(phase_ratio({"twins": (same, same)}).value)


# The exact k-DPP


def brute_force(features: Tensor, k: int) -> float:
    """The sum over all subsets, one determinant each."""
    kernel = gram(features)
    subsets = itertools.combinations(range(len(features)), k)
    return math.log(sum(torch.linalg.det(kernel[list(s)][:, list(s)]).item() for s in subsets))


@pytest.mark.parametrize("k", [1, 2, 4, 7, 8])
def test_normaliser_against_brute_force(k: int) -> None:
    """On an 8-item kernel."""
    features = rows(8, 12)
    assert log_normaliser(features, k) == pytest.approx(brute_force(features, k), rel=1e-10)


def test_normaliser_with_more_rows_than_dimensions() -> None:
    """Rank 5: the zero eigenvalues add nothing."""
    features = rows(9, 5)
    assert log_normaliser(features, 4) == pytest.approx(brute_force(features, 4), rel=1e-8)
    assert log_normaliser(features, 6) == -math.inf


def test_normaliser_does_not_underflow() -> None:
    """200 of 400 similar rows, where linear space gives zero."""
    features = torch.ones(512) + 0.01 * rows(400, 512)
    assert -3000 < log_normaliser(features, 200) < -700


def test_normaliser_refuses_impossible_sizes() -> None:
    """More than there are."""
    with pytest.raises(UsageError, match="k must be from 0 to 3 rows, got 4"):
        log_normaliser(rows(3, 5), 4)


def test_subset_probabilities_sum_to_one() -> None:
    """Over all subsets of three of six."""
    features = rows(6, 8)
    subsets = itertools.combinations(range(6), 3)
    assert sum(math.exp(log_subset_probability(features, s)) for s in subsets) == pytest.approx(1)


def test_the_whole_set_is_certain() -> None:
    """There is one subset of all."""
    assert log_subset_probability(rows(5, 8), range(5)) == pytest.approx(0, abs=1e-9)


def test_r_squared_z_is_the_ratio_of_probabilities() -> None:
    """R_q^2 Z_q = P(compressed subset) / P(original subset), the identity behind L_2."""
    original, compressed, subset = rows(9, 16), rows(9, 16, 1), [0, 3, 5, 8]
    log_r = log_volume(compressed[subset]) - log_volume(original[subset])
    log_z = log_partition_ratio(original, compressed, 4)
    before, after = (log_subset_probability(f, subset) for f in (original, compressed))
    assert 2 * log_r + log_z == pytest.approx(after - before)


# The choice


def candidate(quality: int | None, ratio: float, quantity: int, codec: str = "jpeg") -> Candidate:
    log = math.log(ratio) if ratio > 0 else math.nan
    return Candidate("original" if quality is None else codec, quality, quantity, 1000, log, {})


PAPER = [
    candidate(None, 1.0, 20),
    candidate(90, 1.0, 37),
    candidate(75, 0.9, 58),
    candidate(50, 0.7, 85),
    candidate(25, 0.3, 125),
    candidate(10, 0.1, 200),
]


@pytest.mark.parametrize("rule", ["contiguous", "paper"])
def test_both_rules_agree_where_the_ratio_is_monotone(rule: str) -> None:
    """The paper's LUCIR case ends at 50."""
    assert choose_quality(PAPER, rule=rule).quality == 50  # type: ignore[arg-type]


def test_rules_differ_where_the_ratio_comes_back() -> None:
    """0.66, 0.46, 0.72 at 50, 25, 10: the paper's rule picks the wreck."""
    dip = [*PAPER[:3], candidate(50, 0.66, 85), candidate(25, 0.46, 125), candidate(10, 0.72, 200)]
    assert choose_quality(dip, rule="paper").quality == 10
    assert choose_quality(dip, rule="contiguous").quality == 50
    assert [c.verdict for c in judge(dip)][-2:] == ["too far from 1", "a better quality fails"]


def test_order_of_candidates_does_not_matter() -> None:
    """Judged from the best quality down, however they are listed."""
    assert choose_quality(PAPER[::-1]).quality == 50
    assert [c.quality for c in judge(PAPER[::-1])] == [c.quality for c in PAPER[::-1]]


def test_nothing_passes_keeps_the_originals() -> None:
    """`original` always passes."""
    assert choose_quality([PAPER[0], *PAPER[4:]]).codec == "original"


def test_ties_go_to_the_best_quality() -> None:
    """Where all images fit anyway there is no reason to distort them."""
    full = [candidate(None, 1.0, 20), *(candidate(q, 0.9, 30) for q in (10, 25, 75))]
    assert choose_quality(full).quality == 75


def test_several_codecs_are_judged_apart_and_the_larger_quantity_wins() -> None:
    """A failure of JPEG does not stop WebP."""
    mixed = [*PAPER, candidate(50, 0.8, 120, "webp"), candidate(25, 0.2, 170, "webp")]
    assert str(choose_quality(mixed)) == "webp 50"


def test_epsilon_is_a_strict_bound() -> None:
    """|R - 1| < epsilon, above and below."""
    pair = [candidate(50, 0.5, 30), candidate(40, 1.5, 40), PAPER[0]]
    assert choose_quality(pair, epsilon=0.5).codec == "original"
    assert choose_quality(pair, epsilon=0.51).quality == 40


def test_unknown_ratio_never_passes() -> None:
    """Nor does a candidate that stores nothing; but neither rules out a lower quality."""
    for unknown in (candidate(50, -1, 85), candidate(50, -1, 0)):
        assert choose_quality([PAPER[0], unknown]).codec == "original"
        assert choose_quality([PAPER[0], unknown, candidate(25, 0.9, 99)]).quality == 25


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "best"}, "rule must be"),
        ({"epsilon": 0.0}, "epsilon must be a number above 0"),
        ({"epsilon": math.inf}, "a number"),
    ],
)
def test_wrong_rules_are_refused(settings: dict[str, float], message: str) -> None:
    """With what is allowed."""
    with pytest.raises(UsageError, match=message):
        choose_quality(PAPER, **settings)  # type: ignore[arg-type]


def test_no_feasible_candidate_is_an_error_that_says_what_to_add() -> None:
    """Only possible without `original`."""
    with pytest.raises(UsageError, match="add the codec 'original'"):
        choose_quality(PAPER[4:])


def test_ratios_beyond_all_floats_are_cut_off() -> None:
    """Very many near-duplicates; the verdict is the same."""
    judged = judge([Candidate("jpeg", 10, 5, 5, 1e4, {}), Candidate("jpeg", 90, 5, 5, -1e4, {})])
    assert judged[0].volume_ratio > 1e300 and judged[1].volume_ratio == 0
    assert not any(candidate.feasible for candidate in judged)
    assert math.isnan(from_log(math.nan)) and from_log(0.0) == 1
