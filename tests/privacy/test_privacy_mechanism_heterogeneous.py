"""Redistributed noise: the promise is checked on the heterogeneous densities themselves, never on sigma alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import Array, exact_gaussian_delta, hockey_stick, normal_log_density

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms import (
    AnalyticGaussian,
    ExtendedGaussian,
    HeterogeneousAnalytic,
    HeterogeneousGaussian,
    HeterogeneousNoise,
    calibrate,
)
from twinproof.privacy.redistribution import Redistribution

MECHANISMS: dict[str, type[HeterogeneousGaussian] | type[HeterogeneousAnalytic]] = {
    "theorem 3": HeterogeneousGaussian,
    "analytic": HeterogeneousAnalytic,
}
Deviations = Callable[[HeterogeneousNoise], Array]


def sound(mechanism: HeterogeneousNoise) -> Array:
    return mechanism.deviations()


def one_percent_less(mechanism: HeterogeneousNoise) -> Array:
    return 0.99 * mechanism.deviations()


def root_forgotten(mechanism: HeterogeneousNoise) -> Array:
    r = np.asarray(mechanism.redistribution.shares)
    return mechanism.sigma * r.size * r


def not_normalised(mechanism: HeterogeneousNoise) -> Array:
    return mechanism.sigma * np.sqrt(mechanism.redistribution.shares)  # the shares' K forgotten


def reversed_shares(mechanism: HeterogeneousNoise) -> Array:
    return mechanism.deviations()[::-1]


def changes(redistribution: Redistribution, length: float, generator: np.random.Generator) -> list[Array]:
    """Changes of the outputs of that whitened length: along each of the extreme outputs, and in random directions."""
    scales, K = redistribution.scales(), redistribution.dimension
    directions = [np.eye(K)[np.argmin(scales)], np.eye(K)[np.argmax(scales)], *generator.normal(size=(2, K))]
    return [length * direction / np.linalg.norm(direction) * scales for direction in directions]


def broken_promises(kind: str, deviations: Deviations, count: int) -> int:
    """How many of random (epsilon, delta, r, sensitivity) some change breaks, for the noise that is really added.

    A change v under independent noise of deviations d is a shift of length ||v / d|| under unit noise, whose profile is known.
    """
    generator, broken = np.random.default_rng(3), 0
    for _ in range(count):
        r = Redistribution.from_weights(generator.lognormal(0, 1.5, size=generator.integers(2, 40)))
        epsilon, delta, sensitivity = (
            10 ** generator.uniform(-2, 2),
            10 ** generator.uniform(-12, -0.01),
            10 ** generator.uniform(-2, 2),
        )
        mechanism = MECHANISMS[kind].for_target(epsilon, delta, sensitivity, redistribution=r)
        added = deviations(mechanism)
        lengths = [float(np.linalg.norm(change / added)) for change in changes(r, sensitivity, generator)]
        # The changes have their length up to rounding, which the profile must not be blamed for.
        broken += exact_gaussian_delta(epsilon, 1 / (max(lengths) * (1 - 1e-14))) > delta
    return broken


@pytest.mark.parametrize("kind", MECHANISMS)
def test_every_calibration_keeps_its_promise_on_random_targets(kind: str) -> None:
    assert broken_promises(kind, sound, 2000) == 0


@pytest.mark.parametrize("bug", [one_percent_less, root_forgotten, not_normalised, reversed_shares])
def test_planted_bugs_are_caught(bug: Deviations) -> None:
    assert broken_promises("analytic", bug, 100) >= 95


def test_the_analytic_one_fails_when_it_shrinks_by_a_thousandth() -> None:
    assert broken_promises("analytic", lambda mechanism: 0.999 * mechanism.deviations(), 200) == 200


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.8), (0.03, 0.97)])
@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.0, 1.0), (0.6, -0.8)])
def test_the_integral_of_the_densities_is_the_profile(shares: tuple[float, float], direction: tuple[float, float]) -> None:
    """No whitening in the oracle: p and q are the laws of the outputs as they leave."""
    epsilon, delta, sensitivity = 1.0, 0.01, 2.0
    mechanism = HeterogeneousAnalytic.for_target(epsilon, delta, sensitivity, redistribution=Redistribution(shares))
    scales = mechanism.redistribution.scales()
    change = (sensitivity * direction[0] * scales[0], sensitivity * direction[1] * scales[1])
    assert mechanism.redistribution.whitened_norm(change) == pytest.approx(sensitivity, rel=1e-12)

    def integral(deviations: Array) -> float:
        return hockey_stick(normal_log_density, (float(deviations[0]), float(deviations[1])), change, epsilon)

    assert integral(mechanism.deviations()) == pytest.approx(delta, rel=1e-3)
    assert integral(0.99 * mechanism.deviations()) > delta * 1.01
    if shares[0] != shares[1] and direction[1] == 0:
        assert integral(root_forgotten(mechanism)) > delta * 1.5


def test_sampled_privacy_losses_agree() -> None:
    """The divergence in 30 dimensions from 400,000 draws: within six errors of delta, and beyond with 3 % less noise."""
    generator = np.random.default_rng(8)
    r = Redistribution.from_weights(generator.uniform(0.1, 3.0, size=30))
    mechanism = HeterogeneousAnalytic.for_target(1.0, 0.05, 1.0, redistribution=r)
    deviations, change = mechanism.deviations(), changes(r, 1.0, generator)[2]

    def estimate(deviations: Array) -> tuple[float, float]:
        noise = generator.normal(size=(400_000, 30)) @ (change / deviations**2 * deviations)
        square = float(((change / deviations) ** 2).sum())
        # Under p the loss is noise + square / 2, and the divergence is the mean of max(0, 1 - e^(epsilon - loss)).
        terms = np.maximum(0.0, 1 - np.exp(1.0 - noise - square / 2))
        return float(terms.mean()), float(terms.std() / math.sqrt(len(terms)))

    mean, error = estimate(deviations)
    assert abs(mean - 0.05) < 6 * error
    mean, error = estimate(0.97 * deviations)
    assert mean - 0.05 > 6 * error


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    epsilon=st.floats(min_value=1e-2, max_value=100),
    exponent=st.floats(min_value=-12, max_value=-0.01),
    dimension=st.integers(min_value=1, max_value=300),
)
def test_equal_shares_are_the_plain_mechanism(epsilon: float, exponent: float, dimension: int) -> None:
    delta, r = 10.0**exponent, Redistribution.uniform(dimension)
    for heterogeneous, plain in ((HeterogeneousGaussian, ExtendedGaussian), (HeterogeneousAnalytic, AnalyticGaussian)):
        found, wanted = heterogeneous.for_target(epsilon, delta, 3.0, redistribution=r), plain.for_target(epsilon, delta, 3.0)
        assert found.sigma == wanted.sigma
        assert found.deviations() == pytest.approx(np.full(dimension, wanted.sigma), rel=1e-12)
        assert (found.delta_at(epsilon), found.epsilon_at(delta)) == (wanted.delta_at(epsilon), wanted.epsilon_at(delta))


def test_redistribution_keeps_the_total_and_the_analytic_one_needs_less() -> None:
    r = Redistribution.from_weights([1.0, 5.0, 0.2, 3.0])
    paper = HeterogeneousGaussian.for_target(2.0, 1e-5, redistribution=r)
    ours = HeterogeneousAnalytic.for_target(2.0, 1e-5, redistribution=r)
    assert float((paper.deviations() ** 2).sum()) == pytest.approx(4 * paper.sigma**2)
    assert ours.sigma / paper.sigma == pytest.approx(1.993812446 / 2.476565548, rel=1e-8)
    assert (ours.deviations() < paper.deviations()).all()


def test_deviations_are_not_below_the_real_numbers() -> None:
    mp = pytest.importorskip("mpmath")
    r = Redistribution.from_weights(np.random.default_rng(1).uniform(0.01, 1, size=200))
    mechanism = HeterogeneousGaussian.for_target(0.7, 1e-6, redistribution=r)
    with mp.workdps(40):
        exact = [mp.mpf(mechanism.sigma) * mp.sqrt(200 * mp.mpf(share)) for share in r.shares]
        assert all(mp.mpf(found) >= wanted for found, wanted in zip(mechanism.deviations().tolist(), exact, strict=True))


def test_plain_mechanisms_take_no_redistribution() -> None:
    with pytest.raises(ConfigError, match="has no redistribution vector"):
        calibrate("analytic", 1.0, 1e-5, 1.0, Redistribution.uniform(2))
