"""Two noises in proportion: the one on the input to the input itself, the other to the layer's norm, after every update."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinproof.certification.two_noise_bounds import rates
from twinproof.errors import ModelError
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law
from twinproof.layers.noise_constraint import Constraint, TwoNoisesConstraint, WeightRule
from twinproof.layers.noise_placement import split_at_two_noises, with_two_noises

SIGMA, SHARE = 0.01, 0.5
FORMS: list[tuple[str, tuple[int, ...], str]] = [
    ("mlp", (7,), "linf"),
    ("mlp", (1, 4, 4), "l1"),
    ("stobatch-cnn", (1, 8, 8), "linf"),
    ("stobatch-cnn", (1, 8, 8), "l2"),
]


def _held(rule: WeightRule, norm: str, shape: tuple[int, ...]) -> TwoNoisesConstraint:
    return TwoNoisesConstraint(SIGMA, Constraint(rule, norm, Law.LAPLACE, SIGMA * SHARE, shape))


def _network(name: str, shape: tuple[int, ...]) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = with_two_noises(build_network(name, shape, 3), shape, 1.0, 1.0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    return network


@pytest.mark.parametrize("rule", [WeightRule.PROJECT, WeightRule.MEASURE])
@pytest.mark.parametrize(("name", "shape", "norm"), FORMS)
def test_a_change_of_one_costs_one_over_sigma_at_each_place(
    name: str, shape: tuple[int, ...], norm: str, rule: WeightRule
) -> None:
    network = _network(name, shape)
    _held(rule, norm, shape).apply(network)
    two = split_at_two_noises(network)
    assert two is not None
    assert two.hidden.before is not None
    inner = (two.hidden.before.in_features,) if isinstance(two.hidden.before, nn.Linear) else shape
    found = rates(two.hidden.before, inner, norm, float(two.input_noise.deviation), float(two.hidden.noise.deviation))
    assert found.input * SIGMA == pytest.approx(1, rel=1e-6)
    # The layer's norm is estimated from below, and a projected layer may be shorter than is allowed.
    assert 0.5 < found.hidden * SIGMA * SHARE < 1.15


def test_applied_again_it_changes_nothing() -> None:
    network, held = _network("stobatch-cnn", (1, 8, 8)), _held(WeightRule.MEASURE, "linf", (1, 8, 8))
    held.apply(network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    held.apply(network)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_network_with_fewer_noises_is_refused() -> None:
    with pytest.raises(ModelError, match="does not have two noises"):
        _held(WeightRule.PROJECT, "linf", (7,)).apply(build_network("mlp", (7,), 3))
