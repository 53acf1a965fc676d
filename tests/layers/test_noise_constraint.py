"""The proportion of noise and norm after each update: by the bound that certificates use, in every norm and law."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.certification.two_noise_bounds import rates
from twinproof.errors import ConfigError, ModelError
from twinproof.layers.networks import build_network
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_constraint import Adjoint, Constraint, TwoNoisesConstraint, WeightRule, parseval_steps
from twinproof.layers.noise_placement import FirstLayer, add_noise, split_at_noise, split_at_two_noises, with_two_noises
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
    for rule, kept in ((WeightRule.PROJECT, _network("conv2d", Law.GAUSSIAN, factor=0.01)), (WeightRule.MEASURE, network)):
        untouched = {name: value.clone() for name, value in kept[0].state_dict().items()}
        Constraint(rule, "l2", Law.GAUSSIAN, SIGMA).apply(kept)
        assert all(torch.equal(value, untouched[name]) for name, value in kept[0].state_dict().items())


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
    network, zeros = _network("conv2d", Law.GAUSSIAN), _network("conv2d", Law.GAUSSIAN, factor=0.0)
    memory = {name: value.data_ptr() for name, value in network.state_dict().items()}
    for rule in WeightRule:
        Constraint(rule, "l2", Law.GAUSSIAN, SIGMA).apply(network)
        Constraint(rule, "linf", Law.GAUSSIAN, SIGMA).apply(zeros)
        assert all(bool(torch.isfinite(value).all()) for value in zeros.state_dict().values())
    assert {name: value.data_ptr() for name, value in network.state_dict().items()} == memory
    assert all(value.is_leaf and value.requires_grad and value.grad is None for value in network.parameters())


def test_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ConfigError, match="norm cannot be used"):
        Constraint(WeightRule.PROJECT, "l3", Law.GAUSSIAN, SIGMA)
    with pytest.raises(ConfigError, match="sigma"):
        Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, math.nan)
    single = Constraint(WeightRule.PROJECT, "l2", Law.GAUSSIAN, SIGMA)
    with pytest.raises(ModelError, match="no noise layer"):
        single.apply(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ModelError, match="does not have two noises"):
        TwoNoisesConstraint(SIGMA, single).apply(build_network("mlp", (7,), 3))


SMALL, SHARE = 0.01, 0.5
FORMS: list[tuple[str, tuple[int, ...], str]] = [
    ("mlp", (7,), "linf"),
    ("mlp", (1, 4, 4), "l1"),
    ("stobatch-cnn", (1, 8, 8), "linf"),
    ("stobatch-cnn", (1, 8, 8), "l2"),
]


def _two_noises(name: str, shape: tuple[int, ...]) -> nn.Sequential:
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
    network = _two_noises(name, shape)
    held = TwoNoisesConstraint(SMALL, Constraint(rule, norm, Law.LAPLACE, SMALL * SHARE, shape))
    held.apply(network)
    two = split_at_two_noises(network)
    assert two is not None
    assert two.hidden.before is not None
    inner = (two.hidden.before.in_features,) if isinstance(two.hidden.before, nn.Linear) else shape
    found = rates(two.hidden.before, inner, norm, float(two.input_noise.deviation), float(two.hidden.noise.deviation))
    assert found.input * SMALL == pytest.approx(1, rel=1e-6)
    # The layer's norm is estimated from below, and a projected layer may be shorter than is allowed.
    assert 0.5 < found.hidden * SMALL * SHARE < 1.15
    if rule is WeightRule.MEASURE:
        before = {name: value.clone() for name, value in network.state_dict().items()}
        held.apply(network)
        assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


PARSEVAL: dict[str, tuple[FirstLayer, int, float]] = {
    "linear": (nn.Linear(6, 4), 1, 1.0),
    "wide linear": (nn.Linear(4, 6), 1, 1.0),
    "conv2d": (nn.Conv2d(2, 3, 3), 1, 3.0),
    "conv2d with stride": (nn.Conv2d(2, 3, 5, stride=2), 1, 3.0),
    "conv1d in groups": (nn.Conv1d(4, 6, 4, groups=2), 2, 2.0),
}


def _values(layer: FirstLayer, groups: int, overlap: float) -> Tensor:
    matrices = layer.weight.detach().double().reshape(groups, layer.weight.shape[0] // groups, -1) * overlap
    values: Tensor = torch.linalg.svdvals(matrices)
    return values


@pytest.mark.parametrize("name", PARSEVAL)
def test_ten_steps_are_pixeldps_on_every_singular_value(name: str) -> None:
    layer, groups, overlap = PARSEVAL[name]
    torch.manual_seed(1)
    nn.init.normal_(layer.weight, std=0.5)
    wanted = _values(layer, groups, overlap)
    for _ in range(10):
        wanted = (1 + 3e-4) * wanted - 3e-4 * wanted**3
    parseval_steps(layer)
    found = _values(layer, groups, overlap)
    torch.testing.assert_close(found, wanted.sort(dim=1, descending=True).values, rtol=1e-4, atol=1e-5)


def test_many_steps_end_in_a_tight_frame() -> None:
    layer = nn.Conv2d(1, 4, 3)
    torch.manual_seed(2)
    for _ in range(800):
        parseval_steps(layer)
    torch.testing.assert_close(_values(layer, 1, 3.0), torch.ones(1, 4, dtype=torch.float64), rtol=2e-2, atol=0)


def test_huge_weights_do_not_diverge() -> None:
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.mul_(1e6)
    parseval_steps(layer)
    assert float(_values(layer, 1, 1.0).max()) < 50


ADJOINT: list[tuple[FirstLayer, tuple[int, ...]]] = [
    (nn.Linear(7, 4), (7,)),
    (nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 9)),
    (nn.Conv2d(1, 4, 5, stride=2, padding=2), (1, 8, 8)),
    (nn.Conv2d(4, 6, 3, stride=3, padding=2, groups=2), (4, 7, 8)),
    (nn.Conv2d(2, 3, 2, padding="same", dilation=2), (2, 5, 6)),
    (nn.Conv3d(1, 2, 2, stride=2), (1, 4, 5, 4)),
]


def _linear(layer: FirstLayer, inputs: Tensor) -> Tensor:
    return layer(inputs) - layer(torch.zeros_like(inputs))  # type: ignore[no-any-return]  # calls of modules are Any


@pytest.mark.parametrize(("layer", "shape"), ADJOINT, ids=lambda part: str(part).split("(")[0])
def test_inner_products_are_those_of_the_layer(layer: FirstLayer, shape: tuple[int, ...]) -> None:
    exact = layer.double()
    inputs = torch.rand(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs = _linear(exact, inputs).detach()
    code = torch.rand(outputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    back = Adjoint(exact)(code, inputs)
    assert back.shape == inputs.shape
    assert float((outputs * code).sum()) == pytest.approx(float((inputs * back).sum().detach()), rel=1e-12)
    assert not list(Adjoint(exact).parameters())
    assert not Adjoint(exact).state_dict()
    with pytest.raises(ModelError, match="cannot be transposed"):
        Adjoint(nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"))
