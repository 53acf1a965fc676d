"""Which networks may run on several cores at once, or as a recording."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from twinproof.layers.networks import NETWORKS, build_network
from twinproof.layers.noise import Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.training.passes import ONE_BY_ONE, PassMode, is_known, layers_draw, pass_mode

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Own(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def _hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_our_networks_run_at_full_speed(name: str) -> None:
    model = build_network(name, (3, 32, 32), 10)
    assert pass_mode(model, CUDA) == PassMode(capture=True)
    assert pass_mode(model, CPU) == PassMode(workers=torch.get_num_threads())
    assert not layers_draw(model)


@pytest.mark.parametrize("model", [Own(), nn.Sequential(nn.Linear(2, 2), Own()), _hooked()])
def test_unknown_code_is_run_as_it_is(model: nn.Module) -> None:
    assert pass_mode(model, CPU) == pass_mode(model, CUDA) == ONE_BY_ONE
    assert layers_draw(model)


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.Dropout2d(), nn.RReLU(), nn.MultiheadAttention(4, 2, dropout=0.1)])
def test_layers_that_draw_do_not_share_the_generator_between_threads(layer: nn.Module) -> None:
    assert pass_mode(nn.Sequential(nn.Linear(4, 4), layer), CPU) == ONE_BY_ONE
    assert layers_draw(nn.Sequential(nn.Linear(4, 4), layer))


@pytest.mark.parametrize("spread", [UniformSpread((4,)), LearnedSpread((4,)), RandomSpread((4,), 0.5)])
def test_noise_layers_draw_and_can_be_recorded(spread: Spread) -> None:
    model = add_noise(
        nn.Sequential(nn.Linear(4, 4)), (4,), Place.FIRST_LAYER, lambda s: NoiseLayer(s, Law.GAUSSIAN, 0.1, spread)
    )
    assert layers_draw(model)
    assert pass_mode(model, CPU) == ONE_BY_ONE
    assert pass_mode(model, CUDA) == PassMode(capture=True)


def replaced() -> nn.Module:
    """A layer of torch with a forward pass of somebody else's."""
    model = nn.Sequential(nn.Linear(4, 4))
    honest = model[0].forward
    model[0].forward = lambda rows: honest(rows - rows.mean(0))
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_full_backward_hook(lambda *_: None)
    return model


def with_foreign_function() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 1, 8, activation=lambda values: values - values.mean(0))


@pytest.mark.parametrize("make", [replaced, hooked, with_foreign_function])
def test_code_of_somebody_else_inside_a_layer_of_torch_is_not_known(make: Callable[[], nn.Module]) -> None:
    assert not is_known(make())
    assert is_known(nn.TransformerEncoderLayer(4, 1, 8, activation=nn.functional.gelu))
