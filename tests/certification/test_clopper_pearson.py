"""The confidence bound: exact coverage by enumeration, so that no seed and no luck is involved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom, norm

from twinproof.certification.confidence import clopper_pearson_lower

Bound = Callable[[ArrayLike, int, float], NDArray[np.float64]]
DRAWS = (1, 2, 7, 10, 50, 333, 1000)
ALPHAS = (1e-6, 0.001, 0.05, 0.5)


def _worst_failure(bound: Bound, draws: int, alpha: float) -> float:
    """The largest P(bound > p) over p, as a multiple of alpha. It is reached just below a value the bound can take."""
    votes = np.arange(draws + 1)
    bounds = bound(votes, draws, alpha)
    grid = np.unique(np.concatenate((np.linspace(0, 1, 201), np.nextafter(bounds, 0), bounds)))
    grid = grid[(grid >= 0) & (grid <= 1)]
    # The bound grows with the votes, so that "bound > p" means "at least so many votes".
    assert (np.diff(bounds) >= 0).all()
    first = np.searchsorted(bounds, grid, side="right")
    failure = np.asarray(binom.sf(first - 1, draws, grid), dtype=np.float64)
    return float(failure[first <= draws].max(initial=0.0)) / alpha


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("draws", DRAWS)
def test_coverage_is_never_below_one_minus_alpha(draws: int, alpha: float) -> None:
    worst = _worst_failure(clopper_pearson_lower, draws, alpha)
    assert worst <= 1 + 1e-9
    assert worst > 1 - 1e-6, "the bound is looser than the exact one"


def _share(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    return np.asarray(votes, dtype=np.float64) / draws


def _normal(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    share = np.asarray(votes, dtype=np.float64) / draws
    return np.maximum(share + norm.ppf(alpha) * np.sqrt(share * (1 - share) / draws), 0.0)


def _one_vote_too_many(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    return np.asarray(beta.ppf(alpha, np.asarray(votes) + 1, draws - np.asarray(votes) + 1), dtype=np.float64)


def _alpha_five_percent_up(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    return clopper_pearson_lower(votes, draws, alpha * 1.05)


@pytest.mark.parametrize("planted", [_share, _one_vote_too_many, _alpha_five_percent_up])
@pytest.mark.parametrize("draws", [10, 333])
def test_planted_bounds_are_caught(planted: Bound, draws: int) -> None:
    assert _worst_failure(planted, draws, 0.001) > 1 + 1e-9


def test_planted_normal_approximation_is_caught() -> None:
    bounds = _normal(np.arange(51), 50, 0.001)
    assert binom.pmf(50, 50, 0.999) > 0.001
    assert bounds[50] > 0.999, "unanimous votes make the approximation certain, which no sample can be"
    assert clopper_pearson_lower([50], 50, 0.001)[0] < 0.999


def test_reference_value() -> None:
    assert clopper_pearson_lower([900], 1000, 0.001)[0] == pytest.approx(0.867464, abs=5e-7)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("draws", [*DRAWS, 100_000])
def test_equals_the_beta_quantile(draws: int, alpha: float) -> None:
    votes = np.unique(np.linspace(1, draws, 50).astype(int))
    np.testing.assert_allclose(
        clopper_pearson_lower(votes, draws, alpha), beta.ppf(alpha, votes, draws - votes + 1), rtol=1e-9, atol=0
    )


def test_no_votes_and_all_votes() -> None:
    assert clopper_pearson_lower([0], 100, 0.001)[0] == 0.0
    assert clopper_pearson_lower([100], 100, 0.001)[0] == pytest.approx(0.001 ** (1 / 100), rel=1e-12)
    assert clopper_pearson_lower([0, 0, 5], 5, 0.05).tolist()[:2] == [0.0, 0.0]
