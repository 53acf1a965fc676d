"""Whatever would be left out of a certificate is refused: hooks, classes of their own, scales that are not the ones used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise


class Silent(NoiseLayer):
    """Adds nothing, though its deviation says otherwise."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The inputs."""
        return inputs


class Weaker(FixedSpread):
    """Multiplies by a hundredth of what it says."""

    def forward(self, noise: Tensor) -> Tensor:
        """Nearly nothing."""
        return super().forward(noise) / 100


class Mixing(nn.Module):
    """Adds the mean of the batch to each row, before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        """Answers that depend on the other rows."""
        answers: Tensor = self.linear(rows + 10 * rows.mean(dim=0, keepdim=True))
        return answers


def _network(
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
    network = _network()
    module = network.get_submodule(name)
    handle = (module.register_forward_pre_hook if before else module.register_forward_hook)(lambda *what: None)
    with pytest.raises(ModelError, match="hook would be left out"):
        smooth(network)
    handle.remove()
    assert smooth(network).own_noise


def test_a_replaced_forward_is_refused() -> None:
    network = _network()
    network[0].forward = lambda x: 100 * x.flatten(1)
    with pytest.raises(ModelError, match="hook would be left out"):
        smooth(network)


@pytest.mark.parametrize("place", list(Place))
def test_noise_of_another_class_is_refused(place: Place) -> None:
    with pytest.raises(ModelError, match="noise layer of another class"):
        smooth(_network(kind=Silent, place=place))


@pytest.mark.parametrize("place", list(Place))
def test_scales_that_are_not_those_of_the_noise_are_refused(place: Place) -> None:
    with pytest.raises(ModelError, match="other scales than those"):
        smooth(_network(spread=_weaker, place=place))


@pytest.mark.parametrize("spread", [UniformSpread, LearnedSpread, lambda shape: RandomSpread(shape, 0.3)])
def test_our_own_spreads_pass(spread: Callable[[tuple[int, ...]], Spread]) -> None:
    assert smooth(_network(spread=spread)).own_noise


@pytest.mark.parametrize("spread", [UniformSpread, lambda shape: RandomSpread(shape, 0.3)], ids=["uniform", "random"])
def test_rows_that_depend_on_each_other_are_refused(spread: Callable[[tuple[int, ...]], Spread]) -> None:
    """Also where scales are drawn at random: two calls differ then, which must not hide that rows are mixed."""
    inputs = torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(1))
    settings = Sampling(10, 200)
    assert len(smooth(_network(spread=spread)).certify(inputs, sampling=settings, key=Key.from_seed(1))) == 2
    with pytest.raises(ModelError, match="depends on the other inputs of the batch"):
        smooth(_network(spread=spread, last=Mixing())).certify(inputs, sampling=settings, key=Key.from_seed(1))
