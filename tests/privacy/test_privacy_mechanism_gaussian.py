"""Gaussian noise: its exact profile, the calibrations on reference numbers and random targets, and planted bugs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import exact_gaussian_delta, hockey_stick, normal_log_density

from twinproof.errors import ConfigError
from twinproof.privacy.mechanism import Mechanism, least_float
from twinproof.privacy.mechanisms import (
    NAMES,
    GaussianNoise,
    analytic_gaussian_sigma,
    calibrate,
    classic_gaussian_sigma,
    extended_gaussian_sigma,
    gaussian_delta,
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
    (2, 1e-5, 2.422402631, 1.336e-7),
    (4, 1e-5, 1.211201316, 6.845e-7),
    (8, 1e-5, 0.6056006578, 7.971e-6),
    (16, 1e-5, 0.3028003289, 3.363e-4),
    (0.1, 1e-3, 37.76479533, 5.236e-7),
    (0.5, 1e-3, 7.552959065, 3.191e-6),
    (1, 1e-3, 3.776479533, 8.147e-6),
    (2, 1e-3, 1.888239766, 2.623e-5),
    (4, 1e-3, 0.9441198832, 1.297e-4),
    (8, 1e-3, 0.4720599416, 1.313e-3),
    (16, 1e-3, 0.2360299708, 3.199e-2),
]
epsilons = st.floats(min_value=1e-3, max_value=1e3)
deltas = st.floats(min_value=-12, max_value=-0.01).map(lambda exponent: 10.0**exponent)
PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)


@pytest.mark.parametrize(("epsilon", "delta", "extended", "analytic", "at_extended"), REFERENCE)
def test_reference_numbers(epsilon: float, delta: float, extended: float, analytic: float, at_extended: float) -> None:
    mechanism = calibrate("extended", epsilon, delta)
    assert mechanism.sigma == pytest.approx(extended, rel=1e-9)
    assert mechanism.delta_at(epsilon) == pytest.approx(at_extended, rel=5e-4)
    assert calibrate("analytic", epsilon, delta).sigma == pytest.approx(analytic, rel=5.1e-10)


@pytest.mark.parametrize(("epsilon", "delta", "sigma", "exact"), CLASSIC)
def test_classic_reference_numbers(epsilon: float, delta: float, sigma: float, exact: float) -> None:
    """Beyond its range, the last three, the formula is not private, and the profile says so."""
    assert math.sqrt(2 * math.log(1.25 / delta)) / epsilon == pytest.approx(sigma, rel=1e-9)
    assert gaussian_delta(epsilon, sigma) == pytest.approx(exact, rel=5e-4)
    assert (gaussian_delta(epsilon, sigma) > delta) == (sigma < analytic_gaussian_sigma(epsilon, delta))
    assert (exact > delta) == ((epsilon, delta) in ((16, 1e-5), (8, 1e-3), (16, 1e-3)))
    if epsilon <= 1:
        assert calibrate("classic", epsilon, delta).sigma == pytest.approx(sigma, rel=1e-9)
        return
    with pytest.raises(ConfigError, match="proven for epsilon up to 1 only") as caught:
        calibrate("classic", epsilon, delta)
    assert "analytic" in caught.value.fix


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


@pytest.mark.parametrize("name", [name for name in NAMES if name != "laplace"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-5, 1.0), "epsilon cannot be used"),
        ((-1.0, 1e-5, 1.0), "epsilon cannot be used"),
        ((math.nan, 1e-5, 1.0), "epsilon cannot be used"),
        ((math.inf, 1e-5, 1.0), "epsilon cannot be used"),
        ((0.5, 0.0, 1.0), "delta cannot be used"),
        ((0.5, 1.0, 1.0), "delta cannot be used"),
        ((0.5, -0.1, 1.0), "delta cannot be used"),
        ((0.5, math.nan, 1.0), "delta cannot be used"),
        ((0.5, 1e-5, 0.0), "sensitivity cannot be used"),
        ((0.5, 1e-5, math.inf), "sensitivity cannot be used"),
        ((1e-200, 1e-5, 1e200), "outside the range of floats"),
    ],
)
def test_targets_without_meaning_are_refused(name: str, arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate(name, *arguments)


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


def naive_delta(epsilon: float, sigma: float) -> float:
    """The planted bug: the formula in plain floats."""
    from scipy.special import ndtr

    half, shift = 1 / (2 * sigma), epsilon * sigma
    return float(ndtr(half - shift) - math.exp(min(700.0, epsilon)) * ndtr(-half - shift))


def test_the_profile_is_never_below_the_truth_and_close_above() -> None:
    points = random_points(2000)
    assert len(points) > 700
    for epsilon, sigma in points:
        truth = exact_gaussian_delta(epsilon, sigma)
        assert truth <= gaussian_delta(epsilon, sigma) <= truth * (1 + 1e-7)
    assert any(naive_delta(*point) < exact_gaussian_delta(*point) for point in points)


def test_functions_err_less_than_is_allowed_for() -> None:
    """A tenth of the allowance of the profile, over the range it asks for."""
    from scipy.special import erfcx, ndtr

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


@pytest.mark.parametrize("sigma", [0.7, 2.0, 5.0])
def test_dp_accounting_agrees(sigma: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution

    loss = privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4)
    noise = GaussianNoise(sigma)
    for epsilon in (0.1, 1.0, 2.0):
        assert noise.delta_at(epsilon) == pytest.approx(loss.get_delta_for_epsilon(epsilon), rel=2e-3)
    for delta in (1e-6, 1e-3, 0.1):
        assert noise.epsilon_at(delta) == pytest.approx(loss.get_epsilon_for_delta(delta), abs=2e-4)


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.1, 0.9, 0.999999])
@pytest.mark.parametrize("sigma", [0.01, 0.5, 3.0, 1e4])
def test_epsilon_and_delta_are_each_others_inverse(sigma: float, delta: float) -> None:
    noise = GaussianNoise(2 * sigma, 2.0)
    epsilon = noise.epsilon_at(delta)
    assert noise.delta_at(epsilon) <= delta
    assert epsilon == 0 or noise.delta_at(epsilon * (1 - 1e-6)) > delta
    assert epsilon > 0 or noise.delta_at(0) <= delta


@pytest.mark.parametrize(
    ("epsilon", "sigma", "sensitivity"),
    [(1.0, 1e-320, 1e300), (1e300, 1e300, 1.0), (1e308, 1e-154, 1.0), (1e-300, 1e-10, 1e10), (1e3, 1e3, 1.0)],
)
def test_extremes_end_on_the_safe_side(epsilon: float, sigma: float, sensitivity: float) -> None:
    """Gaussian noise never has delta 0."""
    assert 0 < gaussian_delta(epsilon, sigma, sensitivity) <= 1
    assert gaussian_delta(1.0, 1e-320, 1e300) == 1


def test_the_search_ends_at_the_last_float() -> None:
    for bound in (math.pi, 1e-200, 1e200, 1.0):
        assert least_float(lambda value, bound=bound: value >= bound, 1.0, "x") == bound  # type: ignore[misc]
    with pytest.raises(ConfigError, match="no finite value keeps this promise"):
        least_float(lambda _: False, 1.0, "x")
    assert 0 < least_float(lambda _: True, 1.0, "x") < 1e-300


def test_noise_without_meaning_is_refused() -> None:
    for sigma, sensitivity, name in ((0.0, 1.0, "sigma"), (math.inf, 1.0, "sigma"), (1.0, -1.0, "sensitivity")):
        with pytest.raises(ConfigError, match=f"{name} cannot be used"):
            GaussianNoise(sigma, sensitivity)
    for epsilon in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="epsilon cannot be used"):
            GaussianNoise(1.0).delta_at(epsilon)
    with pytest.raises(ConfigError, match="delta cannot be used"):
        GaussianNoise(1.0).epsilon_at(0.0)
