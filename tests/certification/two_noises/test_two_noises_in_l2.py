"""Two noises in l2: the parallel sum by itself, beside the exact trade-off on a line, and certificates of half-spaces."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq
from two_noises_oracles import TwoNoisesHalfspace, linear

from twinproof.certification import two_noise_bounds
from twinproof.certification.bounds import Charge
from twinproof.certification.laplace_shifts import GaussianShift
from twinproof.certification.method import Method, Sampling
from twinproof.certification.noise_site import Movement
from twinproof.certification.smoothed import smooth
from twinproof.certification.two_noise_bounds import joint_norm
from twinproof.certification.two_noises import TwoNoisesSite
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.noise import Law
from twinproof.privacy.linear_maps import Array
from twinproof_verify.layers import joint_matrix
from twinproof_verify.operator_norms import least_provable

NORMS = ("l1", "l2", "linf")
SHAPES = [(3, 5), (6, 4), (1, 1), (4, 4)]
SCALES = [(0.7, 1.3), (1.0, 0.01), (0.02, 1.0)]


def _true_norm(theta: Array, first: float, second: float, norm: str) -> float:
    """By the parallel sum as theta' (b1^2 theta theta' + b2^2)^-1 theta, from every corner of the ball."""
    inputs = theta.shape[1]
    parallel = theta.T @ np.linalg.solve(first**2 * theta @ theta.T + second**2 * np.eye(len(theta)), theta)
    if norm == "l2":
        return math.sqrt(np.linalg.eigvalsh(parallel)[-1])
    corners = np.eye(inputs) if norm == "l1" else np.array(list(product((-1.0, 1.0), repeat=inputs)))
    return math.sqrt(float(((corners @ parallel) * corners).sum(axis=1).max()))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scales", SCALES)
def test_the_joint_norm_is_that_of_the_parallel_sum_from_above(
    norm: str, shape: tuple[int, int], scales: tuple[float, float]
) -> None:
    theta = np.random.default_rng(4).standard_normal(shape)
    true = _true_norm(theta, *scales, norm)
    found = joint_norm(linear(theta), (shape[1],), norm, *scales, np.ones(shape[0])).value
    assert true <= found <= true * (1.26 if norm == "linf" else 1 + 1e-5)
    alone = {"l1": 1.0, "l2": 1.0, "linf": math.sqrt(shape[1])}[norm] / scales[0]
    assert found <= alone * (1 + 1e-9)
    assert least_provable(joint_matrix(theta, *scales), norm, "l2", found * (1 + 1e-9)) == found * (1 + 1e-9)
    below = 0.999 * true
    assert least_provable(joint_matrix(theta, *scales), norm, "l2", below) > below


def test_scales_of_the_outputs_divide_the_layer() -> None:
    theta, scale = np.random.default_rng(5).standard_normal((4, 3)), np.array([0.5, 1.0, 2.0, 4.0])
    found = joint_norm(linear(theta), (3,), "l2", 0.3, 0.4, scale).value
    assert found == pytest.approx(_true_norm(theta / scale[:, None], 0.3, 0.4, "l2"), rel=1e-5)


def _claim(first: float, second: float, low: float) -> float:
    """What is certified on a line: theta is 1."""
    rate = joint_norm(linear(np.eye(1)), (1,), "l2", first, second, np.ones(1)).value
    return float(GaussianShift().reach(low, 1 - low)) / rate


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.001), (0.1, 1.0), (1.0, 0.3), (0.5, 0.02)])
def test_on_a_line_the_claim_is_never_above_the_exact_trade_off(first: float, second: float) -> None:
    """The sum of both noises has a log-concave density: half-lines are the worst, and the score of one is known exactly."""
    model = TwoNoisesHalfspace(np.eye(1), np.ones(1), 0.0, first, second)
    for low in (0.51, 0.6, 0.75, 0.9, 0.99, 0.9999):
        exact = brentq(lambda margin, low=low: model.score(margin) - low, 0, 40 * (first + second), xtol=1e-13)
        assert 0.3 * exact < _claim(first, second, low) <= exact


def test_planted_short_factors_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if both noises were twice as large as they are together."""

    def short(*given: object) -> Array:
        return np.array([[1 / 4]])

    monkeypatch.setattr(two_noise_bounds, "_parallel_factor", short)
    model = TwoNoisesHalfspace(np.eye(1), np.ones(1), 0.0, 1.0, 1.001)
    exact = brentq(lambda margin: model.score(margin) - 0.6, 0, 80, xtol=1e-13)
    assert _claim(1.0, 1.001, 0.6) > exact


SAMPLING = Sampling(n0=20, n=150, alpha=0.001)
MOST_OF_3_000 = 16  # binomial: more has a probability below 1e-6
PLANE = TwoNoisesHalfspace(np.array([[1.0, 0.0], [0.0, 0.4]]), np.array([1.0, 0.02]), 0.502, 0.02, 0.1)


def _failures(law: Law, norm: str) -> int:
    stored = np.random.default_rng(5).integers(0, 256, size=(3000, 2))
    model = replace(PLANE, law=law)
    made = smooth(model.network(), method=Method(norm=norm)).certify(stored, sampling=SAMPLING, key=Key.from_seed(9))
    truth = (stored / 255 @ model.direction <= model.cut).astype(np.int64)
    answered = np.array([one.prediction for one in made])
    longer = np.array([one.radius for one in made]) > model.radii(stored / 255, norm)
    assert (answered >= 0).mean() > 0.3, "a test without certificates proves nothing"
    return int(((answered >= 0) & ((answered != truth) | longer)).sum())


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("norm", NORMS)
def test_hardly_any_certificate_is_false(law: Law, norm: str) -> None:
    assert _failures(law, norm) <= MOST_OF_3_000


@pytest.mark.parametrize("law", list(Law))
def test_planted_short_norms_are_caught(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    honest_size = Movement.size

    def longer(self: Movement, reached: Array) -> Array:
        return 1.6 * honest_size(self, reached)

    monkeypatch.setattr(Movement, "size", longer)
    assert _failures(law, "l2") > MOST_OF_3_000


def test_the_split_to_the_grid_is_paid_for() -> None:
    """Half a step in every coordinate, to both noises; and one step for each output."""
    site = smooth(replace(PLANE, law=Law.GAUSSIAN).network(), method=Method(norm="l2")).site
    assert isinstance(site, TwoNoisesSite)
    step = site.noise.grid / 255
    length = math.hypot(1.0, 0.4) * 0.02 / 0.1
    assert site.slack == pytest.approx(step * (math.sqrt(2) + math.hypot(math.sqrt(2), length) / 2), rel=1e-6)
    assert site.slack == site.in_l2((2,), "l2").slack


def test_nothing_is_claimed_of_two_gaussian_noises() -> None:
    site = smooth(replace(PLANE, law=Law.GAUSSIAN).network(), method=Method(norm="l2")).site
    with pytest.raises(ConfigError, match="no paper claims anything"):
        site.norm_bound((2,), "l2", Charge.CLAIMED)
