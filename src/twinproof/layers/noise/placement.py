"""Putting a noise layer into a network, and finding it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.noise.law import Place
from twinproof.layers.noise.noise_layer import NoiseLayer

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
        """Where the noise is."""
        return Place.INPUT if self.before is None else Place.FIRST_LAYER


def add_noise(
    network: nn.Module,
    input_shape: tuple[int, ...],
    place: Place | str,
    layer_factory: Callable[[tuple[int, ...]], NoiseLayer],
) -> nn.Sequential:
    """A new Sequential of the same modules with one more, called ``noise``; ``layer_factory`` makes it for a given shape.

    Guarantees
        The modules, their parameters and the names of these are those of ``network``, which is not changed itself.
        ``split_at_noise`` finds the noise again. What is not linear before the noise is refused.
    """
    modules = _children(network)
    if NOISE_NAME in dict(modules) or any(isinstance(module, NoiseLayer) for module in network.modules()):
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

    Guarantees
        Two noise layers, or one anywhere else, are refused: noise behind a layer that is not linear certifies nothing here.
    """
    # A layer that is used twice adds noise twice.
    named = network.named_modules(remove_duplicate=False)
    found = [path for path, module in named if isinstance(module, NoiseLayer)]
    if not found:
        return None
    if len(found) > 1:
        raise ModelError("the network has more than one noise layer", where=", ".join(found), got=len(found), wanted="one")
    modules = _children(network)
    position = next((number for number, (_, module) in enumerate(modules) if isinstance(module, NoiseLayer)), None)
    noise = None if position is None else modules[position][1]
    if position is None or not isinstance(noise, NoiseLayer):
        raise _misplaced(found[0], "a noise layer inside another module")
    after = _sequential(modules[position + 1 :], network.training)
    if position == 0:
        return NoiseSplit(None, False, noise, after)
    flattens, layer = _first_layer(modules)
    if position != int(flattens) + 1:
        raise _misplaced(found[0], f"a noise layer behind {position} other modules")
    return NoiseSplit(layer, flattens, noise, after)


def _children(network: nn.Module) -> list[Named]:
    if not isinstance(network, nn.Sequential) or type(network).forward is not nn.Sequential.forward:
        raise ModelError(
            "noise can only be put between the modules of a Sequential",
            where="network",
            got=type(network).__name__,
            wanted="torch.nn.Sequential",
            fix="write the network as a Sequential whose first layer is a linear or convolution layer",
        )
    return list(network._modules.items())  # not named_children(), which leaves out a module that is used twice


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


def _misplaced(path: str, got: str) -> ModelError:
    return ModelError(
        "the noise is not where it can be certified",
        where=path,
        got=got,
        wanted="noise at the input, or right behind the first linear or convolution layer",
        fix="make the network with twinproof.layers.noise.add_noise",
    )
