"""How a step's passes may be run: on several cores at once, or recorded on a GPU, where the network allows it."""

from __future__ import annotations

from dataclasses import dataclass

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
    if not _is_known(model):
        return ONE_BY_ONE
    if device.type == "cuda":
        return PassMode(capture=True)
    return ONE_BY_ONE if layers_draw(model) else PassMode(workers=torch.get_num_threads())


def layers_draw(model: nn.Module) -> bool:
    """Whether a layer may draw random numbers in forward; unknown layers may."""
    return not _is_known(model) or any(isinstance(layer, _DRAWING) for layer in model.modules())


def _is_known(model: nn.Module) -> bool:
    """Whether torch or this package wrote every layer, and nobody has hooked into one."""
    return all(
        type(layer).__module__.startswith(_KNOWN_ROOTS) and not layer._forward_hooks and not layer._forward_pre_hooks
        for layer in model.modules()
    )
