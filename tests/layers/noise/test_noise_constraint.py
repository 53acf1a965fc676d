"""The proportion of noise and norm after each update: by the bound that certificates use, in every norm and law."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_constraint import Constraint, WeightRule
from twinproof.layers.noise_placement import add_noise, split_at_noise
from twinproof.privacy.operator_norm import operator_norm

SIGMA, NORMS = 0.25, ("l1", "l2", "linf")
TARGET = {Law.GAUSSIAN: "l2", Law.LAPLACE: "l1"}
# The estimate is from below, by at most a few per cent of the bound.
ALLOWED = 1.05

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(20, 12), (20,)),
    "wide linear": (lambda: nn.Linear(8, 30, bias=False), (8,)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=3, groups=2, padding=2), (4, 12)),
    "conv2d": (lambda: nn.Conv2d(1, 8, 3, padding=1), (1, 8, 8)),
    "conv2d with stride": (lambda: nn.Conv2d(2, 4, (5, 4), stride=(2, 3), padding=2), (2, 10, 11)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, 3, padding="same", dilation=(1, 2)), (2, 6, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2, padding=1), (2, 4, 5, 4)),
}


def _learned(shape: tuple[int, ...]) -> LearnedSpread:
    spread = LearnedSpread(shape)
    with torch.no_grad():
        spread.log_shares.copy_(torch.randn(spread.coordinates, generator=torch.Generator().manual_seed(5)))
    return spread


def _network(
    name: str, law: Law, spread: Callable[[tuple[int, ...]], Spread] = _learned, factor: float = 20.0
) -> nn.Sequential:
    torch.manual_seed(7)
    make, shape = LAYERS[name]
    network = add_noise(
        nn.Sequential(make(), nn.Tanh()), shape, Place.FIRST_LAYER, lambda s: NoiseLayer(s, law, 9.0, spread(s))
    )
    with torch.no_grad():
        for parameter in network[0].parameters():
            parameter.mul_(factor)
    return network


def _norm_per_deviation(network: nn.Sequential, name: str, norm: str, law: Law) -> float:
    """What certificates divide by, in units of what they multiply with: 1 / sigma where the constraint holds exactly."""
    split = split_at_noise(network)
    assert split is not None
    assert split.before is not None
    scales = split.noise.spread.least_scales()
    value = operator_norm(split.before, LAYERS[name][1], source=norm, target=TARGET[law], scale=scales).value
    return value * SIGMA / float(split.noise.deviation)


@pytest.mark.parametrize("rule", list(WeightRule))
@pytest.mark.parametrize("name", LAYERS)
def test_brings_the_bound_of_certificates_to_one(name: str, rule: WeightRule) -> None:
    for law, norm in product(Law, NORMS):
        network = _network(name, law)
        assert _norm_per_deviation(network, name, norm, law) > 1.2 * SIGMA / 9, "there is something to do"
        Constraint(rule, norm, law, SIGMA, LAYERS[name][1]).apply(network)
        assert 0.97 < _norm_per_deviation(network, name, norm, law) < ALLOWED, (law, norm)


def test_a_planted_norm_of_another_law_or_without_the_scales_is_caught() -> None:
    network = _network("linear", Law.LAPLACE)
    Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, SIGMA).apply(network)
    assert _norm_per_deviation(network, "linear", "l2", Law.LAPLACE) > ALLOWED
    uniform, learned = _network("linear", Law.GAUSSIAN, UniformSpread), _network("linear", Law.GAUSSIAN)
    Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, SIGMA).apply(uniform)
    learned[0].load_state_dict(uniform[0].state_dict())
    assert _norm_per_deviation(learned, "linear", "l2", Law.GAUSSIAN) > ALLOWED * SIGMA / 9


@pytest.mark.parametrize("name", ["conv1d", "conv2d with stride", "conv3d"])
@pytest.mark.parametrize("norm", NORMS)
def test_without_the_input_shape_the_norm_is_not_underestimated(name: str, norm: str) -> None:
    network = _network(name, Law.GAUSSIAN, UniformSpread)
    Constraint(WeightRule.PROJECT, norm, Law.GAUSSIAN, SIGMA).apply(network)
    assert _norm_per_deviation(network, name, norm, Law.GAUSSIAN) < ALLOWED


@pytest.mark.parametrize("rule", list(WeightRule))
def test_random_shares_count_with_the_worst_that_can_be_drawn(rule: WeightRule) -> None:
    network = _network("linear", Law.GAUSSIAN, lambda shape: RandomSpread(shape, 0.5))
    Constraint(rule, "l2", Law.GAUSSIAN, SIGMA).apply(network)
    assert 0.97 < _norm_per_deviation(network, "linear", "l2", Law.GAUSSIAN) < ALLOWED


def test_projection_shrinks_the_function_as_a_whole_and_only_where_it_must() -> None:
    network = _network("conv2d", Law.GAUSSIAN)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    constraint = Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, SIGMA)
    constraint.apply(network)
    after = network.state_dict()
    factor = float(after["0.weight"].flatten()[0] / before["0.weight"].flatten()[0])
    assert factor < 1
    for name in ("0.weight", "0.bias"):
        torch.testing.assert_close(after[name], factor * before[name])
    assert float(after["noise.deviation"]) == SIGMA
    small = _network("conv2d", Law.GAUSSIAN, factor=0.01)
    untouched = {name: value.clone() for name, value in small[0].state_dict().items()}
    constraint.apply(small)
    assert all(torch.equal(value, untouched[name]) for name, value in small[0].state_dict().items())


def test_measuring_leaves_the_weights_alone() -> None:
    network = _network("conv2d", Law.GAUSSIAN)
    before = {name: value.clone() for name, value in network[0].state_dict().items()}
    Constraint(WeightRule.MEASURE, "l2", Law.GAUSSIAN, SIGMA).apply(network)
    assert all(torch.equal(value, before[name]) for name, value in network[0].state_dict().items())


@pytest.mark.parametrize("rule", list(WeightRule))
@pytest.mark.parametrize(
    ("law", "norm", "wanted"),
    [
        (Law.GAUSSIAN, "l1", 1.0),
        (Law.GAUSSIAN, "l2", 1.0),
        (Law.GAUSSIAN, "linf", math.sqrt(12)),
        (Law.LAPLACE, "l1", 1.0),
        (Law.LAPLACE, "l2", math.sqrt(12)),
        (Law.LAPLACE, "linf", 12.0),
    ],
)
def test_at_the_input_the_norm_is_that_of_the_identity(law: Law, norm: str, wanted: float, rule: WeightRule) -> None:
    shape, scales = (3, 4), np.random.default_rng(2).uniform(0.5, 2, 12)
    for spread in (UniformSpread(shape), FixedSpread(shape, scales)):
        noise = NoiseLayer(shape, law, 9.0, spread)
        Constraint(rule, norm, law, SIGMA).apply(nn.Sequential(noise, nn.Tanh()))
        found = float(noise.deviation) / SIGMA
        identity = nn.Linear(12, 12, bias=False)
        with torch.no_grad():
            identity.weight.copy_(torch.eye(12))
        exact = operator_norm(identity, (12,), source=norm, target=TARGET[law], scale=spread.least_scales())
        assert exact.lower * (1 - 1e-6) <= found <= exact.value * (1 + 1e-6)
        if isinstance(spread, UniformSpread):
            assert found == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("rule", list(WeightRule))
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_is_a_function_of_the_weights_alone(name: str, rule: WeightRule) -> None:
    constraint = Constraint(rule, "linf", Law.GAUSSIAN, SIGMA)
    first, second = _network(name, Law.GAUSSIAN), _network(name, Law.GAUSSIAN)
    constraint.apply(first)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    Constraint(rule, "linf", Law.GAUSSIAN, SIGMA).apply(second)
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"
    for (key, one), two in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(one, two), key


def test_works_in_place_and_leaves_no_graph() -> None:
    network = _network("conv2d", Law.GAUSSIAN)
    memory = {name: value.data_ptr() for name, value in network.state_dict().items()}
    for rule in WeightRule:
        Constraint(rule, "l2", Law.GAUSSIAN, SIGMA).apply(network)
    assert {name: value.data_ptr() for name, value in network.state_dict().items()} == memory
    assert all(value.is_leaf and value.requires_grad and value.grad is None for value in network.parameters())


def test_a_layer_of_zeros_stays_what_it_is() -> None:
    for rule in WeightRule:
        network = _network("conv2d", Law.GAUSSIAN, factor=0.0)
        Constraint(rule, "linf", Law.GAUSSIAN, SIGMA).apply(network)
        assert all(bool(torch.isfinite(value).all()) for value in network.state_dict().values())


def test_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ConfigError, match="unknown norm"):
        Constraint(WeightRule.PROJECT, "l3", Law.GAUSSIAN, SIGMA)
    with pytest.raises(ConfigError, match="sigma"):
        Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, math.nan)
    with pytest.raises(ModelError, match="no noise layer"):
        Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, SIGMA).apply(nn.Sequential(nn.Linear(2, 2)))
