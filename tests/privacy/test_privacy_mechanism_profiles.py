"""Gaussian and Laplace noise: exact profiles, calibrations on reference numbers and random targets, and planted bugs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import exact_gaussian_delta, hockey_stick, laplace_log_density, normal_log_density
from scipy.special import erfcx, ndtr

from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms import (
    NAMES,
    GaussianNoise,
    Laplace,
    Mechanism,
    analytic_gaussian_sigma,
    calibrate,
    classic_gaussian_sigma,
    extended_gaussian_sigma,
    gaussian_delta,
    laplace_delta,
    laplace_scale,
    least_float,
)

Formula = Callable[..., float]
CALIBRATIONS: dict[str, Formula] = {
    "classic": classic_gaussian_sigma,
    "extended": extended_gaussian_sigma,
    "analytic": analytic_gaussian_sigma,
}
epsilons = st.floats(min_value=1e-3, max_value=1e3)
deltas = st.floats(min_value=-12, max_value=-0.01).map(lambda exponent: 10.0**exponent)
PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)


# epsilon, delta, extended sigma, analytic sigma, exact delta at the extended sigma; sensitivity 1
REFERENCE = [
    (0.1, 1e-5, 47.61738965, 30.74956613, 4.123e-9),
    (1, 1e-5, 4.854241307, 3.730631635, 3.908e-8),
    (4, 1e-5, 1.285079869, 1.081161850, 1.337e-7),
    (16, 1e-5, 0.3793337030, 0.3441774285, 3.458e-7),
    (0.5, 1e-3, 7.445647933, 4.610127951, 4.056e-6),
    (8, 1e-3, 0.5671574971, 0.4800137525, 3.885e-5),
]
CLASSIC = [
    (0.5, 1e-5, 9.689610525, 1.608e-8),
    (1, 1e-3, 3.776479533, 8.147e-6),
    (8, 1e-5, 0.6056006578, 7.971e-6),
    (16, 1e-5, 0.3028003289, 3.363e-4),
    (8, 1e-3, 0.4720599416, 1.313e-3),
]


@pytest.mark.parametrize(("epsilon", "delta", "extended", "analytic", "at_extended"), REFERENCE)
def test_reference_numbers(epsilon: float, delta: float, extended: float, analytic: float, at_extended: float) -> None:
    mechanism = calibrate("extended", epsilon, delta)
    assert mechanism.sigma == pytest.approx(extended, rel=1e-9)
    assert mechanism.delta_at(epsilon) == pytest.approx(at_extended, rel=5e-4)
    assert calibrate("analytic", epsilon, delta).sigma == pytest.approx(analytic, rel=5.1e-10)


@pytest.mark.parametrize(("epsilon", "delta", "sigma", "exact"), CLASSIC)
def test_classic_reference_numbers(epsilon: float, delta: float, sigma: float, exact: float) -> None:
    """Beyond its range, the last two, the formula is not private, and the profile says so."""
    assert gaussian_delta(epsilon, sigma) == pytest.approx(exact, rel=5e-4)
    assert (exact > delta) == ((epsilon, delta, sigma, exact) in CLASSIC[-2:])
    if epsilon <= 1:
        assert calibrate("classic", epsilon, delta).sigma == pytest.approx(sigma, rel=1e-9)
        return
    with pytest.raises(ConfigError, match="proven for epsilon up to 1 only") as caught:
        calibrate("classic", epsilon, delta)
    assert "analytic" in caught.value.fix


def targets(count: int) -> list[tuple[float, float, float]]:
    draw = random.Random(11)
    return [
        (
            10 ** draw.uniform(-2, 2),
            10 ** draw.choice([draw.uniform(-12, -1), draw.uniform(-0.5, -0.001)]),
            10 ** draw.uniform(-3, 3),
        )
        for _ in range(count)
    ]


def broken_promises(formula: Formula, count: int = 2000) -> int:
    """On how many of the targets that the formula accepts it is not private, by exact arithmetic."""
    broken = 0
    for epsilon, delta, sensitivity in targets(count):
        if formula is classic_gaussian_sigma and epsilon > 1:
            continue
        broken += exact_gaussian_delta(epsilon, formula(epsilon, delta, sensitivity), sensitivity) > delta
    return broken


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_every_calibration_keeps_its_promise_on_2000_random_targets(name: str) -> None:
    assert broken_promises(CALIBRATIONS[name]) == 0


def test_planted_bugs_are_caught() -> None:
    """Each of them lies close to a sound formula, and the same check that passes those sees it."""

    def sensitivity_forgotten(epsilon: float, delta: float, sensitivity: float) -> float:
        return analytic_gaussian_sigma(epsilon, delta)

    def one_percent_less(epsilon: float, delta: float, sensitivity: float) -> float:
        return 0.99 * analytic_gaussian_sigma(epsilon, delta, sensitivity)

    def root_forgotten(epsilon: float, delta: float, sensitivity: float) -> float:
        return sensitivity * 2 * math.log(1.25 / delta) / epsilon  # less than its root where delta is large

    def classic_at_any_epsilon(epsilon: float, delta: float, sensitivity: float) -> float:
        return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon

    for bug in (sensitivity_forgotten, one_percent_less, root_forgotten, classic_at_any_epsilon):
        assert broken_promises(bug, 300) > 0, bug.__name__
    assert broken_promises(lambda *target: 0.999 * analytic_gaussian_sigma(*target), 300) == 300


@pytest.mark.parametrize("delta", [0.48, 0.7978, 0.798, 0.999])
def test_large_delta_has_a_value_and_keeps_it(delta: float) -> None:
    """Condition 1 takes over where the theorem's logarithm is negative; below, the formula alone is enough."""
    for epsilon in (1e-3, 1.0, 1e3):
        sigma = extended_gaussian_sigma(epsilon, delta)
        assert exact_gaussian_delta(epsilon, sigma) <= 0.627 * delta  # sqrt(pi / 8), from the proof
        condition_1 = (1 + math.sqrt(1 + 2 * epsilon)) / (2 * epsilon)
        assert (sigma == pytest.approx(condition_1, rel=1e-12)) == (delta > math.sqrt(2 / math.pi))


@PROPERTY
@given(epsilon=epsilons, delta=deltas, sensitivity=st.floats(min_value=1e-3, max_value=1e3))
def test_the_analytic_sigma_is_the_least_and_its_epsilon_is_the_target(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    analytic, extended = (calibrate(name, epsilon, delta, sensitivity) for name in ("analytic", "extended"))
    assert analytic.sigma <= extended.sigma
    assert epsilon >= 1 or analytic.sigma <= calibrate("classic", epsilon, delta, sensitivity).sigma
    assert gaussian_delta(epsilon, analytic.sigma * (1 - 1e-6), sensitivity) > delta
    assert extended.delta_at(epsilon) <= analytic.delta_at(epsilon) <= delta
    assert extended.epsilon_at(delta) <= epsilon
    assert analytic.epsilon_at(delta) <= epsilon * (1 + 1e-9)
    assert analytic.epsilon_at(delta) == pytest.approx(epsilon, rel=1e-4)
    assert analytic.delta_at(2 * epsilon) < analytic.delta_at(epsilon)


@pytest.mark.parametrize("epsilon", [30.0, 710.0, 1000.0, 1e6, 1e15, 1e20, 1e300])
def test_large_epsilon_does_not_overflow(epsilon: float) -> None:
    sigma = analytic_gaussian_sigma(epsilon, 1e-5)
    assert 0.999 / math.sqrt(2 * epsilon) <= sigma < 1  # from shift <= half + z, at any delta below one half
    assert gaussian_delta(epsilon, sigma) <= 1e-5
    if epsilon == 1000:
        assert exact_gaussian_delta(1000.0, sigma) == pytest.approx(1e-5, rel=1e-8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(({"epsilon": value}, "epsilon cannot be used") for value in (0.0, -1.0, math.nan, math.inf)),
        *(({"delta": value}, "delta cannot be used") for value in (-0.1, 1.0, math.nan)),
        *(({"sensitivity": value}, "sensitivity cannot be used") for value in (0.0, math.inf)),
        ({"epsilon": 1e-200, "sensitivity": 1e305}, "outside the range of floats"),
    ],
)
def test_targets_without_meaning_are_refused(wrong: dict[str, Any], message: str) -> None:
    target: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-5, **wrong}
    for name in NAMES:
        with pytest.raises(ConfigError, match=message):
            calibrate(name, **target)


def test_noise_without_meaning_is_refused() -> None:
    for name in NAMES[:-1]:
        with pytest.raises(ConfigError, match="delta cannot be used"):
            calibrate(name, 0.5, 0.0)
    for make in (lambda: GaussianNoise(0.0), lambda: GaussianNoise(math.inf), lambda: Laplace(0.0)):
        with pytest.raises(ConfigError, match="cannot be used"):
            make()
    noise: Mechanism
    for noise in (GaussianNoise(1.0), Laplace(1.0)):
        for epsilon in (-0.1, math.nan, math.inf):
            with pytest.raises(ConfigError, match="epsilon cannot be used"):
                noise.delta_at(epsilon)
    with pytest.raises(ConfigError, match="delta cannot be used"):
        GaussianNoise(1.0).epsilon_at(0.0)


def test_the_catalogue_knows_its_names() -> None:
    mechanisms: list[Mechanism] = [calibrate(name, 0.5, 1e-5, 3.0) for name in NAMES]  # mypy: each keeps the interface
    assert len({mechanism.theorem for mechanism in mechanisms}) == len(NAMES)
    for mechanism in mechanisms:
        assert mechanism.delta_at(0.5) <= 1e-5
        assert mechanism.sensitivity == 3.0
        assert mechanism.delta_at(mechanism.epsilon_at(1e-7)) <= 1e-7
    with pytest.raises(ConfigError, match="mechanism cannot be used"):
        calibrate("magic", 0.5, 1e-5)


def random_points(count: int) -> list[tuple[float, float]]:
    draw = random.Random(5)
    points = [(10 ** draw.uniform(-4, 3), 10 ** draw.uniform(-2.5, 4.5)) for _ in range(count)]
    return [(epsilon, sigma) for epsilon, sigma in points if exact_gaussian_delta(epsilon, sigma) >= 1e-14]


def test_the_profile_is_never_below_the_truth_and_close_above() -> None:
    points = random_points(2000)
    assert len(points) > 700
    for epsilon, sigma in points:
        truth = exact_gaussian_delta(epsilon, sigma)
        assert truth <= gaussian_delta(epsilon, sigma) <= truth * (1 + 1e-7)
    # Planted: the formula in plain floats.
    naive = [float(ndtr(1 / (2 * s) - e * s) - math.exp(min(700.0, e)) * ndtr(-1 / (2 * s) - e * s)) for e, s in points]
    assert any(found < exact_gaussian_delta(*point) for found, point in zip(naive, points, strict=True))


def test_functions_err_less_than_is_allowed_for() -> None:
    """A tenth of the allowance of the profile, over the range it asks for."""
    mp = pytest.importorskip("mpmath")
    draw = random.Random(6)
    with mp.workdps(50):
        for _ in range(3000):
            x, y, z = mp.mpf(10 ** draw.uniform(-8, 2)), mp.mpf(draw.uniform(0, 40)), mp.mpf(-draw.uniform(0, 700))
            assert abs(float(erfcx(float(x)) / (mp.exp(x * x) * mp.erfc(x)) - 1)) < 1e-15
            assert abs(float(ndtr(float(y)) / mp.ncdf(y) - 1)) < 1e-15
            assert abs(float(math.exp(float(z)) / mp.exp(z) - 1)) < 1e-15


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.0, 1.0), (0.5, 1.0), (1.0, 2.0), (3.0, 0.5), (1.0, 0.3)])
def test_the_profile_is_the_hockey_stick_of_the_densities(epsilon: float, sigma: float) -> None:
    """In two dimensions, the change along no axis: only its l2 length matters."""
    integral = hockey_stick(normal_log_density, (sigma, sigma), (0.6, 0.8), epsilon)
    assert gaussian_delta(epsilon, sigma) == pytest.approx(integral, rel=2e-4)
    assert gaussian_delta(epsilon, 1.01 * sigma) != pytest.approx(integral, rel=2e-4)


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.9, 0.999999])
def test_epsilon_and_delta_are_each_others_inverse(delta: float) -> None:
    for sigma in (0.01, 3.0, 1e4):
        noise = GaussianNoise(2 * sigma, 2.0)
        epsilon = noise.epsilon_at(delta)
        assert noise.delta_at(epsilon) <= delta
        assert epsilon == 0 or noise.delta_at(epsilon * (1 - 1e-6)) > delta


def test_extremes_end_on_the_safe_side() -> None:
    """Gaussian noise never has delta 0."""
    for extreme in ((1e300, 1e300, 1.0), (1e308, 1e-154, 1.0), (1e-300, 1e-10, 1e10), (1e3, 1e3, 1.0)):
        assert 0 < gaussian_delta(*extreme) <= 1
    assert gaussian_delta(1.0, 1e-320, 1e300) == 1


def test_the_search_ends_at_the_last_float() -> None:
    for bound in (math.pi, 1e-200, 1e200, 1.0):
        assert least_float(lambda value, bound=bound: value >= bound, 1.0, "x") == bound  # type: ignore[misc]
    with pytest.raises(ConfigError, match="no finite value keeps this promise"):
        least_float(lambda _: False, 1.0, "x")
    assert 0 < least_float(lambda _: True, 1.0, "x") < 1e-300


laplace_epsilons = st.floats(min_value=1e-6, max_value=1e6)
sensitivities = st.floats(min_value=1e-3, max_value=1e3)


@PROPERTY
@given(epsilon=laplace_epsilons, sensitivity=sensitivities)
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
@given(epsilon=laplace_epsilons, delta=st.floats(min_value=1e-12, max_value=0.999), sensitivity=sensitivities)
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


def test_the_laplace_profile_is_never_below_the_truth() -> None:
    mp = pytest.importorskip("mpmath")
    with mp.workdps(40):
        for step in range(1, 400):
            epsilon, scale = step / 97, 1 / 4.2
            exact = max(mp.mpf(0), 1 - mp.exp((mp.mpf(epsilon) - 1 / mp.mpf(scale)) / 2))
            assert exact <= mp.mpf(laplace_delta(epsilon, scale)) <= exact * (1 + mp.mpf(10) ** -12)
    assert laplace_delta(1.0, 1e-300, 1e300) == 1
