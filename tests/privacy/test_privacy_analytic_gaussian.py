"""The analytic Gaussian mechanism: reference table, exactness against arithmetic of 60 digits, and extreme arguments."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms import analytic_gaussian_sigma, gaussian_delta

# (epsilon, delta, classic sigma, analytic sigma, delta at the classic sigma), sensitivity 1
REFERENCE = [
    (0.1, 1e-5, 48.44805263, 30.74956613, 2.636e-9),
    (0.5, 1e-5, 9.689610525, 7.031826676, 1.608e-8),
    (1, 1e-5, 4.844805263, 3.730631635, 4.114e-8),
    (2, 1e-5, 2.422402631, 1.993812446, 1.336e-7),
    (4, 1e-5, 1.211201316, 1.081161850, 6.845e-7),
    (8, 1e-5, 0.6056006578, 0.6002290722, 7.971e-6),
    (16, 1e-5, 0.3028003289, 0.3441774285, 3.363e-4),
    (0.1, 1e-3, 37.76479533, 17.40439620, 5.236e-7),
    (0.5, 1e-3, 7.552959065, 4.610127951, 3.191e-6),
    (1, 1e-3, 3.776479533, 2.574657019, 8.147e-6),
    (2, 1e-3, 1.888239766, 1.445239161, 2.623e-5),
    (4, 1e-3, 0.9441198832, 0.8230776852, 1.297e-4),
    (8, 1e-3, 0.4720599416, 0.4800137525, 1.313e-3),
    (16, 1e-3, 0.2360299708, 0.2886058155, 3.199e-2),
]
epsilons = st.floats(min_value=1e-4, max_value=1e4)
deltas = st.floats(min_value=-14, max_value=-0.01).map(lambda exponent: 10.0**exponent)
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


@pytest.mark.parametrize(("epsilon", "delta", "classic", "analytic", "at_classic"), REFERENCE)
def test_reference_table(epsilon: float, delta: float, classic: float, analytic: float, at_classic: float) -> None:
    assert analytic_gaussian_sigma(epsilon, delta) == pytest.approx(analytic, rel=5.1e-10)
    assert math.sqrt(2 * math.log(1.25 / delta)) / epsilon == pytest.approx(classic, rel=1e-9)
    assert gaussian_delta(epsilon, classic) == pytest.approx(at_classic, rel=5e-4)


def exact_delta(epsilon: float, sigma: float) -> float:
    """The profile as printed, in arithmetic that neither overflows nor cancels."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60 + int(epsilon / 2)):
        e, s = mp.mpf(epsilon), mp.mpf(sigma)
        return float(mp.ncdf(1 / (2 * s) - e * s) - mp.exp(e) * mp.ncdf(-1 / (2 * s) - e * s))


@PROPERTY
@given(epsilon=st.floats(min_value=1e-4, max_value=700), delta=deltas)
def test_the_result_is_private_and_nothing_smaller_is(epsilon: float, delta: float) -> None:
    sigma = analytic_gaussian_sigma(epsilon, delta)
    assert gaussian_delta(epsilon, sigma) <= delta
    assert exact_delta(epsilon, sigma) <= delta * (1 + 1e-8)
    assert gaussian_delta(epsilon, sigma * (1 - 1e-6)) > delta
    assert exact_delta(epsilon, sigma * (1 - 1e-6)) > delta


@PROPERTY
@given(epsilon=epsilons, delta=deltas, factor=st.floats(min_value=1.01, max_value=5))
def test_more_privacy_needs_more_noise(epsilon: float, delta: float, factor: float) -> None:
    sigma = analytic_gaussian_sigma(epsilon, delta)
    assert analytic_gaussian_sigma(epsilon * factor, delta) < sigma
    assert analytic_gaussian_sigma(epsilon, delta / factor) > sigma
    assert analytic_gaussian_sigma(epsilon, delta, factor) == pytest.approx(factor * sigma, rel=1e-9)


@PROPERTY
@given(epsilon=epsilons, sigma=st.floats(min_value=1e-3, max_value=1e3))
def test_the_profile_is_a_probability(epsilon: float, sigma: float) -> None:
    delta = gaussian_delta(epsilon, sigma)
    assert 0 <= delta <= 1
    assert gaussian_delta(epsilon, sigma * 1.5) <= delta + 1e-15
    assert gaussian_delta(epsilon, 2 * sigma, 2.0) == pytest.approx(delta, rel=1e-9, abs=1e-300)


def test_planted_classic_formula_is_refuted() -> None:
    """Beyond its range the classic formula is not private, and the profile says so."""
    assert all(
        (gaussian_delta(epsilon, classic) > delta) == (classic < analytic) for epsilon, delta, classic, analytic, _ in REFERENCE
    )
    assert sum(classic < analytic for _, _, classic, analytic, _ in REFERENCE) == 3


@pytest.mark.parametrize("epsilon", [30.0, 710.0, 1000.0, 1e6, 1e15, 1e20, 1e300])
def test_large_epsilon_does_not_overflow(epsilon: float) -> None:
    sigma = analytic_gaussian_sigma(epsilon, 1e-5)
    assert 0 < sigma < 1
    assert sigma >= 0.999 / math.sqrt(2 * epsilon)  # from shift <= half + z, at any delta below one half
    assert gaussian_delta(epsilon, sigma) <= 1e-5


def test_value_at_epsilon_1000() -> None:
    sigma = analytic_gaussian_sigma(1000.0, 1e-5)
    assert exact_delta(1000.0, sigma) == pytest.approx(1e-5, rel=1e-8)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1e-5, 1.0), "epsilon"),
        ((-1.0, 1e-5, 1.0), "epsilon"),
        ((math.nan, 1e-5, 1.0), "epsilon"),
        ((math.inf, 1e-5, 1.0), "epsilon"),
        ((1.0, 0.0, 1.0), "delta"),
        ((1.0, 1.0, 1.0), "delta"),
        ((1.0, math.nan, 1.0), "delta"),
        ((1.0, 1e-5, 0.0), "sensitivity"),
        ((1.0, 1e-5, math.inf), "sensitivity"),
    ],
)
def test_arguments_without_meaning_are_refused(arguments: tuple[float, float, float], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} cannot be used"):
        analytic_gaussian_sigma(*arguments)
