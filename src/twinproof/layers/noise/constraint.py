"""Keeps a layer and the noise behind it in proportion while the weights are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.noise.law import Law
from twinproof.layers.noise.norm_estimate import SOURCES, estimated_norm, identity_norm, largest_input
from twinproof.layers.noise.parseval import parseval_steps
from twinproof.layers.noise.placement import FirstLayer, NoiseSplit, split_at_noise


class WeightRule(StrEnum):
    """What gives way when the layer's norm grows: the weights, or the noise."""

    PROJECT = "project"
    MEASURE = "measure"
    PARSEVAL = "parseval"


@dataclass(frozen=True)
class Constraint:
    """After each update: deviation and norm of the layer in the proportion ``sigma``, for inputs measured in ``norm``.

    PROJECT shrinks the layer, weight and bias alike, until its estimated norm is at most the identity's (1 from l1 and l2,
    the root of the input's size from linf to l2), so that activations stay of the size that networks are made for; the
    deviation is sigma times that. MEASURE leaves the layer and makes the deviation sigma times its estimated norm. PARSEVAL
    takes PixelDP's Parseval steps and then projects. With noise at the input there are no weights to hold.
    ``input_shape`` (of the network) sharpens the estimate for a convolution whose stride does not divide its input.

    Guarantees
        A function of the network's present weights alone: nothing is drawn or remembered, so that a resumed run does the
        same, and no privacy is spent where the weights are private already. Works in place and never waits for a device.
        No certificate rests on the estimate: these are measured again, with bounds that hold, on the final weights.
    """

    rule: WeightRule
    norm: str
    law: Law
    sigma: float
    input_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.norm not in SOURCES:
            raise ConfigError("unknown norm", where="norm", got=self.norm, wanted=", ".join(SOURCES))
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ConfigError("sigma is not usable", where="sigma", got=self.sigma, wanted="finite, not negative")

    def apply(self, network: nn.Module) -> None:
        """Restores the proportion; call it before the first step too."""
        split = split_at_noise(network)
        if split is None:
            raise ModelError("the network has no noise layer", where="network", got="none", wanted="one, from add_noise")
        with torch.no_grad():
            if split.before is None:
                split.noise.set_deviation(self.sigma * identity_norm(split.noise.spread.least(), self.norm, self.law))
                return
            if self.rule is WeightRule.MEASURE:
                split.noise.set_deviation(self.sigma * self._estimate(split, split.before).double())
                return
            if self.rule is WeightRule.PARSEVAL:
                parseval_steps(split.before)
            inputs = math.prod(self._input_shape(split, split.before))
            allowed = identity_norm(torch.ones(inputs), self.norm, self.law).item()
            _shrink(split.before, self._estimate(split, split.before) / allowed)
            split.noise.set_deviation(self.sigma * allowed)

    def _input_shape(self, split: NoiseSplit, layer: FirstLayer) -> tuple[int, ...]:
        """Of the layer; without ``input_shape`` that of the largest input which gives such outputs."""
        if self.input_shape is None:
            return largest_input(layer, split.noise.shape)
        return (math.prod(self.input_shape),) if split.flattens else self.input_shape

    def _estimate(self, split: NoiseSplit, layer: FirstLayer) -> Tensor:
        shape = self._input_shape(split, layer)
        return estimated_norm(layer, split.noise.spread.least(), split.noise.shape, self.norm, self.law, shape)


def _shrink(layer: FirstLayer, excess: Tensor) -> None:
    """Divides the whole affine function by ``excess`` where that is above 1: its output shrinks, its shape stays."""
    factor = excess.clamp(min=1).reciprocal()
    layer.weight.mul_(factor)
    if layer.bias is not None:
        layer.bias.mul_(factor)
