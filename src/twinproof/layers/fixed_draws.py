"""Noise that is drawn once and kept, as StoBatch is published.

The paper adds one draw to every input and one to the first layer's outputs, in training and (Appendix N) in inference. Behind
the layer both are one constant. A certificate sees it as what it is, a part of the network behind the noise that is drawn anew.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.noise_constraint import linear_part
from twinproof.layers.noise_placement import NOISE_NAME, TwoNoisesSplit, split_at_two_noises

PSI = 2.0
"""How many times smaller the noise drawn anew is than the one drawn once: Appendix N's psi on MNIST."""

_NAME = "fixed_draws"


class FixedDraws(nn.Module):
    """Adds W c1 + c2 to the outputs of the first layer W: the constants ``on_input`` (c1) and ``on_layer`` (c2) of all inputs.

    ``settle`` computes it; it has to be called again whenever W has changed.
    """

    def __init__(self, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("on_input", torch.zeros(input_shape))
        self.register_buffer("on_layer", torch.zeros(output_shape))
        self.register_buffer("offset", torch.zeros(output_shape))
        self.on_input: Tensor
        self.on_layer: Tensor
        self.offset: Tensor

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs + self.offset

    def settle(self, two: TwoNoisesSplit) -> None:
        """The constant for the present weights of the network that ``two`` was taken from, in place."""
        layer = two.hidden.before
        if layer is None:
            raise _missing()
        with torch.no_grad():
            one = self.on_input.unsqueeze(0)
            moved = linear_part(layer, layer.weight, one.flatten(1) if two.hidden.flattens else one)
            self.offset.copy_(moved.squeeze(0) + self.on_layer)


class FixedDrawsConstraint:
    """After each update: the constant of the fixed draws follows the weights; nothing else is held."""

    def apply(self, network: nn.Module) -> None:
        two, draws = fixed_draws_of(network)
        draws.settle(two)


def with_fixed_draws(network: nn.Module, shape: tuple[int, ...]) -> nn.Sequential:
    """``network``, which has two noises, with its fixed draws right behind them, all zero."""
    two = split_at_two_noises(network)
    if two is None:
        raise _missing()
    modules: list[tuple[str, nn.Module]] = []
    # Not named_children(), which leaves out a module that is used twice.
    for name, module in network._modules.items():
        if module is None:
            continue
        modules.append((name, module))
        if name == NOISE_NAME:
            modules.append((_NAME, FixedDraws(shape, two.hidden.noise.shape)))
    made = nn.Sequential(OrderedDict(modules))
    made.training = network.training
    return made


def fixed_draws_of(network: nn.Module) -> tuple[TwoNoisesSplit, FixedDraws]:
    """The network at its noises, and its fixed draws."""
    two = split_at_two_noises(network)
    draws = None if two is None else next(iter(two.hidden.after), None)
    if two is None or not isinstance(draws, FixedDraws):
        raise _missing()
    return two, draws


def stated_over_drawn(two: TwoNoisesSplit) -> float:
    """How many times larger the noise that a network states is than the one it draws: psi beside fixed draws, else 1."""
    return PSI if isinstance(next(iter(two.hidden.after), None), FixedDraws) else 1.0


def _missing() -> ModelError:
    wanted = "a network with noise on its input and behind its first layer, from with_fixed_draws"
    return ModelError("the network has no draws to fix", where="network", got="another network", wanted=wanted)
