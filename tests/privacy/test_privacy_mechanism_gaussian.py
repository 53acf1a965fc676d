"""The calibrated Gaussian mechanisms: reference numbers, random targets against exact arithmetic, and planted bugs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import exact_gaussian_delta

from twinproof.errors import ConfigError
from twinproof.privacy.mechanism import Mechanism
from twinproof.privacy.mechanisms import (
    NAMES,
    AnalyticGaussian,
    ClassicGaussian,
    ExtendedGaussian,
    analytic_gaussian_sigma,
    calibrate,
    classic_gaussian_sigma,
    extended_gaussian_sigma,
)

Formula = Callable[..., float]
CALIBRATIONS: dict[str, Formula] = {
    "classic": classic_gaussian_sigma,
    "extended": extended_gaussian_sigma,
    "analytic": analytic_gaussian_sigma,
}
# epsilon, delta, extended sigma, analytic sigma, exact delta at the extended sigma; sensitivity 1
REFERENCE = [
    (0.1, 1e-5, 47.61738965, 30.74956613, 4.123e-9),
    (0.5, 1e-5, 9.606572596, 7.031826676, 2.012e-8),
    (1, 1e-5, 4.854241307, 3.730631635, 3.908e-8),
    (2, 1e-5, 2.476565548, 1.993812446, 7.394e-8),
    (4, 1e-5, 1.285079869, 1.081161850, 1.337e-7),
    (8, 1e-5, 0.6851285777, 0.6002290722, 2.253e-7),
    (16, 1e-5, 0.3793337030, 0.3441774285, 3.458e-7),
    (0.1, 1e-3, 36.69297231, 17.40439620, 8.434e-7),
    (0.5, 1e-3, 7.445647933, 4.610127951, 4.056e-6),
    (1, 1e-3, 3.787677653, 2.574657019, 7.747e-6),
    (2, 1e-3, 1.955668826, 1.445239161, 1.423e-5),
    (4, 1e-3, 1.034722946, 0.8230776852, 2.456e-5),
    (8, 1e-3, 0.5671574971, 0.4800137525, 3.885e-5),
    (16, 1e-3, 0.3247170479, 0.2886058155, 5.556e-5),
]
CLASSIC = [
    (0.1, 1e-5, 48.44805263, 2.636e-9),
    (0.5, 1e-5, 9.689610525, 1.608e-8),
    (1, 1e-5, 4.844805263, 4.114e-8),
    (0.1, 1e-3, 37.76479533, 5.236e-7),
    (0.5, 1e-3, 7.552959065, 3.191e-6),
    (1, 1e-3, 3.776479533, 8.147e-6),
]
epsilons = st.floats(min_value=1e-3, max_value=1e3)
deltas = st.floats(min_value=-12, max_value=-0.01).map(lambda exponent: 10.0**exponent)
PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)


@pytest.mark.parametrize(("epsilon", "delta", "extended", "analytic", "at_extended"), REFERENCE)
def test_reference_numbers(epsilon: float, delta: float, extended: float, analytic: float, at_extended: float) -> None:
    mechanism = ExtendedGaussian.for_target(epsilon, delta)
    assert mechanism.sigma == pytest.approx(extended, rel=1e-9)
    assert mechanism.delta_at(epsilon) == pytest.approx(at_extended, rel=5e-4)
    assert AnalyticGaussian.for_target(epsilon, delta).sigma == pytest.approx(analytic, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta", "sigma", "exact"), CLASSIC)
def test_classic_reference_numbers(epsilon: float, delta: float, sigma: float, exact: float) -> None:
    mechanism = ClassicGaussian.for_target(epsilon, delta)
    assert mechanism.sigma == pytest.approx(sigma, rel=1e-9)
    assert mechanism.delta_at(epsilon) == pytest.approx(exact, rel=5e-4)


@pytest.mark.parametrize(
    ("delta", "crossing"), [(1e-3, 0.9124645957), (1e-5, 0.9066245285), (1e-6, 0.9051650566), (1e-300, 0.8978698079)]
)
def test_the_extended_formula_beats_the_classic_one_only_below_0_9(delta: float, crossing: float) -> None:
    """The paper says up to epsilon 1."""
    slack = 1e-8 if delta > 1e-200 else 2e-4  # the last is the limit for delta -> 0
    assert extended_gaussian_sigma(crossing - slack, delta) < classic_gaussian_sigma(crossing - slack, delta)
    assert extended_gaussian_sigma(crossing + slack, delta) > classic_gaussian_sigma(crossing + slack, delta)


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


def test_the_analytic_sigma_fails_when_it_shrinks_by_a_thousandth() -> None:
    assert broken_promises(lambda *target: 0.999 * analytic_gaussian_sigma(*target), 500) == 500


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


@pytest.mark.parametrize("delta", [0.48, 0.79, 0.7978, 0.798, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 1e3])
def test_large_delta_has_a_value_and_keeps_it(epsilon: float, delta: float) -> None:
    """Condition 1 takes over where the theorem's logarithm is negative; below, the formula alone is enough."""
    sigma = extended_gaussian_sigma(epsilon, delta)
    assert exact_gaussian_delta(epsilon, sigma) <= 0.627 * delta  # sqrt(pi / 8), from the proof
    condition_1 = (1 + math.sqrt(1 + 2 * epsilon)) / (2 * epsilon)
    assert (sigma == pytest.approx(condition_1, rel=1e-12)) == (delta > math.sqrt(2 / math.pi))


@PROPERTY
@given(epsilon=epsilons, delta=deltas, factor=st.floats(min_value=1.01, max_value=5))
def test_noise_falls_with_the_target_and_scales_with_the_sensitivity(epsilon: float, delta: float, factor: float) -> None:
    for name, formula in CALIBRATIONS.items():
        if name == "classic" and epsilon * factor > 1:
            continue
        sigma = formula(epsilon, delta)
        assert formula(epsilon * factor, delta) < sigma
        assert formula(epsilon, delta / factor) > sigma or delta / factor > 0.5  # Condition 1 does not look at delta
        assert formula(epsilon, delta, factor) == pytest.approx(factor * sigma, rel=1e-9)


@PROPERTY
@given(epsilon=epsilons, delta=deltas, sensitivity=st.floats(min_value=1e-3, max_value=1e3))
def test_the_analytic_sigma_is_the_least_and_its_epsilon_is_the_target(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    analytic = AnalyticGaussian.for_target(epsilon, delta, sensitivity)
    assert analytic.sigma <= ExtendedGaussian.for_target(epsilon, delta, sensitivity).sigma
    assert epsilon >= 1 or analytic.sigma <= ClassicGaussian.for_target(epsilon, delta, sensitivity).sigma
    assert analytic.delta_at(epsilon) <= delta
    assert analytic.epsilon_at(delta) <= epsilon * (1 + 1e-9)
    assert analytic.epsilon_at(delta) == pytest.approx(epsilon, rel=1e-4)


@PROPERTY
@given(epsilon=epsilons, delta=deltas, factor=st.floats(min_value=1.01, max_value=3))
def test_profiles_fall_with_epsilon_and_with_noise(epsilon: float, delta: float, factor: float) -> None:
    noise, more = AnalyticGaussian.for_target(epsilon, delta), ExtendedGaussian.for_target(epsilon, delta)
    assert noise.delta_at(factor * epsilon) < noise.delta_at(epsilon)
    assert more.delta_at(epsilon) <= noise.delta_at(epsilon)
    assert more.epsilon_at(delta) <= epsilon
    assert noise.epsilon_at(delta / factor) > noise.epsilon_at(delta) or noise.epsilon_at(delta / factor) == 0


def test_classic_refuses_epsilon_above_one() -> None:
    assert classic_gaussian_sigma(1.0, 1e-5) > 0
    with pytest.raises(ConfigError, match="proven for epsilon up to 1 only") as caught:
        ClassicGaussian.for_target(math.nextafter(1.0, 2.0), 1e-5)
    assert "analytic" in caught.value.fix


@pytest.mark.parametrize("name", [name for name in NAMES if name != "laplace"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-5, 1.0), "the epsilon cannot be used"),
        ((-1.0, 1e-5, 1.0), "the epsilon cannot be used"),
        ((math.nan, 1e-5, 1.0), "the epsilon cannot be used"),
        ((math.inf, 1e-5, 1.0), "the epsilon cannot be used"),
        ((0.5, 0.0, 1.0), "delta cannot be used"),
        ((0.5, 1.0, 1.0), "delta cannot be used"),
        ((0.5, -0.1, 1.0), "delta cannot be used"),
        ((0.5, math.nan, 1.0), "delta cannot be used"),
        ((0.5, 1e-5, 0.0), "the sensitivity cannot be used"),
        ((0.5, 1e-5, math.inf), "the sensitivity cannot be used"),
        ((1e-200, 1e-5, 1e200), "outside the range of floats"),
    ],
)
def test_targets_without_meaning_are_refused(name: str, arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate(name, *arguments)


def test_the_catalogue_knows_its_names() -> None:
    assert {type(calibrate(name, 0.5, 1e-5)).__name__ for name in NAMES} == {
        "ClassicGaussian", "ExtendedGaussian", "AnalyticGaussian", "HeterogeneousGaussian", "HeterogeneousAnalytic", "Laplace",
    }  # fmt: skip
    mechanisms: list[Mechanism] = [calibrate(name, 0.5, 1e-5, 3.0) for name in NAMES]  # mypy: each keeps the interface
    for mechanism in mechanisms:
        assert mechanism.delta_at(0.5) <= 1e-5
        assert (mechanism.sensitivity, bool(mechanism.theorem)) == (3.0, True)
        assert mechanism.delta_at(mechanism.epsilon_at(1e-7)) <= 1e-7
    with pytest.raises(ConfigError, match="there is no such mechanism"):
        calibrate("magic", 0.5, 1e-5)
