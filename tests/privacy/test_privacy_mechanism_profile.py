"""The exact profile of Gaussian noise: never below the truth, close above it, and the same as other people's."""

from __future__ import annotations

import math
import random

import pytest
from mechanism_oracles import exact_gaussian_delta, hockey_stick, normal_log_density

from twinproof.errors import ConfigError
from twinproof.privacy.mechanism import least_float
from twinproof.privacy.mechanisms import GaussianNoise, gaussian_delta


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
    [(1.0, 1e-320, 1e300), (1e300, 1e300, 1.0), (1e308, 1e-154, 1.0), (1e-300, 1e-10, 1e10)],
)
def test_extremes_end_on_the_safe_side(epsilon: float, sigma: float, sensitivity: float) -> None:
    assert 0 < gaussian_delta(epsilon, sigma, sensitivity) <= 1
    assert gaussian_delta(1.0, 1e-320, 1e300) == 1


def test_gaussian_noise_never_has_delta_zero() -> None:
    assert GaussianNoise(1e3).delta_at(1e3) > 0
    with pytest.raises(ConfigError, match="delta cannot be used"):
        GaussianNoise(1.0).epsilon_at(0.0)


def test_the_search_ends_at_the_last_float() -> None:
    for bound in (math.pi, 1e-200, 1e200, 1.0):
        assert least_float(lambda value, bound=bound: value >= bound, 1.0, "x") == bound  # type: ignore[misc]
    with pytest.raises(ConfigError, match="no finite value keeps this promise"):
        least_float(lambda _: False, 1.0, "x")
    assert 0 < least_float(lambda _: True, 1.0, "x") < 1e-300


@pytest.mark.parametrize(
    ("sigma", "sensitivity", "name"), [(0.0, 1.0, "sigma"), (math.inf, 1.0, "sigma"), (1.0, -1.0, "sensitivity")]
)
def test_noise_without_meaning_is_refused(sigma: float, sensitivity: float, name: str) -> None:
    with pytest.raises(ConfigError, match=f"the {name} cannot be used"):
        GaussianNoise(sigma, sensitivity)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf])
def test_a_profile_at_no_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="the epsilon cannot be used"):
        GaussianNoise(1.0).delta_at(epsilon)
