"""What would be left out of a certificate is refused: hooks, other classes or scales, and every later change of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from twinproof.certification.method import Sampling
from twinproof.certification.noise_site import AsSmoothed
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise, add_two_noises

SHAPE = (6,)
INPUTS = np.full((2, 6), 128, dtype=np.uint8)


def _noise(shape: tuple[int, ...], law: Law) -> NoiseLayer:
    return NoiseLayer(shape, law, 0.5, UniformSpread(shape))


def _network(kind: str) -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    if kind == "both":
        return add_two_noises(layers, SHAPE, _noise(SHAPE, Law.LAPLACE), lambda shape: _noise(shape, Law.LAPLACE))
    return add_noise(layers, SHAPE, Place(kind), lambda shape: _noise(shape, Law.GAUSSIAN))


def _certified(smoothed: SmoothedClassifier) -> int:
    return len(smoothed.certify(INPUTS, sampling=Sampling(10, 60), key=Key.from_seed(1)))


def _find(network: nn.Module, kind: type[nn.Module]) -> tuple[nn.Module, str, nn.Module]:
    """The last module of that kind: who holds it, its name there, and itself."""
    path = [path for path, part in network.named_modules() if type(part) is kind][-1]
    parent, _, name = path.rpartition(".")
    return network.get_submodule(parent), name, network.get_submodule(path)


def _replaced(network: nn.Module, kind: type[nn.Module], new: nn.Module) -> None:
    parent, name, _ = _find(network, kind)
    setattr(parent, name, new)


class Louder(nn.Tanh):
    """Another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


def _another_class(network: nn.Module) -> None:
    _find(network, nn.Tanh)[2].__class__ = Louder


def _first_weight(network: nn.Module) -> None:
    first = next(part for part in network.modules() if type(part) is nn.Linear)
    with torch.no_grad():
        first.weight[0, 0] += 1


def _replaced_forward(network: nn.Module) -> None:
    part = _find(network, NoiseLayer)[2]
    part.forward = lambda x: x


def _deviation(network: nn.Module) -> None:
    layer = _find(network, NoiseLayer)[2]
    assert isinstance(layer, NoiseLayer)
    layer.set_deviation(0.25)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "what follows is replaced": lambda network: _replaced(network, nn.Tanh, nn.ReLU()),
    "noise is replaced": lambda network: _replaced(network, NoiseLayer, nn.Identity()),
    "one more": lambda network: network.append(nn.Softmax(1)),  # type: ignore[operator]
    "another class": _another_class,
    "another deviation": _deviation,
    "another forward": _replaced_forward,
    "hook on all": lambda network: network.register_forward_hook(lambda *what: None),
    "hook before noise": lambda network: _find(network, NoiseLayer)[2].register_forward_pre_hook(lambda *what: None),
    "hook on the spread": lambda network: _find(network, UniformSpread)[2].register_forward_hook(lambda *what: None),
}
BEHIND_A_LAYER: dict[str, Callable[[nn.Module], object]] = {
    "first layer is replaced": lambda network: _replaced(network, nn.Flatten, nn.Flatten()),
    "other weights": _first_weight,
    "hook on flatten": lambda network: _find(network, nn.Flatten)[2].register_forward_hook(lambda *what: None),
}
CASES = [(kind, name) for kind in ("input", "first-layer", "both") for name in CHANGES]


CASES += [(kind, name) for kind in ("first-layer", "both") for name in BEHIND_A_LAYER]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_changed_network_is_refused(kind: str, name: str) -> None:
    network = _network(kind)
    smoothed = smooth(network)
    assert _certified(smoothed) == 2
    (CHANGES | BEHIND_A_LAYER)[name](network)
    with pytest.raises(ModelError, match="changed after it was smoothed"):
        _certified(smoothed)
    with pytest.raises(ModelError, match="changed after it was smoothed"):
        smoothed.base_for(INPUTS, Sampling())


def test_a_planted_check_of_nothing_lets_a_replaced_module_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check is for: the votes are those of the module that is no longer there."""
    network = _network("first-layer")
    smoothed = smooth(network)
    monkeypatch.setattr(AsSmoothed, "refuse_changes", lambda self: None)
    before = smoothed.certify(INPUTS, sampling=Sampling(10, 60), key=Key.from_seed(1))
    _replaced(network, nn.Tanh, Louder())
    assert smoothed.certify(INPUTS, sampling=Sampling(10, 60), key=Key.from_seed(1)) == before


@contextmanager
def _global_hook(before: bool) -> Iterator[None]:
    handle = (register_module_forward_pre_hook if before else register_module_forward_hook)(lambda *what: None)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["first-layer", "plain"])
def test_hooks_for_all_modules_are_refused(before: bool, kind: str) -> None:
    smoothed = smooth(nn.Sequential(nn.Linear(6, 3)), 0.5) if kind == "plain" else smooth(_network(kind))
    with _global_hook(before), pytest.raises(ModelError, match=r"hook would be left out(.|\n)*for all modules"):
        _certified(smoothed)
    assert _certified(smoothed) == 2


def test_a_network_whose_noise_is_added_to_it_may_change() -> None:
    """It is called as it is at the time of the certificate."""
    network = nn.Sequential(nn.Linear(6, 3))
    smoothed = smooth(network, 0.5)
    network[0] = nn.Linear(6, 3)
    assert _certified(smoothed) == 2


def test_what_stays_the_same_is_no_change() -> None:
    network = _network("both")
    smoothed = smooth(network)
    network.train()
    network.load_state_dict({name: value.clone() for name, value in network.state_dict().items()})
    assert _certified(smoothed) == 2


class Silent(NoiseLayer):
    """Adds nothing, though its deviation says otherwise."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Weaker(FixedSpread):
    """Multiplies by a hundredth of what it says."""

    def forward(self, noise: Tensor) -> Tensor:
        return super().forward(noise) / 100


class Mixing(nn.Module):
    """Adds the mean of the batch to each row, before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        answers: Tensor = self.linear(rows + 10 * rows.mean(dim=0, keepdim=True))
        return answers


def _network_apart(
    *,
    kind: type[NoiseLayer] = NoiseLayer,
    spread: Callable[[tuple[int, ...]], Spread] = UniformSpread,
    place: Place = Place.FIRST_LAYER,
    last: nn.Module | None = None,
) -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), last or nn.Linear(4, 3))
    return add_noise(layers, (6,), place, lambda shape: kind(shape, Law.GAUSSIAN, 0.5, spread(shape)))


def _weaker(shape: tuple[int, ...]) -> Spread:
    return Weaker(shape, torch.linspace(0.5, 1.5, 4 if shape == (4,) else 6).numpy())


@pytest.mark.parametrize("name", ["", "0", "noise", "noise.spread"])
@pytest.mark.parametrize("before", [True, False])
def test_hooks_that_would_be_left_out_are_refused(name: str, before: bool) -> None:
    network = _network_apart()
    module = network.get_submodule(name)
    handle = (module.register_forward_pre_hook if before else module.register_forward_hook)(lambda *what: None)
    with pytest.raises(ModelError, match="hook would be left out"):
        smooth(network)
    handle.remove()
    assert smooth(network).own_noise


def test_a_replaced_forward_is_refused() -> None:
    network = _network_apart()
    network[0].forward = lambda x: 100 * x.flatten(1)
    with pytest.raises(ModelError, match="hook would be left out"):
        smooth(network)


@pytest.mark.parametrize("place", list(Place))
def test_noise_of_another_class_is_refused(place: Place) -> None:
    with pytest.raises(ModelError, match="noise layer of another class"):
        smooth(_network_apart(kind=Silent, place=place))


@pytest.mark.parametrize("place", list(Place))
def test_scales_that_are_not_those_of_the_noise_are_refused(place: Place) -> None:
    with pytest.raises(ModelError, match="other scales than those"):
        smooth(_network_apart(spread=_weaker, place=place))


@pytest.mark.parametrize("spread", [UniformSpread, LearnedSpread, lambda shape: RandomSpread(shape, 0.3)])
def test_our_own_spreads_pass(spread: Callable[[tuple[int, ...]], Spread]) -> None:
    assert smooth(_network_apart(spread=spread)).own_noise


@pytest.mark.parametrize("spread", [UniformSpread, lambda shape: RandomSpread(shape, 0.3)], ids=["uniform", "random"])
def test_rows_that_depend_on_each_other_are_refused(spread: Callable[[tuple[int, ...]], Spread]) -> None:
    """Also where scales are drawn at random: two calls differ then, which must not hide that rows are mixed."""
    inputs = torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(1))
    settings = Sampling(10, 200)
    assert len(smooth(_network_apart(spread=spread)).certify(inputs, sampling=settings, key=Key.from_seed(1))) == 2
    with pytest.raises(ModelError, match="depends on the other inputs of the batch"):
        smooth(_network_apart(spread=spread, last=Mixing())).certify(inputs, sampling=settings, key=Key.from_seed(1))
