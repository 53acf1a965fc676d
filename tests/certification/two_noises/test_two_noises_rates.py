"""Rates of two noises: reference numbers, dense matrices, exact densities, and the rules that are too good to be true."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import nn

from twinproof.certification.catalogue import find_bound
from twinproof.certification.noise_site import identity_norm, layer_norm
from twinproof.certification.two_noise_bounds import (
    Rates,
    composition_radius,
    incoming_sums,
    outgoing_sums,
    rates,
    single_pass_radius,
)
from twinproof.errors import ConfigError
from twinproof.layers.noise import Law

Floats = NDArray[np.float64]
NORMS = ("l1", "l2", "linf")


def linear(weight: Floats) -> nn.Linear:
    """A linear layer with these weights (outputs, inputs), in float64."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    return layer


def _dense(layer: nn.Module, shape: tuple[int, ...]) -> Floats:
    """(outputs, inputs), by passing basis vectors through torch's own layer."""
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    with torch.no_grad():
        return np.asarray((layer(units) - layer(torch.zeros_like(units))).flatten(1).T.numpy())


LAYERS = [
    (nn.Linear(5, 3), (5,)),
    (nn.Conv1d(2, 4, 3, padding=1, stride=2), (2, 7)),
    (nn.Conv2d(1, 3, 5, stride=2, padding=2), (1, 9, 8)),
    (nn.Conv2d(2, 4, 3, dilation=2, groups=2), (2, 7, 6)),
    (nn.Conv2d(2, 3, 3, padding="same"), (2, 5, 5)),
    (nn.Conv3d(1, 2, 2, padding=1), (1, 3, 3, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[type(layer).__name__ + str(shape) for layer, shape in LAYERS])
def test_sums_are_those_of_the_dense_matrix(layer: nn.Module, shape: tuple[int, ...]) -> None:
    exact = layer.double()
    matrix = np.abs(_dense(exact, shape))
    scale = np.linspace(0.5, 2, len(matrix))
    for found, truth in (
        (outgoing_sums(exact, shape), matrix.sum(axis=0)),
        (incoming_sums(exact, shape), matrix.sum(axis=1)),
        (outgoing_sums(exact, shape, scale), (matrix / scale[:, None]).sum(axis=0)),
    ):
        np.testing.assert_allclose(found, truth, rtol=1e-11)
        assert (found >= truth * (1 - 1e-15)).all(), "rounded outwards"


def test_an_input_that_nothing_sees_costs_nothing() -> None:
    """A stride that skips the last line: exactly 0, not a little above."""
    sums = outgoing_sums(nn.Conv1d(1, 1, 1, stride=2), (1, 4))
    assert sums[[1, 3]].tolist() == [0.0, 0.0]
    assert (sums[[0, 2]] > 0).all()


def test_the_example_of_three_rules() -> None:
    """theta = diag(1, 0.1), scales 1 and 0.5, epsilon 1, linf: split 0.8333, max rule 0.5, published 0.2381."""
    found = rates(linear(np.diag([1.0, 0.1])), (2,), "linf", 1.0, 0.5)
    radii = [1 / rate for rate in (found.split, found.max_rule, found.composed, found.single_pass)]
    assert radii == pytest.approx([0.833333, 0.5, 0.238095, 0.833333], abs=1e-6)
    in_l1 = rates(linear(np.diag([1.0, 0.1])), (2,), "l1", 1.0, 0.5)
    assert (in_l1.split, in_l1.input, in_l1.hidden) == pytest.approx((1.0, 1.0, 2.0))
    kappa, phi = 1.0 / 2.0, 0.5 / 1.1
    assert 1 / found.composed == pytest.approx(kappa * phi / (kappa + phi), rel=1e-8)


def test_signs_can_make_the_whole_layer_cheaper_than_its_coordinates() -> None:
    """theta' = [[1, 1], [1, -1]]: no change of linf size 1 moves the outputs by more than 2 in l1, the entries add up to 4."""
    found = rates(linear(np.array([[1.0, 1.0], [1.0, -1.0]])), (2,), "linf", 1.0, 1.0)
    assert found.split == pytest.approx(2.0)
    cheap = rates(linear(np.array([[1.0, 1.0], [1.0, -1.0]])), (2,), "linf", 0.5, 1.0)
    assert cheap.single_pass == cheap.hidden < cheap.split == pytest.approx(4.0)


def test_sensitivities_of_all_ones() -> None:
    """784 inputs, 10 outputs: 7840 for the layer and 784 for the input."""
    layer = linear(np.ones((10, 784)))
    assert layer_norm(layer, (784,), Law.LAPLACE, "linf", np.ones(10)).value == pytest.approx(7840, rel=1e-6)
    assert identity_norm(Law.LAPLACE, "linf", 784).value == 784
    assert float(np.abs(np.ones((10, 784)) @ np.ones(784)).sum()) == 7840, "reached by the change that is 1 everywhere"


@pytest.mark.parametrize(
    ("low", "high", "published", "tight"), [(0.9, 0.1, 1.098612, 1.609438), (0.6, 0.4, 0.202733, 0.223144)]
)
def test_reaches_of_one_noise(low: float, high: float, published: float, tight: float) -> None:
    """Section 4.2's numbers; the composition of one mechanism is PixelDP's bound."""
    assert float(find_bound("composition", Law.LAPLACE).reach(low, high)) == pytest.approx(published, abs=1e-6)
    assert float(find_bound("tight", Law.LAPLACE).reach(low, high)) == pytest.approx(tight, abs=1e-6)
    assert float(find_bound("tight", Law.LAPLACE).reach(0.99, 0.01)) == pytest.approx(3.912023, abs=1e-6)


def sum_density(points: Floats, first: float, second: float) -> Floats:
    """The density of Lap(first) + Lap(second), two different scales, in closed form."""
    terms = (scale * np.exp(-np.abs(points) / scale) for scale in (first, second))
    one, other = terms
    return np.asarray((one - other) / (2 * (first**2 - second**2)), dtype=np.float64)


def test_the_sum_of_two_laplace_noises_hides_a_shift_as_the_wider_one_does() -> None:
    """Lap(1) + Lap(2), shift 0.7: the log-ratio's supremum is 0.35, the cost of one noise, not 0.35 + 0.7."""
    points = np.linspace(-60, 60, 200_001)
    ratio = np.log(sum_density(points, 1, 2) / sum_density(points - 0.7, 1, 2))
    found = rates(linear(np.eye(1)), (1,), "l1", 1.0, 2.0)
    assert ratio.max() == pytest.approx(0.35, abs=1e-4)
    assert ratio.max() <= 0.7 * found.single_pass == pytest.approx(0.35)
    assert 0.7 * found.composed == pytest.approx(1.05)


def test_closed_form_against_numeric_convolution() -> None:
    """The same density by adding up products on a grid: the closed form is no assumption."""
    grid, step = np.linspace(-40, 40, 8001, retstep=True)
    first, second = (np.exp(-np.abs(grid) / scale) / (2 * scale) for scale in (1.0, 2.0))
    made = np.convolve(first, second, mode="same") * step
    middle = np.abs(grid) < 15
    np.testing.assert_allclose(made[middle], sum_density(grid, 1, 2)[middle], rtol=2e-4)


def _least_cost(theta: Floats, change: Floats, first: float, second: float) -> float:
    """N(a) exactly: the cheapest split as a linear program in (a1+, a1-, u+, u-) with theta (a - a1) = u."""
    outputs, inputs = theta.shape
    costs = np.concatenate([np.full(2 * inputs, 1 / first), np.full(2 * outputs, 1 / second)])
    equal = np.hstack([theta, -theta, np.eye(outputs), -np.eye(outputs)])
    solved = linprog(costs, A_eq=equal, b_eq=theta @ change, bounds=(0, None)).fun
    assert solved is not None
    return float(solved)


def _corners(norm: str, inputs: int) -> list[Floats]:
    if norm == "l1":
        return list(np.eye(inputs))
    signs = [np.array(one) for one in itertools.product((-1.0, 1.0), repeat=inputs)]
    return signs if norm == "linf" else [one / math.sqrt(inputs) for one in signs]


def _too_cheap(found: Rates) -> dict[str, float]:
    """Planted: half of the rate, and sizes added up (kappa + phi) as if two noises protected twice."""
    return {"half": found.single_pass / 2, "sizes added": 1 / (1 / found.input + 1 / found.hidden)}


@pytest.mark.parametrize("norm", NORMS)
def test_no_change_costs_more_than_the_rate_and_planted_rules_are_below_it(norm: str) -> None:
    draw, caught = np.random.default_rng(3), {"half": 0, "sizes added": 0}
    for _ in range(25):
        theta = draw.normal(size=(2, 3)) * draw.choice([0.2, 1, 3], size=3)
        first, second = (float(one) for one in draw.uniform(0.2, 2, 2))
        found = rates(linear(theta), (3,), norm, first, second)
        worst = max(_least_cost(theta, change, first, second) for change in _corners(norm, 3))
        assert worst <= found.single_pass * (1 + 1e-8)
        for name, planted in _too_cheap(found).items():
            caught[name] += worst > planted * (1 + 1e-8)
    assert all(count > 10 for count in caught.values()), caught


def test_densities_in_the_plane_reach_the_split_rule_and_refute_a_cheaper_one() -> None:
    """theta = diag(1, 0.1): the change is left to the input's noise in the first coordinate, to the layer's in the second.

    h has independent coordinates, Lap(1) + Lap(0.5) and Lap(0.1) + Lap(0.5), so that its density is known.
    """
    found, size = rates(linear(np.diag([1.0, 0.1])), (2,), "linf", 1.0, 0.5), 0.8
    side = np.linspace(-12, 12, 481)
    logs = [
        np.log(sum_density(side, scale, 0.5) / sum_density(side - moved * size, scale, 0.5))
        for scale, moved in ((1.0, 1.0), (0.1, 0.1))
    ]
    ratio = float((logs[0][:, None] + logs[1][None, :]).max())
    assert ratio == pytest.approx(size * found.split, rel=1e-5), "tight: no smaller rate is true"
    assert ratio <= size * found.split
    assert ratio > size * _too_cheap(found)["half"]
    assert ratio < size * found.max_rule < size * found.composed


numbers = st.floats(min_value=0.01, max_value=20, allow_nan=False)
weights = st.lists(st.floats(min_value=-5, max_value=5, allow_nan=False, width=32), min_size=6, max_size=6)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(weights, numbers, numbers, st.sampled_from(NORMS), st.floats(0, 1), st.floats(0, 1))
def test_a_single_pass_never_certifies_less_than_the_composition(
    theta: list[float], first: float, second: float, norm: str, low: float, high: float
) -> None:
    found = rates(linear(np.array(theta).reshape(2, 3)), (3,), norm, first, second)
    assert found.single_pass <= found.max_rule <= found.composed
    single, published = single_pass_radius(low, high, found), composition_radius(low, high, found)
    assert single >= published >= 0
    assert single / 2 >= published * (1 - 1e-9), "the composition is at most half of what one noise gives alone"


def test_scores_near_nothing_and_layers_of_zeros_are_no_overflow() -> None:
    found = rates(linear(np.eye(2)), (2,), "l1", 1.0, 1.0)
    for radius in (single_pass_radius, composition_radius):
        assert radius(1.0, 2e-311, found) <= radius(1.0, 1e-300, found) < 1000
        assert radius(1.0, 0.0, found) == math.inf, "a class that never wins is out of reach"
    nothing = rates(linear(np.zeros((2, 3))), (3,), "l1", 1.0, 1.0)
    assert single_pass_radius(1.0, 0.5, nothing) > 1e300


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    for given_scales in ((scale, 1.0), (1.0, scale)):
        with pytest.raises(ConfigError, match=r"scale of the noise (on the input|behind the layer) cannot be used"):
            rates(linear(np.eye(2)), (2,), "l1", *given_scales)
