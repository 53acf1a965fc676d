"""Noise goes where it can be certified, the network's names stay, and what cannot be certified is refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread, silenced
from twinproof.layers.noise_placement import add_noise, add_two_noises, split_at_noise, split_at_two_noises, with_two_noises

IMAGE = (1, 28, 28)


def _layer(shape: tuple[int, ...]) -> NoiseLayer:
    return NoiseLayer(shape, Law.GAUSSIAN, 0.5, UniformSpread(shape))


@pytest.mark.parametrize(
    ("name", "place", "shape"),
    [
        ("mlp", Place.INPUT, IMAGE),
        ("mlp", Place.FIRST_LAYER, (64,)),
        ("small-cnn", Place.INPUT, IMAGE),
        ("small-cnn", Place.FIRST_LAYER, (16, 28, 28)),
        ("tramer-boneh-cnn", Place.FIRST_LAYER, (16, 13, 13)),
    ],
)
def test_names_modules_and_answers_are_kept(name: str, place: Place, shape: tuple[int, ...]) -> None:
    network = build_network(name, IMAGE, 10)
    noisy = add_noise(network, IMAGE, place, _layer)
    assert [(path, id(value)) for path, value in noisy.named_parameters()] == [
        (path, id(value)) for path, value in network.named_parameters()
    ]
    assert set(noisy.state_dict()) == {*network.state_dict(), "noise.deviation"}
    inputs = torch.rand(3, *IMAGE)
    with silenced(noisy):
        assert torch.equal(noisy(inputs), network(inputs))
    assert not torch.allclose(noisy(inputs), network(inputs))
    split = split_at_noise(noisy)
    assert split is not None
    assert (split.place, split.noise.shape) == (place, shape)
    assert split.flattens == (name == "mlp" and place is Place.FIRST_LAYER)
    hidden = inputs if split.before is None else split.before(inputs.flatten(1) if split.flattens else inputs)
    torch.manual_seed(1)
    by_parts = split.after(split.noise(hidden))
    torch.manual_seed(1)
    assert torch.equal(by_parts, noisy(inputs))


def test_own_names_and_modes_are_kept() -> None:
    frozen = nn.Tanh().eval()
    network = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), act=frozen, last=nn.Linear(4, 2)))
    noisy = add_noise(network, (3,), "first-layer", _layer)
    assert list(noisy._modules) == ["first", "noise", "act", "last"]
    assert [module.training for module in (noisy, *noisy)] == [True, True, True, False, True]
    split = split_at_noise(noisy)
    assert split is not None
    assert list(split.after._modules) == ["act", "last"]
    assert split.after.training
    assert list(network._modules) == ["first", "act", "last"], "the given network is left alone"


def test_a_module_that_is_used_twice_stays_so() -> None:
    shared = nn.Tanh()
    noisy = add_noise(nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 3), shared), (3,), Place.FIRST_LAYER, _layer)
    split = split_at_noise(noisy)
    assert len(noisy) == 5
    assert split is not None
    assert len(split.after) == 3


class Own(nn.Sequential):
    """A Sequential that does something else."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * len(self)


class OwnLinear(nn.Linear):
    """A linear layer that may not be one."""


NOT_LINEAR: dict[str, Callable[[], nn.Module]] = {
    "nonlinear first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(3, 3)),
    "a subclass": lambda: nn.Sequential(OwnLinear(3, 3)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 3))),
    "circular padding": lambda: nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")),
    "two flattenings": lambda: nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Linear(3, 3)),
    "an odd flattening": lambda: nn.Sequential(nn.Flatten(0), nn.Linear(3, 3)),
    "nothing": lambda: nn.Sequential(),
    "only a flattening": lambda: nn.Sequential(nn.Flatten()),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_before_the_noise_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="a layer that is not linear"):
        add_noise(NOT_LINEAR[name](), (3,), Place.FIRST_LAYER, _layer)


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        (nn.Linear(3, 3), (3,), "between the modules of a Sequential"),
        (Own(nn.Linear(3, 3)), (3,), "between the modules of a Sequential"),
        (nn.Sequential(nn.Linear(3, 3)), (4,), "first layer does not fit the input"),
        (nn.Sequential(nn.Linear(3, 3)), (2, 3), "first layer does not fit the input"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 2, 2), "first layer does not fit the input"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), (9,), "first layer does not fit the input"),
        (add_noise(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), (3,), Place.INPUT, _layer), (3,), "has noise already"),
    ],
)
def test_networks_that_take_no_noise_are_refused(network: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        add_noise(network, shape, Place.FIRST_LAYER, _layer)


TWICE = _layer((3,))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Tanh(), _layer((3,))), "not where it can be certified"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 3), _layer((3,)))), "not where it can be certified"),
        (nn.Sequential(nn.Tanh(), _layer((3,))), "a layer that is not linear"),
        (nn.ModuleDict({"noise": _layer((3,))}), "between the modules of a Sequential"),
        (nn.Sequential(_layer((3,)), nn.Linear(3, 3), _layer((3,))), "more than one noise layer"),
        (nn.Sequential(TWICE, nn.Linear(3, 3), TWICE), "more than one noise layer"),
    ],
)
def test_noise_elsewhere_is_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        split_at_noise(network)


def test_networks_with_fewer_noises_have_no_split() -> None:
    for network in (build_network("mlp", IMAGE, 10), nn.Linear(2, 2)):
        assert split_at_noise(network) is None
        assert split_at_two_noises(network) is None
    assert split_at_two_noises(nn.Sequential(_layer((2,)), nn.Linear(2, 2))) is None


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


def test_each_pass_draws_both() -> None:
    network = add_two_noises(nn.Sequential(nn.Linear(1, 1, bias=False)), (1,), _noise((1,)), lambda shape: _noise(shape, 2.0))
    with torch.no_grad():
        next(network[1].parameters()).fill_(1.0)
        torch.manual_seed(0)
        drawn = network(torch.zeros(200_000, 1)).double()
    # Variances of Lap(1) and Lap(2) add up to 2 + 8; six standard errors of the sample variance are below 0.4.
    assert float(drawn.var()) == pytest.approx(10, abs=0.4)
    assert len(drawn.unique()) > 150_000


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(_noise((2,)), _noise((2,)), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), _noise((2,)), nn.Linear(2, 2), _noise((2,))),
        nn.Sequential(_noise((2,)), nn.Linear(2, 2), _noise((2,)), nn.ReLU(), _noise((2,))),
        nn.Sequential(nn.Sequential(_noise((2,)), nn.Linear(2, 2), _noise((2,)))),
        nn.Sequential(_noise((2,)), nn.Linear(2, 2), nn.ReLU(), _noise((2,))),
    ],
)
def test_two_noises_elsewhere_are_refused(network: nn.Sequential) -> None:
    with pytest.raises(ModelError, match="not where it can be certified"):
        split_at_two_noises(network)


def test_a_network_with_equal_noise_at_both_places() -> None:
    network = with_two_noises(nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(12, 2)), (1, 3, 3), 0.25, 0.5)
    split = split_at_two_noises(network)
    assert split is not None
    assert (float(split.input_noise.deviation), float(split.hidden.noise.deviation)) == (0.25, 0.5)
    assert (split.input_noise.shape, split.hidden.noise.shape) == ((1, 3, 3), (3, 2, 2))
    with pytest.raises(ModelError, match="more than one noise layer"):
        split_at_noise(network)
    with pytest.raises(ModelError, match="does not have its shape"):
        add_two_noises(nn.Sequential(nn.Linear(4, 2)), (4,), _noise((2, 2)), _noise)
