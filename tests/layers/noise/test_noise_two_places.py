"""Noise layers at two places: put in, found again, drawn afresh, and refused elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.noise import Law, NoiseLayer, UniformSpread
from twinproof.layers.noise_placement import add_two_noises, split_at_noise, split_at_two_noises, with_two_noises


def _noise(shape: tuple[int, ...], deviation: float = 1.0) -> NoiseLayer:
    return NoiseLayer(shape, Law.LAPLACE, deviation, UniformSpread(shape))


def _two(relu: nn.Module | None = None) -> nn.Sequential:
    relu = relu or nn.ReLU()
    return add_two_noises(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), relu, nn.Linear(3, 2), relu), (2, 2), _noise((2, 2)), _noise
    )


def test_both_are_found_again_and_names_of_weights_stay() -> None:
    network = _two()
    split = split_at_two_noises(network)
    assert split is not None
    assert split.input_noise is network[0]
    assert split.hidden.noise is network[3]
    assert split.hidden.flattens
    assert split.hidden.before is network[2]
    assert {"input_noise.deviation", "noise.deviation", "1.weight", "3.weight"} <= set(network.state_dict())
    assert [type(module).__name__ for module in network] == [
        *("NoiseLayer", "Flatten", "Linear", "NoiseLayer", "ReLU", "Linear", "ReLU")
    ], "a module that is used twice stays twice"


def test_each_pass_draws_both_anew() -> None:
    network = add_two_noises(nn.Sequential(nn.Linear(1, 1, bias=False)), (1,), _noise((1,)), lambda shape: _noise(shape, 2.0))
    with torch.no_grad():
        next(network[1].parameters()).fill_(1.0)
        torch.manual_seed(0)
        drawn = network(torch.zeros(200_000, 1)).double()
    # Variances of Lap(1) and Lap(2) add up to 2 + 8; six standard errors of the sample variance are below 0.4.
    assert float(drawn.var()) == pytest.approx(10, abs=0.4)
    assert len(drawn.unique()) > 150_000


def test_networks_with_fewer_noises_are_left_to_others() -> None:
    assert split_at_two_noises(nn.Sequential(nn.Linear(2, 2))) is None
    assert split_at_two_noises(nn.Sequential(_noise((2,)), nn.Linear(2, 2))) is None
    with pytest.raises(ModelError, match="more than one noise layer"):
        split_at_noise(_two())


MISPLACED = [
    nn.Sequential(_noise((2,)), _noise((2,)), nn.Linear(2, 2)),
    nn.Sequential(nn.Linear(2, 2), _noise((2,)), nn.Linear(2, 2), _noise((2,))),
    nn.Sequential(_noise((2,)), nn.Linear(2, 2), _noise((2,)), nn.ReLU(), _noise((2,))),
    nn.Sequential(nn.Sequential(_noise((2,)), nn.Linear(2, 2), _noise((2,)))),
]


@pytest.mark.parametrize("network", MISPLACED)
def test_noises_elsewhere_are_refused(network: nn.Sequential) -> None:
    with pytest.raises(ModelError, match="several noise layers are not where they can be certified"):
        split_at_two_noises(network)


def test_noise_behind_more_than_the_first_layer_is_refused() -> None:
    with pytest.raises(ModelError, match="not where it can be certified"):
        split_at_two_noises(nn.Sequential(_noise((2,)), nn.Linear(2, 2), nn.ReLU(), _noise((2,))))


def test_a_network_with_equal_noise_at_both_places() -> None:
    network = with_two_noises(nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(12, 2)), (1, 3, 3), 0.25, 0.5)
    split = split_at_two_noises(network)
    assert split is not None
    assert (float(split.input_noise.deviation), float(split.hidden.noise.deviation)) == (0.25, 0.5)
    assert (split.input_noise.shape, split.hidden.noise.shape) == ((1, 3, 3), (3, 2, 2))


def test_a_noise_of_another_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="does not have its shape"):
        add_two_noises(nn.Sequential(nn.Linear(4, 2)), (4,), _noise((2, 2)), _noise)
