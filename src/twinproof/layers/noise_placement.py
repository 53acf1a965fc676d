"""Putting one or two noise layers into a network, and finding them again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, UniformSpread

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
FirstLayer = nn.Linear | Convolution
FIRST_LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose operator norm is known; matched exactly, since a subclass may compute something else."""

NOISE_NAME = "noise"
"""What the noise layer is called among the modules of the network."""

Named = tuple[str, nn.Module]


@dataclass(frozen=True, eq=False)
class NoiseSplit:
    """A network as after(noise(before(x))), made of the network's own modules.

    ``before`` is the first linear or convolution layer, or None where the noise is at the input; ``flattens`` says that the
    input is flattened before it.
    """

    before: FirstLayer | None
    flattens: bool
    noise: NoiseLayer
    after: nn.Sequential

    @property
    def place(self) -> Place:
        return Place.INPUT if self.before is None else Place.FIRST_LAYER


def add_noise(
    network: nn.Module, input_shape: tuple[int, ...], place: Place | str, layer_factory: Callable[[tuple[int, ...]], NoiseLayer]
) -> nn.Sequential:
    """A new Sequential of the same modules with one more, called ``noise``; ``layer_factory`` makes it for a given shape.

    ``network`` itself is not changed; modules and names of parameters are kept. What is not linear before the noise is refused.
    """
    modules = _children(network)
    if NOISE_NAME in dict(modules) or _noise_paths(network):
        raise ModelError("the network has noise already", where=NOISE_NAME, got="a second noise layer", wanted="one")
    if Place(place) is Place.INPUT:
        position, shape = 0, tuple(input_shape)
    else:
        flattens, layer = _first_layer(modules)
        position, shape = int(flattens) + 1, _output_shape(layer, input_shape, flattens)
    noise: Named = (NOISE_NAME, layer_factory(shape))
    return _sequential([*modules[:position], noise, *modules[position:]], network.training)


def split_at_noise(network: nn.Module) -> NoiseSplit | None:
    """The parts of a network with one noise layer where ``add_noise`` puts it; None for a network without.

    Two noise layers, or one anywhere else, are refused: noise behind a layer that is not linear certifies nothing here.
    """
    found = _noise_paths(network)
    if not found:
        return None
    if len(found) > 1:
        raise ModelError("the network has more than one noise layer", where=", ".join(found), got=len(found), wanted="one")
    modules = _children(network)
    position = next((number for number, (_, module) in enumerate(modules) if isinstance(module, NoiseLayer)), None)
    noise = None if position is None else modules[position][1]
    if position is None or not isinstance(noise, NoiseLayer):
        raise _misplaced(found, "a noise layer inside another module")
    after = _sequential(modules[position + 1 :], network.training)
    if position == 0:
        return NoiseSplit(None, False, noise, after)
    flattens, layer = _first_layer(modules)
    if position != int(flattens) + 1:
        raise _misplaced(found, f"a noise layer behind {position} other modules")
    return NoiseSplit(layer, flattens, noise, after)


def _noise_paths(network: nn.Module) -> list[str]:
    """Where the noise layers are; a layer that is used twice adds noise twice."""
    modules = network.named_modules(remove_duplicate=False)
    return [path for path, module in modules if isinstance(module, NoiseLayer)]


def _children(network: nn.Module) -> list[Named]:
    if not isinstance(network, nn.Sequential) or type(network).forward is not nn.Sequential.forward:
        raise ModelError(
            "noise can only be put between the modules of a Sequential",
            where="network",
            got=type(network).__name__,
            wanted="torch.nn.Sequential",
            fix="write the network as a Sequential whose first layer is a linear or convolution layer",
        )
    # Not named_children(), which leaves out a module that is used twice.
    return list(network._modules.items())


def _sequential(modules: Iterable[Named], training: bool) -> nn.Sequential:
    made = nn.Sequential(OrderedDict(modules))
    made.training = training  # not train(), which would overrule the modules' own modes
    return made


def _first_layer(modules: list[Named]) -> tuple[bool, FirstLayer]:
    """Whether the network begins by flattening its input, and the linear or convolution layer that follows."""
    kinds = [module for _, module in modules]
    flattens = bool(kinds) and type(kinds[0]) is nn.Flatten and (kinds[0].start_dim, kinds[0].end_dim) == (1, -1)
    layer = kinds[int(flattens)] if len(kinds) > int(flattens) else None
    plain = type(layer) in FIRST_LAYERS and getattr(layer, "padding_mode", "zeros") == "zeros"
    if not plain or not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise ModelError(
            "the network begins with a layer that is not linear",
            where=modules[int(flattens)][0] if layer is not None else "network",
            got="no layer" if layer is None else str(layer),
            wanted=" or ".join(kind.__name__ for kind in FIRST_LAYERS) + " (zero padding), with a Flatten before it at most",
            fix="put the noise at the input, or begin the network with such a layer",
        )
    return flattens, layer


def _output_shape(layer: FirstLayer, input_shape: tuple[int, ...], flattens: bool) -> tuple[int, ...]:
    """The shape of one output, found by one input of zeros."""
    probe = layer.weight.new_zeros((1, *input_shape))
    if flattens:
        probe = probe.flatten(1)
    axes = 1 if isinstance(layer, nn.Linear) else len(layer.kernel_size) + 1
    try:
        if probe.dim() != axes + 1:
            raise RuntimeError(f"{axes} axes wanted")
        with torch.no_grad():
            return tuple(layer(probe).shape[1:])
    except RuntimeError as error:
        raise ModelError(
            "the first layer does not fit the input",
            where=str(layer),
            got=f"inputs of shape {tuple(input_shape)}",
            wanted="the shape that the layer was made for",
            fix="begin with Flatten() where a linear layer gets images",
        ) from error


def _misplaced(paths: list[str], got: str) -> ModelError:
    return ModelError(
        "the noise is not where it can be certified",
        where=", ".join(paths),
        got=got,
        wanted="noise at the input of a Sequential, right behind its first linear or convolution layer, or at both places",
        fix="make the network with add_noise or add_two_noises of twinproof.layers.noise_placement",
    )


BOTH_PLACES = "input-and-first-layer"
"""The place of such noise, where a record says it: no choice of a single noise layer, which has one ``Place``."""

UNEQUAL_INPUT = "unequal-input"
"""The place, where a record says it, of noise at the input whose scales are not all 1, or are drawn for every row."""

INPUT_NOISE_NAME = "input_noise"
"""What the noise on the input is called among the modules of a network that has noise behind its first layer too."""


@dataclass(frozen=True, eq=False)
class TwoNoisesSplit:
    """A network as after(noise(before(input_noise(x)))): ``hidden`` has all but the noise on the input."""

    input_noise: NoiseLayer
    inner: nn.Sequential
    hidden: NoiseSplit


def add_two_noises(
    network: nn.Module,
    input_shape: tuple[int, ...],
    input_noise: NoiseLayer,
    layer_factory: Callable[[tuple[int, ...]], NoiseLayer],
) -> nn.Sequential:
    """A new Sequential of the same modules with ``input_noise`` before them and ``noise`` behind the first layer.

    Each layer draws for every row and call, so that one pass holds fresh draws of both.
    """
    inner = add_noise(network, input_shape, Place.FIRST_LAYER, layer_factory)
    if input_noise.shape != tuple(input_shape):
        what, wanted = "the noise on the input does not have its shape", str(tuple(input_shape))
        raise ModelError(what, where=INPUT_NOISE_NAME, got=input_noise.shape, wanted=wanted)
    return _sequential([(INPUT_NOISE_NAME, input_noise), *_children(inner)], network.training)


def split_at_two_noises(network: nn.Module) -> TwoNoisesSplit | None:
    """The parts of a network with noise where ``add_two_noises`` puts it; None for one with fewer noise layers than two.

    A network with two noise layers elsewhere, or with more of them, is refused: nothing is certified for those.
    """
    found = _noise_paths(network)
    if len(found) < 2:
        return None
    modules = _children(network) if type(network) is nn.Sequential else [("", network)]
    first, inner = modules[0][1], nn.Sequential(OrderedDict(modules[1:]))
    hidden = split_at_noise(inner) if isinstance(first, NoiseLayer) and len(found) == 2 else None
    if hidden is None or hidden.before is None or not isinstance(first, NoiseLayer):
        raise _misplaced(found, f"{len(found)} noise layers")
    return TwoNoisesSplit(first, inner, hidden)


class RedistributionKind(StrEnum):
    """Where the redistribution vector r comes from: which share of the noise each output gets."""

    UNIFORM = "uniform"  # equal shares
    RANDOM = "random"  # drawn with every noise
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
