"""Noise at two places of one network: on its input, and behind its first linear or convolution layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.noise.law import Place
from twinproof.layers.noise.noise_layer import NoiseLayer
from twinproof.layers.noise.placement import NoiseSplit, add_noise, split_at_noise

BOTH_PLACES = "input-and-first-layer"
"""The place of such noise, where a record says it: no choice of a single noise layer, which has one ``Place``."""

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

    Guarantees
        Those of ``add_noise``; ``split_at_two_noises`` finds both again. Each layer draws anew for every row and call, so that
        one pass holds fresh draws of both.
    """
    inner = add_noise(network, input_shape, Place.FIRST_LAYER, layer_factory)
    if input_noise.shape != tuple(input_shape):
        raise ModelError(
            "the noise on the input does not have its shape",
            where=INPUT_NOISE_NAME,
            got=input_noise.shape,
            wanted=str(tuple(input_shape)),
        )
    made = nn.Sequential(OrderedDict([(INPUT_NOISE_NAME, input_noise), *_children(inner)]))
    made.training = network.training  # not train(), which would overrule the modules' own modes
    return made


def split_at_two_noises(network: nn.Module) -> TwoNoisesSplit | None:
    """The parts of a network with noise where ``add_two_noises`` puts it; None for one with fewer noise layers than two.

    Guarantees
        A network with two noise layers elsewhere, or with more of them, is refused: nothing is certified for those.
    """
    found = [path for path, module in network.named_modules(remove_duplicate=False) if isinstance(module, NoiseLayer)]
    if len(found) < 2:
        return None
    modules = _children(network)
    first = modules[0][1] if type(network) is nn.Sequential else None
    if len(found) > 2 or not isinstance(first, NoiseLayer):
        raise _misplaced(found)
    inner = nn.Sequential(OrderedDict(modules[1:]))
    hidden = split_at_noise(inner)
    if hidden is None or hidden.before is None:
        raise _misplaced(found)
    return TwoNoisesSplit(first, inner, hidden)


def _children(network: nn.Module) -> list[tuple[str, nn.Module]]:
    # Not named_children(), which leaves out a module that is used twice.
    return [(name, module) for name, module in network._modules.items() if module is not None]


def _misplaced(found: list[str]) -> ModelError:
    return ModelError(
        "several noise layers are not where they can be certified",
        where=", ".join(found),
        got=f"{len(found)} noise layers",
        wanted="one on the input of a Sequential, and one right behind its first linear or convolution layer",
        fix="make the network with twinproof.layers.noise.add_two_noises",
    )
