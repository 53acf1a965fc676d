"""Keeps the noises of a network that has two of them in proportion: to its input, and to its first layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.noise.constraint import Constraint
from twinproof.layers.noise.norm_estimate import identity_norm
from twinproof.layers.noise.two_noises import split_at_two_noises


@dataclass(frozen=True)
class TwoNoisesConstraint:
    """After each update: the noise on the input at ``sigma`` times the input's own norm, that behind the layer by ``layer``.

    Guarantees
        Those of ``Constraint``: a function of the present weights alone, which no certificate rests on.
    """

    sigma: float
    layer: Constraint

    def apply(self, network: nn.Module) -> None:
        """Restores both proportions; call it before the first step too."""
        two = split_at_two_noises(network)
        if two is None:
            raise ModelError("the network does not have two noises", where="network", got="fewer", wanted="add_two_noises")
        ones = two.input_noise.spread.least()
        two.input_noise.set_deviation(self.sigma * identity_norm(ones, self.layer.norm, self.layer.law))
        self.layer.apply(two.inner)
