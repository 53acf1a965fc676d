"""Errors of the Taylor objectives: the constants against numeric maximisation, and where the paper's own fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from twinproof.errors import ConfigError
from twinproof_papers.published.approximation_error import (
    ErrorBound,
    cross_entropy_error,
    log_cosh_half,
    paper_cross_entropy_error,
    paper_reconstruction_error,
    reconstruction_error,
)

SIZES = (1e-3, 0.0999, 0.1, 0.5, 1.0, 2.0, 3.0, 8.0, 40.0)
Floats = NDArray[np.float64]


def _exact(z: Floats, t: float) -> Floats:
    return np.asarray(t * np.logaddexp(0, -z) + (1 - t) * np.logaddexp(0, z), dtype=np.float64)


def _cut(z: Floats, t: float, order: int) -> Floats:
    return np.asarray(math.log(2) + (0.5 - t) * z + (z * z / 8 if order == 2 else 0), dtype=np.float64)


def _bound(order: int, largest: float) -> ErrorBound:
    return reconstruction_error(1, largest) if order == 1 else cross_entropy_error(1, largest)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("largest", SIZES)
def test_the_remainder_is_as_wide_as_the_bound_says(largest: float, order: int) -> None:
    """For targets in [-1, 1], as the paper's pixels are; float64 differences of numbers near 1 err by 1e-15 or so."""
    z = np.linspace(-largest, largest, 4001)
    for target in (-1.0, -0.3, 0.0, 0.25, 1.0):
        remainder = _exact(z, target) - _cut(z, target, order)
        width = float(remainder.max() - min(remainder.min(), 0.0))
        assert width == pytest.approx(_bound(order, largest).value, rel=1e-9, abs=1e-14 * (1 + largest**2))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("largest", [0.5, 1.0, 3.0])
def test_no_minimiser_of_the_cut_objective_loses_more(largest: float, order: int) -> None:
    """Average of several records with one weight: z = weight * h, all |z| up to ``largest``."""
    draw = np.random.default_rng(5)
    worst = 0.0
    for _ in range(300):
        h, targets = draw.uniform(-1, 1, 4), draw.uniform(0, 1, 4)
        weights = np.linspace(-largest, largest, 801)
        pairs = list(zip(h, targets, strict=True))
        exact = np.mean([_exact(weights * one, target) for one, target in pairs], axis=0)
        cut = np.mean([_cut(weights * one, target, order) for one, target in pairs], axis=0)
        worst = max(worst, float(exact[cut.argmin()] - exact.min()))
    assert 0 < worst <= _bound(order, largest).value


def test_planted_constant_is_caught() -> None:
    """Half of the right one is exceeded by the remainder at the end of the interval."""
    assert log_cosh_half(1.0) > reconstruction_error(1).value / 2
    assert 1 / 8 - log_cosh_half(1.0) > cross_entropy_error(1).value / 2


def test_the_papers_numbers() -> None:
    assert paper_reconstruction_error(784) == pytest.approx(784 * 0.7864477, rel=1e-6)
    assert paper_cross_entropy_error(10) == pytest.approx(3.146624, rel=1e-6)
    assert reconstruction_error(784).paper_holds
    assert cross_entropy_error(10).paper_holds
    assert paper_reconstruction_error(1) / reconstruction_error(1).value == pytest.approx(6.547, abs=1e-3)
    assert paper_cross_entropy_error(1) / cross_entropy_error(1).value == pytest.approx(64.41, abs=1e-2)


@pytest.mark.parametrize(("order", "limit"), [(1, 2.8463), (2, 3.1444)])
def test_the_papers_numbers_fail_for_larger_arguments(order: int, limit: float) -> None:
    paper = _bound(order, 1.0).paper
    found = brentq(lambda z: _bound(order, z).value - paper, 0.1, 10)
    assert found == pytest.approx(limit, abs=1e-4)
    assert _bound(order, limit - 1e-3).paper_holds
    assert not _bound(order, limit + 1e-3).paper_holds


def test_constants_against_exact_series() -> None:
    """Near 0 by the first terms, far away by |z|/2 - log 2: no overflow, no cancellation."""
    assert log_cosh_half(1e-6) == pytest.approx(1.25e-13, rel=1e-9)
    assert log_cosh_half(2000.0) == pytest.approx(1000 - math.log(2), rel=1e-12)
    assert cross_entropy_error(1, 1e-3).value == pytest.approx(1e-12 / 192, rel=1e-6)


@pytest.mark.parametrize("largest", [0.0, -1.0, math.inf, math.nan])
def test_arguments_without_a_limit_are_refused(largest: float) -> None:
    with pytest.raises(ConfigError, match="without a limit the cut objective has no minimiser"):
        reconstruction_error(10, largest)
    with pytest.raises(ConfigError, match="classes cannot be used"):
        cross_entropy_error(0)
