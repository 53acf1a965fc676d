"""Draws that are kept: behind the first layer they are one constant, which follows the weights and is saved with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.fixed_draws import FixedDraws, FixedDrawsConstraint, fixed_draws_of, with_fixed_draws
from twinproof.layers.networks import build_network
from twinproof.layers.noise import silenced
from twinproof.layers.noise_placement import split_at_two_noises, with_two_noises

FORMS: list[tuple[str, tuple[int, ...]]] = [("mlp", (7,)), ("mlp", (1, 4, 4)), ("stobatch-cnn", (1, 8, 8))]


def _network(name: str, shape: tuple[int, ...]) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        made = with_fixed_draws(with_two_noises(build_network(name, shape, 3), shape, 0.2, 0.1), shape)
        _, draws = fixed_draws_of(made)
        draws.on_input.copy_(torch.randn(shape))
        draws.on_layer.copy_(torch.randn(draws.on_layer.shape))
    return made.eval()


def _by_hand(network: nn.Sequential, inputs: Tensor) -> Tensor:
    """after(layer(x + c1) + c2), module by module."""
    _, draws = fixed_draws_of(network)
    values, passed = inputs + draws.on_input, False
    for module in network:
        if isinstance(module, FixedDraws):
            values, passed = values + draws.on_layer, True
        else:
            values = module(values)
    assert passed
    return values


@pytest.mark.parametrize(("name", "shape"), FORMS)
def test_both_draws_are_one_constant_behind_the_layer(name: str, shape: tuple[int, ...]) -> None:
    network, inputs = _network(name, shape), torch.rand(3, *shape)
    with torch.no_grad(), silenced(network):
        unsettled = network(inputs)
        FixedDrawsConstraint().apply(network)
        assert torch.allclose(network(inputs), _by_hand(network, inputs), atol=1e-5)
        assert not torch.allclose(unsettled, network(inputs), atol=1e-3)


def test_it_follows_the_weights_and_a_forgotten_update_is_seen() -> None:
    network, inputs = _network("mlp", (7,)), torch.rand(3, 7)
    held = FixedDrawsConstraint()
    held.apply(network)
    with torch.no_grad(), silenced(network):
        for parameter in network.parameters():
            parameter.mul_(1.5)
        assert not torch.allclose(network(inputs), _by_hand(network, inputs), atol=1e-3), "not settled again"
        held.apply(network)
        assert torch.allclose(network(inputs), _by_hand(network, inputs), atol=1e-5)


def test_names_of_weights_stay_and_the_draws_are_saved() -> None:
    plain = with_two_noises(build_network("mlp", (7,), 3), (7,), 0.2, 0.1)
    network = with_fixed_draws(plain, (7,))
    added = set(network.state_dict()) - set(plain.state_dict())
    assert added == {"fixed_draws.on_input", "fixed_draws.on_layer", "fixed_draws.offset"}
    assert dict(network.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    assert split_at_two_noises(network) is not None, "and both noises are where they can be certified"


@pytest.mark.parametrize(
    "wrong", [nn.Sequential(nn.Linear(3, 2)), with_two_noises(build_network("mlp", (3,), 2), (3,), 0.1, 0.1)]
)
def test_a_network_without_such_draws_is_refused(wrong: nn.Module) -> None:
    with pytest.raises(ModelError, match="no draws to fix"):
        fixed_draws_of(wrong)
    with pytest.raises(ModelError, match="no draws to fix"):
        with_fixed_draws(nn.Sequential(nn.Linear(3, 2)), (3,))


def test_a_module_that_is_used_twice_stays_in_both_places() -> None:
    twice = nn.ReLU()
    network = nn.Sequential(nn.Linear(4, 4), twice, nn.Linear(4, 4), twice, nn.Linear(4, 3))
    two = with_two_noises(network, (4,), 0.2, 0.1)
    assert len(with_fixed_draws(two, (4,))._modules) == len(two._modules) + 1
