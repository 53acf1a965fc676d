"""How a step's passes may be run: on several cores at once, or recorded on a GPU, where the network allows it."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, MethodType

import torch
from torch import nn

from twinproof.layers.noise import NoiseLayer, RandomSpread

_KNOWN_ROOTS = ("torch.nn.", "twinproof.layers.")
# Layers that draw numbers in forward take them from torch's global generator, which threads would share.
_DRAWING = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    NoiseLayer,
    RandomSpread,
)


@dataclass(frozen=True)
class PassMode:
    """``workers`` passes at once, one core each; or ``capture``: one recording, replayed for each pass."""

    workers: int = 1
    capture: bool = False


ONE_BY_ONE = PassMode()


def pass_mode(model: nn.Module, device: torch.device) -> PassMode:
    """The fastest mode that is safe for this network on this device.

    A recording freezes what the network's Python code decides, and threads share what it keeps: a network with layers
    that are not torch's or ours is therefore run pass by pass, as it is.
    """
    if not is_known(model):
        return ONE_BY_ONE
    if device.type == "cuda":
        return PassMode(capture=True)
    return ONE_BY_ONE if layers_draw(model) else PassMode(workers=torch.get_num_threads())


def layers_draw(model: nn.Module) -> bool:
    """Whether a layer may draw random numbers in forward; unknown layers may."""
    return not is_known(model) or any(isinstance(layer, _DRAWING) for layer in model.modules())


def is_known(model: nn.Module) -> bool:
    """Whether torch or this package wrote every layer, and nobody has hooked into one or replaced one of its methods."""
    return all(
        type(layer).__module__.startswith(_KNOWN_ROOTS)
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and not layer._backward_hooks
        and not layer._backward_pre_hooks
        and not any(_is_foreign(layer, name, value) for name, value in vars(layer).items())
        for layer in model.modules()
    )


def _is_foreign(layer: nn.Module, name: str, value: object) -> bool:
    """Whether an attribute is code of somebody else: a method replaced, or a function that is not torch's."""
    if callable(getattr(type(layer), name, None)):
        return True
    return isinstance(value, FunctionType | MethodType) and not (value.__module__ or "").startswith("torch.")
