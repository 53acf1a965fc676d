"""Reaches against reference numbers, a search along delta, and what they must never exceed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from twinproof_verify.bounds import BOUNDS, SEARCH_SLACK, reach_of, slack_of

Array = NDArray[np.float64]
LOW = np.array([0.6, 0.7, 0.9, 0.9, 0.99, 0.999, 0.9999])
HIGH = np.array([0.4, 0.3, 0.1, 0.05, 0.01, 0.001, 1e-4])
REFERENCE = {
    ("gaussian", "tight"): [0.253347, 0.524401, 1.281552, 1.463203, 2.326348, 3.090232, 3.719016],
    ("gaussian", "pixeldp"): [0.059224, 0.135036, 0.390267, 0.479988, 0.554867, 0.568911, 0.570313],
    ("gaussian", "hgm"): [0.061581, 0.139969, 0.390301, 0.502174, 0.741032, 0.977621, 1.164144],
}


def pairs(count: int = 400) -> tuple[Array, Array]:
    """Pairs as votes give them: some by the complement, some with nearly nothing left for the others."""
    draws = np.random.default_rng(1)
    low = np.concatenate([draws.random(count) ** 0.2, 1 - 10 ** draws.uniform(-9, -1, count)])
    high = np.minimum(1 - low, low) * 10 ** draws.uniform(-8, 0, 2 * count) + 1.5e-11
    high[::5] = 1 - low[::5]
    answers = low > high
    return low[answers], high[answers]


@pytest.mark.parametrize(("law", "bound"), REFERENCE)
def test_reference_numbers(law: str, bound: str) -> None:
    np.testing.assert_allclose(reach_of(law, bound, LOW, HIGH), REFERENCE[law, bound], atol=6e-7)


def test_reference_numbers_of_laplace_noise() -> None:
    low, high = np.array([0.9, 0.6, 0.99]), np.array([0.1, 0.4, 0.01])
    np.testing.assert_allclose(reach_of("laplace", "tight", low, high), [1.609438, 0.223144, 3.912023], atol=6e-7)
    np.testing.assert_allclose(reach_of("laplace", "pixeldp", low, high)[0], 1.098612, atol=6e-7)


def test_what_was_printed_claims_more_than_is_true() -> None:
    """At the distance that Eq. 10 claims, a halfspace has changed its answer."""
    claimed = float(reach_of("gaussian", "published", np.array([0.9999]), np.array([1e-4]))[0])
    assert claimed == pytest.approx(4.0817, abs=5e-5)
    assert norm.cdf(norm.ppf(0.9999) - claimed) < 0.5


def along_delta(bound: str, low: float, high: float) -> float:
    """The best of many deltas, with epsilon solved for each: the certifier's way."""
    delta = (low - high) / 2 * np.concatenate([np.logspace(-16, -1e-9, 20_000), np.linspace(1e-4, 1 - 1e-6, 20_000)])
    rest = low - delta
    epsilon = np.maximum(0, np.log(2 * rest / (delta + np.sqrt(delta**2 + 4 * high * rest))))
    if bound == "hgm-complement":
        epsilon = np.maximum(epsilon, np.log((1 - 2 * delta) / (1 - low + high)))
    if bound == "pixeldp":
        return float((np.minimum(epsilon, 1) / np.sqrt(2 * np.log(1.25 / delta))).max())
    s = np.log(math.sqrt(2 / math.pi) / delta)
    return float((math.sqrt(2) * np.maximum(epsilon, 0) / (np.sqrt(s) + np.sqrt(s + np.maximum(epsilon, 0)))).max())


@pytest.mark.parametrize("bound", ["pixeldp", "hgm", "hgm-complement"])
def test_the_search_along_epsilon_misses_nothing_that_a_search_along_delta_finds(bound: str) -> None:
    low, high = pairs(40)
    found = reach_of("gaussian", bound, low, high)
    other = np.array([along_delta(bound, *pair) for pair in zip(low.tolist(), high.tolist(), strict=True)])
    assert (other <= found * (1 + SEARCH_SLACK)).all()
    np.testing.assert_allclose(other, found, rtol=1e-4)


@pytest.mark.parametrize("bound", ["pixeldp", "hgm", "hgm-complement"])
def test_no_proven_bound_reaches_beyond_the_tight_one(bound: str) -> None:
    low, high = pairs()
    tight = reach_of("gaussian", "tight", low, high)
    found = reach_of("gaussian", bound, low, high)
    assert (found <= tight).all()
    assert (found > 0).all()
    assert (reach_of("gaussian", "published", low, high) > tight).any(), "and the refuted one does"


@pytest.mark.parametrize(("law", "bound"), [(law, bound) for law, bounds in BOUNDS.items() for bound in bounds])
def test_reaches_grow_with_the_evidence_and_end_at_a_tie(law: str, bound: str) -> None:
    high = np.full(200, 0.05)
    low = np.linspace(0.05, 0.949, 200)
    found = reach_of(law, bound, low, high)
    assert found[0] == 0.0
    assert (np.diff(found) >= -1e-12).all()
    assert (np.diff(reach_of(law, bound, np.full(200, 0.95), np.linspace(1e-9, 0.95, 200))) <= 1e-12).all()
    assert not reach_of(law, bound, high, low).any()
    assert slack_of(law, bound) <= SEARCH_SLACK


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (1.0, 1e-320), (0.5, -0.5), (0.5 + 1e-15, 0.5)])
def test_impossible_bounds_end_in_numbers_not_in_errors(low: float, high: float) -> None:
    """A tau that is a lie gives bounds that no draws give; the lie is reported elsewhere."""
    for law, bounds in BOUNDS.items():
        for bound in bounds:
            found: Any = reach_of(law, bound, np.array([low]), np.array([high]))
            assert found.shape == (1,)


def test_nothing_to_reach() -> None:
    assert reach_of("gaussian", "hgm", np.zeros(0), np.zeros(0)).shape == (0,)
