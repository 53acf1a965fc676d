"""A network with its noise layer, so that a run's weights can be loaded again from its settings alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from torch import nn

from twinproof.layers.noise import (
    FixedSpread,
    Law,
    LearnedSpread,
    NoiseLayer,
    Place,
    RandomSpread,
    Spread,
    UniformSpread,
    add_noise,
    add_two_noises,
)


class RedistributionKind(StrEnum):
    """Where the redistribution vector r comes from: which share of the noise each output gets."""

    UNIFORM = "uniform"  # equal shares
    RANDOM = "random"  # drawn anew with every noise
    PUBLIC = "public"  # from gradients of public records
    TRAINING = "training"  # from gradients of the training records
    LEARNED = "learned"  # trained with the other weights


@dataclass(frozen=True)
class NoiseForm:
    """What decides the modules of a noise layer; its numbers (deviation, scales) are stored with the weights."""

    place: Place
    law: Law
    redistribution: RedistributionKind
    floor: float
    width: float


def with_noise(network: nn.Module, shape: tuple[int, ...], form: NoiseForm, deviation: float) -> nn.Sequential:
    """``network`` with a noise layer; its own modules and the names of its parameters stay. Fixed shares begin equal."""

    def layer(outputs: tuple[int, ...]) -> NoiseLayer:
        return NoiseLayer(outputs, form.law, deviation, _spread(form, outputs))

    return add_noise(network, shape, form.place, layer)


def with_two_noises(
    network: nn.Module, shape: tuple[int, ...], input_deviation: float, hidden_deviation: float, law: Law = Law.LAPLACE
) -> nn.Sequential:
    """``network`` with equal noise on its input and behind its first layer; its modules and the names of its weights stay."""
    on_input = NoiseLayer(shape, law, input_deviation, UniformSpread(shape))
    return add_two_noises(
        network, shape, on_input, lambda outputs: NoiseLayer(outputs, law, hidden_deviation, UniformSpread(outputs))
    )


def _spread(form: NoiseForm, outputs: tuple[int, ...]) -> Spread:
    match form.redistribution:
        case RedistributionKind.UNIFORM:
            return UniformSpread(outputs)
        case RedistributionKind.RANDOM:
            return RandomSpread(outputs, form.width)
        case RedistributionKind.LEARNED:
            return LearnedSpread(outputs, floor=form.floor)
        case RedistributionKind.PUBLIC | RedistributionKind.TRAINING:
            return FixedSpread(outputs, np.ones(math.prod(outputs)))
