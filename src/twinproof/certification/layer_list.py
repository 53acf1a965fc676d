"""A network as the list of layers that it runs one after the other, where it is one."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def layers_in_order(model: nn.Module) -> list[nn.Module]:
    """The layers of (nested) plain ``nn.Sequential`` containers; anything else counts as one layer.

    Exact types only: a subclass may do more in its ``forward`` than run its children.
    """
    if type(model) is not nn.Sequential:
        return [model]
    return [layer for child in model for layer in layers_in_order(child)]


def runs_as_written(model: nn.Module) -> bool:
    """Whether calling each module is calling its class's ``forward`` and nothing else: no hooks, no replaced methods."""
    return not any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) or "__call__" in vars(module)
        for module in model.modules()
    )


def shapes_before(layers: list[nn.Module], example: Tensor) -> list[tuple[int, ...]]:
    """The shape of one row before each layer, found by running ``example`` through them."""
    shapes = []
    with torch.inference_mode():
        for layer in layers:
            shapes.append(tuple(example.shape[1:]))
            example = layer(example)
    return shapes
