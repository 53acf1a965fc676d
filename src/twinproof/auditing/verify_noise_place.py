"""Which layer of a run's network its noise is behind, and how the noise is spread: from the settings and the weights alone.

Of a network of this package the first layer is known by the network's name; of an owner's network it is read off the module
that whoever verifies brings along. What the module computes elsewhere is not asked here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twinproof.auditing.verify_layer_matrix import Array, Layer, LayerError, convolution, linear
from twinproof.auditing.verify_method import BOTH, INPUT

if TYPE_CHECKING:
    from torch import nn

Tensors = dict[str, dict[str, Any]]

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_PUBLISHED = "published"
_NOISE_MODULE = "twinproof.layers.noise"


@dataclass(frozen=True)
class First:
    """The first layer: its name among the weights, and what they do not tell; ``stride`` is None for a linear layer."""

    name: str
    stride: tuple[int, ...] | None = None
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] | None = None
    groups: int = 1

    def layer(self, tensors: Tensors, shape: tuple[int, ...], *, flattens: bool) -> Layer:
        """With its weights, for inputs of ``shape``."""
        weight = numbers(tensors, f"{self.name}.weight")
        if self.stride is None:
            if not flattens and len(shape) != 1:
                raise LayerError(f"a linear layer for inputs of shape {shape}")
            return linear(weight, math.prod(shape))
        return convolution(weight, shape, self.stride, self.padding, self.dilation, self.groups)


def _convolution(stride: int, padding: int) -> First:
    return First("0", (stride, stride), (padding, padding))


FIRST_LAYERS = {
    "mlp": First("1"),
    "small-cnn": _convolution(1, 1),
    "tramer-boneh-cnn": _convolution(2, 2),
    "gelu-cnn": _convolution(2, 3),
    "stobatch-cnn": _convolution(2, 2),
    "wrn-16-4": _convolution(1, 1),
    "resnet-18": _convolution(1, 1),
}
"""Networks of this package that begin with a linear or convolution layer; the side of a kernel is that of its weights."""


@dataclass(frozen=True)
class Spread:
    """How the noise of the module ``name`` is shared out; ``floor`` and ``width`` are those of learned and random shares."""

    name: str
    kind: str
    floor: float = 0.0
    width: float = 0.0

    def scales(self, tensors: Tensors, coordinates: int) -> Array:
        """The smallest scale that each coordinate's noise can have: sqrt(K r)."""
        if self.kind == "uniform":
            return np.ones(coordinates)
        if self.kind == "random":
            mean = ((1 - self.width) + (coordinates - 1) * (1 + self.width)) / coordinates
            return np.full(coordinates, float(np.float32(((1 - self.width) / mean) ** 0.5)))
        if self.kind == "learned":
            shares = numbers(tensors, f"{self.name}.spread.log_shares").reshape(-1)
            raised = np.exp(shares - shares.max())
            mixed = raised / raised.sum() * ((1 - self.floor) * len(shares)) + self.floor
            found = np.asarray(np.sqrt(mixed).astype(np.float32), dtype=np.float64)
        else:
            found = numbers(tensors, f"{self.name}.spread.scales").reshape(-1)
        if len(found) != coordinates or not (np.isfinite(found).all() and found.min() > 0):
            raise LayerError(f"{len(found)} scales of noise, not all of them positive, for {coordinates} coordinates")
        return found


@dataclass(frozen=True)
class Placement:
    """Where the noise is: ``first`` is the layer before it (None: at the input), which sees a flat input if it ``flattens``."""

    law: str
    first: First | None
    flattens: bool
    spread: Spread
    # Of a second noise, on the input, where there is noise behind the layer too.
    input_spread: Spread | None = None
    # Whether draws that are kept follow, as one paper has it.
    kept: bool = False


def numbers(tensors: Tensors, name: str) -> Array:
    """A stored tensor in float64, which holds the smaller types exactly."""
    tensor = tensors.get(name)
    kind = None if tensor is None else str(tensor["dtype"])
    if tensor is None or kind not in _FLOATS:
        raise LayerError(f"there are no weights {name} of a known type")
    values = np.frombuffer(tensor["data"], dtype=_FLOATS[kind]).astype(np.float64)
    if not np.isfinite(values).all():
        raise LayerError(f"the weights {name} are not finite")
    return values.reshape([int(size) for size in tensor["shape"]])


def placement_of(config: dict[str, Any], network: nn.Module | None) -> Placement | None:
    """Where the settings put the noise, or where the owner's ``network`` has it; None if there is none."""
    first, flattens, found = FIRST_LAYERS.get(str(config.get("model"))), config.get("model") == "mlp", None
    if network is not None:
        first, flattens, found = _read_module(network)
    noise = config.get("noise_layer")
    if noise is None:
        return found
    if found is not None:
        raise LayerError("noise in the settings and in the network itself")
    spread = Spread("noise", str(noise["redistribution"]), float(noise["floor"]), float(noise["width"]))
    if noise["place"] == INPUT:
        return Placement(str(noise["law"]), None, False, spread)
    if first is None:
        raise LayerError("the network does not begin with a linear or convolution layer")
    if noise["place"] == BOTH:
        kept = config.get("variant") == _PUBLISHED
        return Placement(str(noise["law"]), first, flattens, Spread("noise", "uniform"), Spread("input_noise", "uniform"), kept)
    return Placement(str(noise["law"]), first, flattens, spread)


def _read_module(network: nn.Module) -> tuple[First | None, bool, Placement | None]:
    """First layer and noise of an owner's module, which must be a Sequential for noise to be behind a layer of it."""
    from torch import nn

    noisy = [one for _, one in network.named_modules(remove_duplicate=False) if _is_noise(one)]
    plain = isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward
    children = [(name, module) for name, module in network._modules.items() if module is not None] if plain else []
    heads = [(name, module) for name, module in children if not _is_noise(module)]
    flattens = bool(heads) and type(heads[0][1]) is nn.Flatten and (heads[0][1].start_dim, heads[0][1].end_dim) == (1, -1)
    place = int(flattens)
    first = _first(*heads[place]) if len(heads) > place else None
    if not noisy:
        return first, flattens, None
    at = [position for position, (_, module) in enumerate(children) if _is_noise(module)]
    if len(at) != len(noisy) or at not in ([0], [place + 1], [0, place + 2]) or (at != [0] and first is None):
        raise LayerError("noise layers that are not at the input, nor right behind the first linear or convolution layer")
    spreads = [_spread(*children[position]) for position in at]
    law = str(getattr(children[at[-1]][1], "law", ""))
    if at == [0]:
        return first, flattens, Placement(law, None, False, spreads[0])
    if len(at) == 1:
        return first, flattens, Placement(law, first, flattens, spreads[0])
    on_input = spreads[0] if str(getattr(children[0][1], "law", "")) == law else None
    if on_input is None:
        raise LayerError("two noises of different laws")
    following = children[at[-1] + 1][1] if len(children) > at[-1] + 1 else None
    kept = type(following).__name__ == "FixedDraws"
    return first, flattens, Placement(law, first, flattens, spreads[1], on_input, kept)


def _is_noise(module: object) -> bool:
    """Known by its name: the class itself is the writers'."""
    return any(kind.__name__ == "NoiseLayer" and kind.__module__.startswith(_NOISE_MODULE) for kind in type(module).__mro__)


def _first(name: str, module: nn.Module) -> First | None:
    """What ``module`` is, if it is a plain layer: a subclass or a hook could compute anything else."""
    from torch import nn

    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if type(module) is nn.Linear:
        return First(name)
    if type(module) not in (nn.Conv1d, nn.Conv2d, nn.Conv3d) or getattr(module, "padding_mode", None) != "zeros":
        return None
    facts = vars(module)
    padding = facts["padding"] if isinstance(facts["padding"], str) else tuple(facts["padding"])
    return First(name, tuple(facts["stride"]), padding, tuple(facts["dilation"]), int(facts["groups"]))


def _spread(name: str, module: nn.Module) -> Spread:
    spread = getattr(module, "spread", None)
    kind = {"UniformSpread": "uniform", "FixedSpread": "fixed", "LearnedSpread": "learned", "RandomSpread": "random"}.get(
        type(spread).__name__
    )
    if kind is None:
        raise LayerError(f"noise that is spread by {type(spread).__name__}")
    return Spread(name, kind, float(getattr(spread, "floor", 0.0)), float(getattr(spread, "width", 0.0)))
