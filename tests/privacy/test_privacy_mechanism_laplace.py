"""Laplace noise: pure epsilon, and the exact profile against integrals, dp-accounting and several outputs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import hockey_stick, laplace_log_density

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms import Laplace, calibrate, laplace_delta, laplace_scale

epsilons = st.floats(min_value=1e-6, max_value=1e6)
sensitivities = st.floats(min_value=1e-3, max_value=1e3)
PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


@PROPERTY
@given(epsilon=epsilons, sensitivity=sensitivities)
def test_pure_privacy_is_exact_to_the_last_float(epsilon: float, sensitivity: float) -> None:
    """In rational numbers: the scale is not below sensitivity / epsilon, and the float below it is."""
    mechanism = Laplace(laplace_scale(epsilon, 0.0, sensitivity), sensitivity)
    assert Fraction(mechanism.scale) * Fraction(epsilon) >= Fraction(sensitivity)
    assert Fraction(math.nextafter(mechanism.scale, 0)) * Fraction(epsilon) < Fraction(sensitivity)
    assert mechanism.delta_at(epsilon) == 0
    assert mechanism.epsilon_at(0.0) <= epsilon
    assert mechanism.delta_at(mechanism.epsilon_at(0.0)) == 0
    assert Laplace(math.nextafter(mechanism.scale, 0), sensitivity).delta_at(epsilon) > 0


@PROPERTY
@given(epsilon=epsilons, delta=st.floats(min_value=1e-12, max_value=0.999), sensitivity=sensitivities)
def test_a_delta_saves_noise_as_the_formula_says(epsilon: float, delta: float, sensitivity: float) -> None:
    mechanism = calibrate("laplace", epsilon, delta, sensitivity)
    assert isinstance(mechanism, Laplace)
    assert mechanism.delta_at(epsilon) <= delta
    assert mechanism.scale == pytest.approx(sensitivity / (epsilon - 2 * math.log1p(-delta)), rel=1e-9)
    assert mechanism.scale <= laplace_scale(epsilon, 0.0, sensitivity)
    assert mechanism.epsilon_at(delta) <= epsilon * (1 + 1e-9)
    assert mechanism.sigma == pytest.approx(math.sqrt(2) * mechanism.scale)


def test_a_scale_one_percent_too_small_is_caught() -> None:
    for delta in (0.0, 1e-5, 0.1):
        assert laplace_delta(0.5, 0.99 * laplace_scale(0.5, delta), 1.0) > delta


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("scale", [0.4, 0.5])
def test_one_moved_output_is_the_profile_and_two_are_no_worse(epsilon: float, scale: float) -> None:
    exact = laplace_delta(epsilon, scale, 1.0)
    assert hockey_stick(laplace_log_density, (scale, scale), (1.0, 0.0), epsilon) == pytest.approx(exact, rel=1e-2)
    for split in (0.1, 0.5, 0.7):
        assert hockey_stick(laplace_log_density, (scale, scale), (split, -(1 - split)), epsilon) < exact * (1 + 1e-3)


def test_l2_sensitivity_in_place_of_l1_is_caught() -> None:
    """The planted bug lets two outputs move by 1.41 together; pure privacy is then gone."""
    scale, diagonal = laplace_scale(2.0), math.sqrt(0.5)
    assert laplace_delta(2.0, scale) == 0
    assert hockey_stick(laplace_log_density, (scale, scale), (0.5, 0.5), 2.0) < 1e-12
    assert hockey_stick(laplace_log_density, (scale, scale), (diagonal, diagonal), 2.0) > 0.05


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_dp_accounting_agrees(scale: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    loss = privacy_loss_distribution.from_laplace_mechanism(scale, value_discretization_interval=1e-4)
    for epsilon in (0.0, 0.1, 0.5, 1.5):
        assert laplace_delta(epsilon, scale) == pytest.approx(loss.get_delta_for_epsilon(epsilon), abs=1e-4)
    assert Laplace(scale).epsilon_at(0.01) == pytest.approx(loss.get_epsilon_for_delta(0.01), abs=2e-4)


def test_the_profile_is_never_below_the_truth() -> None:
    mp = pytest.importorskip("mpmath")
    with mp.workdps(40):
        for step in range(1, 400):
            epsilon, scale = step / 97, 1 / 4.2
            exact = max(mp.mpf(0), 1 - mp.exp((mp.mpf(epsilon) - 1 / mp.mpf(scale)) / 2))
            assert exact <= mp.mpf(laplace_delta(epsilon, scale)) <= exact * (1 + mp.mpf(10) ** -12)
    assert laplace_delta(1.0, 1e-300, 1e300) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.0, 1.0), "epsilon cannot be used"),
        ((math.nan, 0.0, 1.0), "epsilon cannot be used"),
        ((1.0, -0.1, 1.0), "delta cannot be used"),
        ((1.0, 1.0, 1.0), "delta cannot be used"),
        ((1.0, 0.0, 0.0), "sensitivity cannot be used"),
        ((1e-200, 0.0, 1e200), "outside the range of floats"),
    ],
)
def test_targets_without_meaning_are_refused(arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate("laplace", *arguments)
    with pytest.raises(ConfigError, match="scale cannot be used"):
        Laplace(0.0)
