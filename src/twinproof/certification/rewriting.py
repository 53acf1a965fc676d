"""Rewriting a network's layers, one after the other, to equal ones that are faster at inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from twinproof.certification import fused_norm
from twinproof.certification.dense_convolution import DenseConvolution, can_be_dense
from twinproof.certification.fused_pool import ActivationPool, can_be_fused
from twinproof.certification.map_layers import ChannelsLast, InPlaceReLU, LinearOfMaps, NumpyTanh
from twinproof.certification.remaining_noise import RemainingNoise
from twinproof.certification.sliced_pool import SlicedMaxPool, is_plain_pool
from twinproof.certification.unwhitened import Unwhitened
from twinproof.layers.precision import convolutions_in_tf32, products_in_tf32

# Layers that answer with a tensor of their own, which the next layer may overwrite.
_FRESH = (nn.Conv2d, nn.Linear, DenseConvolution, LinearOfMaps, Unwhitened, RemainingNoise)
# Layers after which maps are in channels-last memory if they were before.
_KEEPS_ORDER = (nn.Conv2d, nn.Tanh, nn.ReLU, ChannelsLast, NumpyTanh, InPlaceReLU, SlicedMaxPool, Unwhitened, RemainingNoise)


@dataclass
class _Rewriter:
    """All layers, with the shape before each, and what was made of the first ones.

    ``channels_last`` tells the memory order of what comes next: a guess that only speed rests on. ``fresh`` tells whether
    nobody else holds what comes next, so that it may be overwritten.
    """

    layers: list[nn.Module]
    shapes: list[tuple[int, ...]]
    done: list[nn.Module] = field(default_factory=list)
    channels_last: bool = False
    fresh: bool = False

    def put(self, layer: nn.Module) -> None:
        self.done.append(layer)
        made = isinstance(layer, ChannelsLast | DenseConvolution | ActivationPool | fused_norm.NormActivation)
        self.channels_last = made or (self.channels_last and type(layer) in _KEEPS_ORDER)
        # A view of a tensor is as fresh as the tensor.
        self.fresh = type(layer) in _FRESH or (self.fresh and type(layer) is ChannelsLast)

    def linear_of_maps(self, place: int) -> LinearOfMaps | None:
        """Flatten and Linear from ``place`` on as one layer, where channels-last maps come in."""
        pair = self.layers[place : place + 2]
        if not self.channels_last or [type(layer) for layer in pair] != [nn.Flatten, nn.Linear]:
            return None
        flatten, linear = pair
        if not isinstance(flatten, nn.Flatten) or not isinstance(linear, nn.Linear):
            return None
        if (flatten.start_dim, flatten.end_dim) != (1, -1) or len(self.shapes[place]) != 3:
            return None
        return LinearOfMaps(linear, self.shapes[place])


def for_cpu(layers: list[nn.Module], shapes: list[tuple[int, ...]], *, overwrite: bool = False) -> nn.Sequential:
    """Convolutions in channels-last memory, pools as slices, a faster tanh; the layers are used and changed in place.

    With ``overwrite`` the result may write over its input.
    """
    state = _Rewriter(layers, shapes, fresh=overwrite)

    def one(place: int, layer: nn.Module) -> int:
        if isinstance(layer, nn.MaxPool2d) and is_plain_pool(layer) and state.channels_last:
            state.put(SlicedMaxPool(layer))
        elif type(layer) is nn.Tanh:
            state.put(NumpyTanh(in_place=state.fresh))
        elif type(layer) is nn.ReLU:
            state.put(InPlaceReLU() if state.fresh else layer)
        else:
            state.put(layer.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        return 1

    if len(shapes[0]) == 3:
        state.put(ChannelsLast())
    return _rewritten(state, one)


def with_dense_convolutions(layers: list[nn.Module], shapes: list[tuple[int, ...]]) -> nn.Sequential | None:
    """Convolutions as matrix products, activation and pool or norm and activation in one kernel; None where none allows it."""
    tf32, products = convolutions_in_tf32(), products_in_tf32()
    # TF32 can be switched on for a while, but torch cannot switch it off and back on without forgetting how coarse it was.
    if tf32 is None or products is None or (products and not tf32):
        return None
    if not any(can_be_dense(layer, shape) for layer, shape in zip(layers, shapes, strict=True)):
        return None
    state = _Rewriter(layers, shapes)
    if len(shapes[0]) == 3 and not can_be_dense(layers[0], shapes[0]):
        state.put(ChannelsLast())

    def one(place: int, layer: nn.Module) -> int:
        after = layers[place + 1] if place + 1 < len(layers) else None
        if isinstance(layer, nn.Conv2d) and can_be_dense(layer, shapes[place]):
            pool = layers[place + 2] if place + 2 < len(layers) else None
            # The bias is added after the maximum, where there are fewer numbers: rounding keeps the order of sums.
            fused = after is not None and pool is not None and can_be_fused(after, pool)
            state.put(DenseConvolution(layer, shapes[place], tf32=tf32, with_bias=not fused))
            if after is None or pool is None or not fused:
                return 1
            state.put(ActivationPool(after, pool, layer.bias))
            return 3
        if isinstance(after, nn.MaxPool2d) and state.channels_last and can_be_fused(layer, after):
            state.put(ActivationPool(layer, after))
            return 2
        if after is not None and state.channels_last and fused_norm.can_be_fused(layer, after):
            state.put(fused_norm.NormActivation(layer, after))
            return 2
        state.put(layer)
        return 1

    return _rewritten(state, one)


def _rewritten(state: _Rewriter, one: Callable[[int, nn.Module], int]) -> nn.Sequential:
    place = 0
    while place < len(state.layers):
        linear = state.linear_of_maps(place)
        if linear is not None:
            state.put(linear)
            place += 2
        else:
            place += one(place, state.layers[place])
    return nn.Sequential(*state.done).eval()
