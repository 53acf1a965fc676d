"""CERTIFY against classifiers whose robustness is known exactly, and the bugs that such a comparison must catch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from certify_oracles import (
    Affine,
    Interval,
    Truth,
    affine_truth,
    assert_few_failures,
    bound_from_votes,
    failures,
    interval_probability,
    interval_truth,
    three_sectors,
    two_classes,
)
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from torch import Tensor, nn

from twinproof.certification import confidence as mean_confidence
from twinproof.certification import radius
from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import VoteCounter
from twinproof.keys import Key
from twinproof.rounding import round_down, round_up
from twinproof.runs.certificates import Certificate

TOTAL = 10_000
SAMPLING = Sampling(n0=20, n=150, alpha=0.001)
SIGMAS = (0.1, 0.25, 0.5, 1.0)
LEVELS = (255, 16, 255, 65535)

Judged = tuple[list[Certificate], Truth]
Case = Callable[[np.random.Generator, float, int, int], Judged]


def _certified(model: nn.Module, stored: NDArray[np.int64], sigma: float, levels: int) -> list[Certificate]:
    key = Key.from_seed(int(1000 * sigma))
    return smooth(model, sigma, levels=levels).certify(stored, sampling=SAMPLING, key=key)


def _two(generator: np.random.Generator, sigma: float, levels: int, count: int) -> Judged:
    model = two_classes(generator, 3)
    stored = generator.integers(0, levels + 1, size=(count, 3))
    return _certified(model, stored, sigma, levels), affine_truth(model, stored / levels)


def _three(generator: np.random.Generator, sigma: float, levels: int, count: int) -> Judged:
    model = three_sectors()
    stored = generator.integers(0, levels + 1, size=(count, 3))
    return _certified(model, stored, sigma, levels), affine_truth(model, stored / levels)


def _step(generator: np.random.Generator, sigma: float, levels: int, count: int) -> Judged:
    model = Interval(0.5 - 1.5 * sigma, 0.5 + 1.5 * sigma)
    stored = generator.integers(0, levels + 1, size=(count, 1))
    return _certified(model, stored, sigma, levels), interval_truth(model, stored / levels, sigma)


def _failed(case: Case) -> int:
    generator = np.random.default_rng(11)
    per_sigma = TOTAL // len(SIGMAS)
    return sum(failures(*case(generator, sigma, levels, per_sigma)) for sigma, levels in zip(SIGMAS, LEVELS, strict=True))


@pytest.mark.parametrize("case", [_two, _three, _step], ids=["hyperplane", "three sectors", "interval"])
def test_at_most_28_of_10_000_certificates_are_false(case: Case) -> None:
    assert_few_failures(_failed(case), TOTAL)


@pytest.mark.slow
@pytest.mark.parametrize("case", [_two, _three, _step], ids=["hyperplane", "three sectors", "interval"])
def test_at_most_151_of_100_000_certificates_are_false(case: Case) -> None:
    """Ten times as many see an error rate of 0.0015 where 10,000 would need 0.0028; the same false alarm of 1e-6."""
    generator = np.random.default_rng(12)
    assert sum(failures(*case(generator, sigma, 255, 25_000)) for sigma in SIGMAS) <= 151


def test_certificates_are_not_empty_talk() -> None:
    """The check above would pass if everything abstained; a linear classifier's votes must reach near the exact radius."""
    certificates, truth = _two(np.random.default_rng(3), 0.25, 255, 500)
    far = truth.radii > 0.15
    assert far.sum() > 50
    reached = np.array([made.radius for made in certificates])[far] / truth.radii[far]
    assert (reached > 0).mean() > 0.9
    assert reached.mean() > 0.4


def _share(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    return np.minimum(np.asarray(votes, dtype=np.float64) / draws, 1 - 1e-9)


@pytest.mark.parametrize("case", [_two, _three, _step], ids=["hyperplane", "three sectors", "interval"])
def test_planted_share_of_votes_instead_of_a_bound_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_confidence, "clopper_pearson_lower", _share)
    with pytest.raises(AssertionError, match="certificates are false"):
        assert_few_failures(_failed(case), TOTAL)


def test_planted_alpha_ten_times_too_large_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lax(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
        return clopper_pearson_lower(votes, draws, 10 * alpha)

    monkeypatch.setattr(mean_confidence, "clopper_pearson_lower", lax)
    with pytest.raises(AssertionError, match="certificates are false"):
        assert_few_failures(_failed(_two), TOTAL)


def _bounds_above_the_truth(classes: int = 32, draws: int = 150) -> int:
    """How often the bound on the selected class exceeds its probability, where all classes are equally probable."""
    model = Affine(np.eye(classes), np.zeros(classes))
    stored = np.full((TOTAL, classes), 1024)
    sampling = Sampling(n0=draws, n=draws, alpha=0.001)
    made = smooth(model, 0.5, levels=2047).certify(stored, sampling=sampling, key=Key.from_seed(5))
    bounds = clopper_pearson_lower([certificate.votes for certificate in made], draws, sampling.alpha)
    # Rarely the two largest coordinates fall on the same grid point, and then the first wins: hence the 1 %.
    return int((bounds > 1.01 / classes).sum())


def test_selection_does_not_bias_the_bound_among_tied_classes() -> None:
    assert_few_failures(_bounds_above_the_truth(), TOTAL)


def test_planted_selection_draws_reused_for_estimation_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    count = VoteCounter.count

    def reuse(self: VoteCounter, purpose: str, *what: Any, **span: Any) -> Tensor:
        return count(self, "select", *what, **span)

    monkeypatch.setattr(VoteCounter, "count", reuse)
    with pytest.raises(AssertionError, match="certificates are false"):
        assert_few_failures(_bounds_above_the_truth(), TOTAL)


def _assert_share_of_votes(sigma_claimed: float, sigma_used: float) -> None:
    """One standard deviation from a hyperplane the share of votes must be Phi(1), to 6 standard errors."""
    inputs, draws = 400, 5000
    # A standard deviation and half a step of the grid, 1/16 of one of 16 levels: no point of the grid lies on the boundary.
    distance = 0.25 + 1 / 512
    model = Affine(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([distance - 0.5, 0.5 - distance]))
    stored = np.full((inputs, 2), 8)
    made = smooth(model, sigma_used, levels=16).certify(stored, sampling=Sampling(50, draws), key=Key.from_seed(8))
    share = sum(certificate.votes for certificate in made) / (inputs * draws)
    expected = float(norm.cdf(distance / sigma_claimed))
    error = 6 * math.sqrt(expected * (1 - expected) / (inputs * draws))
    assert abs(share - expected) <= error, f"share {share:.5f}, expected {expected:.5f} within {error:.5f}"


def test_votes_fall_as_the_stated_sigma_says() -> None:
    _assert_share_of_votes(0.25, 0.25)


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_planted_sigma_wrong_by_two_percent_is_caught(factor: float) -> None:
    with pytest.raises(AssertionError, match="share"):
        _assert_share_of_votes(0.25, 0.25 * factor)


def test_the_interval_has_the_votes_of_its_known_probability() -> None:
    model, sigma, inputs, draws = Interval(0.2 + 1e-4, 0.7 + 1e-4), 0.5, 300, 2000
    for level in (0, 100, 255):
        stored = np.full((inputs, 1), level)
        made = smooth(model, sigma).certify(stored, sampling=Sampling(200, draws), key=Key.from_seed(level))
        inside = sum(one.votes if one.top == 1 else draws - one.votes for one in made) / (inputs * draws)
        expected = interval_probability(model, level / 255, sigma)
        assert abs(inside - expected) <= 6 * math.sqrt(expected * (1 - expected) / (inputs * draws)) + 1e-3 * expected


def _assert_rounded_down(radii: NDArray[np.float64], sigma: float, tau: float) -> None:
    bounds = clopper_pearson_lower(np.arange(SAMPLING.n + 1), SAMPLING.n, SAMPLING.alpha) - tau
    exact = np.where(bounds > 0.5, sigma * norm.ppf(np.maximum(bounds, 0.5)), 0.0)
    assert (radii <= exact).all(), "a radius was rounded up"
    assert (radii > exact - 1.001e-6).all()


@pytest.mark.parametrize("sigma", SIGMAS)
def test_radii_of_all_possible_votes_are_rounded_down(sigma: float) -> None:
    _assert_rounded_down(bound_from_votes(np.arange(SAMPLING.n + 1), SAMPLING, sigma, 1e-8).radii, sigma, 1e-8)


def test_exactly_the_votes_whose_bound_exceeds_one_half_are_certified() -> None:
    tau = 0.01
    bound = bound_from_votes(np.arange(SAMPLING.n + 1), SAMPLING, 0.5, tau)
    lower = clopper_pearson_lower(np.arange(SAMPLING.n + 1), SAMPLING.n, SAMPLING.alpha)
    assert bound.certified.tolist() == (lower - tau > 0.5).tolist()
    assert (bound.radii[~bound.certified] == 0).all()
    assert 0 < bound.certified.sum() < (lower > 0.5).sum(), "tau costs some votes"


def test_planted_radius_rounded_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radius, "round_down", round_up)
    with pytest.raises(AssertionError, match="rounded up"):
        _assert_rounded_down(bound_from_votes(np.arange(SAMPLING.n + 1), SAMPLING, 0.5, 1e-8).radii, 0.5, 1e-8)
    monkeypatch.setattr(radius, "round_down", round_down)
    with pytest.raises(AssertionError, match="rounded up"):  # and so is a forgotten tau
        _assert_rounded_down(bound_from_votes(np.arange(SAMPLING.n + 1), SAMPLING, 0.5, 0.0).radii, 0.5, 1e-4)
