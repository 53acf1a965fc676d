"""The training view of a network with two noises: the same modules, one more column, a cost that cannot fall without end."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.networks import build_network
from twinproof.layers.noise import silenced
from twinproof.layers.noise_constraint import Adjoint
from twinproof.layers.noise_placement import with_two_noises
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import FastPath
from twinproof.training.stobatch import ReconstructingView, taylor_cross_entropy, taylor_reconstruction_rows

SHAPES: list[tuple[str, tuple[int, ...]]] = [("mlp", (7,)), ("mlp", (1, 4, 4)), ("stobatch-cnn", (1, 8, 8))]
SHAPES += [("stobatch-cnn", (3, 5, 9)), ("gelu-cnn", (1, 9, 9))]


def _network(name: str, shape: tuple[int, ...]) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return with_two_noises(build_network(name, shape, 10), shape, 0.3, 0.1).train()


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_logits_are_the_networks_own_and_the_cost_is_that_of_the_transposed_layer(name: str, shape: tuple[int, ...]) -> None:
    network = _network(name, shape)
    view, rows = ReconstructingView(network), torch.rand(5, *shape, generator=torch.Generator().manual_seed(1))
    with silenced(network):
        outputs, logits = view(rows), network(rows)
    assert outputs.shape == (5, 10 + view.columns)
    assert torch.equal(outputs[:, :10], logits)
    layer = next(module for module in network if isinstance(module, nn.Linear | nn.Conv2d))
    flat = rows.flatten(1) if isinstance(layer, nn.Linear) else rows
    matrix, offset = _matrix(layer, flat.shape[1:])
    code = flat.flatten(1) @ matrix.T + offset
    again = (code @ matrix).view_as(flat)
    assert torch.allclose(outputs[:, 10], taylor_reconstruction_rows(again, flat), rtol=1e-4, atol=1e-5)


def _matrix(layer: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The layer's own matrix and offset, one unit vector at a time: shares no code with the view."""
    with torch.no_grad():
        offset = layer(torch.zeros(1, *shape)).flatten()
        units = torch.eye(math.prod(shape)).view(-1, *shape)
        return (layer(units).flatten(1) - offset).T, offset


def test_an_untied_or_shifted_decoder_is_seen() -> None:
    """Planted: transposes that forget the stride's remainder, or use the wrong layer."""
    layer, inputs = nn.Conv2d(1, 4, 5, stride=2, padding=2), torch.rand(2, 1, 8, 8)
    matrix, _ = _matrix(layer, inputs.shape[1:])
    code = torch.rand(2, 4, 4, 4)
    right = (code.flatten(1) @ matrix).view_as(inputs)
    assert torch.allclose(Adjoint(layer)(code, inputs), right, atol=1e-5)
    forgotten = nn.functional.conv_transpose2d(code, layer.weight, stride=2, padding=2, output_padding=0)
    assert forgotten.shape != right.shape
    other = nn.Conv2d(1, 4, 5, stride=2, padding=2)
    assert not torch.allclose(Adjoint(other)(code, inputs), right, atol=1e-2)


def test_parameters_have_the_networks_names_and_nothing_is_added_to_it() -> None:
    network = _network("stobatch-cnn", (1, 8, 8))
    state = {name: value.clone() for name, value in network.state_dict().items()}
    view = ReconstructingView(network)
    assert dict(view.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert all(one is other for one, other in zip(view.parameters(), network.parameters(), strict=True))
    assert list(view.state_dict()) == list(state)
    assert network(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    twin = copy.deepcopy(view)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(twin(torch.rand(2, 1, 8, 8))[:, :10], torch.zeros(2, 10)), "a copy uses its own modules"
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())


def test_one_draw_serves_logits_and_reconstruction_and_rows_do_not_meet() -> None:
    view, rows = ReconstructingView(_network("mlp", (7,))), torch.rand(3, 7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = view(rows)
        torch.manual_seed(1)
        second = view(torch.cat([rows[:1], 1 - rows[1:]]))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1:], second[1:])


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_tied_weights_are_taken_by_the_fast_path(name: str, shape: tuple[int, ...]) -> None:
    """Proven there on a trial against the vmap path, in float64."""

    def loss(outputs: Tensor, label: Tensor) -> Tensor:
        return taylor_cross_entropy(outputs[:, :-1], label) + outputs[:, -1].mean()

    assert isinstance(choose_path(ReconstructingView(_network(name, shape)), loss, shape, 11, copies=2), FastPath)


@pytest.mark.parametrize("network", [nn.Sequential(nn.Linear(3, 2)), nn.Linear(3, 2)])
def test_a_network_without_two_noises_is_refused(network: nn.Module) -> None:
    with pytest.raises(ModelError, match="trained as an auto-encoder"):
        ReconstructingView(network)


def cannot_fall_without_end(cost: object) -> bool:
    """Weights that grow: the cost of reconstructing a bright input stays above its bound."""
    inputs, code = torch.full((1, 6), 0.9), torch.ones(1, 6)
    assert callable(cost)
    values = [float(cost(scale * code, inputs).sum()) for scale in (1.0, 10.0, 100.0, 1000.0)]
    return all(value >= math.log(2) - 0.5 for value in values)


def test_the_second_order_cost_is_bounded_and_the_papers_is_not() -> None:
    assert cannot_fall_without_end(taylor_reconstruction_rows)
    assert not cannot_fall_without_end(lambda z, x: (math.log(2) + (0.5 - x) * z).flatten(1).sum(1).mean())


@pytest.mark.parametrize("logit", [-2.0, -0.5, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_the_cost_is_the_exact_one_but_for_the_fourth_order(logit: float, value: float) -> None:
    z, x = torch.full((1, 3), logit, dtype=torch.float64), torch.full((1, 3), value, dtype=torch.float64)
    gap = float(taylor_reconstruction_rows(z, x)) - (math.log1p(math.exp(logit)) - value * logit)
    assert -1e-12 <= gap <= logit**4 / 192 + 1e-12
    least = math.log(2) - 2 * (value - 0.5) ** 2
    assert float(taylor_reconstruction_rows(z, x)) >= least - 1e-12
    assert float(taylor_reconstruction_rows(4 * x - 2, x)) == pytest.approx(least)
