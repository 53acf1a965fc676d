"""Networks as the verifier has them, for tests of both computations beside each other."""

from __future__ import annotations

import math

import numpy as np
import torch
from interval_oracles import LEVELS
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from twinproof_verify.evidence import Tensors, raw_tensors
from twinproof_verify.interval import RELU, Network, network_of
from twinproof_verify.layers import First


def tensors_of(network: nn.Module) -> Tensors:
    found = raw_tensors(save(network.state_dict()))
    assert not isinstance(found, str)
    return found


def verifiers(network: nn.Sequential, shape: tuple[int, ...]) -> Network:
    """The verifier's network, described layer by layer as its table does."""
    parts: list[First | str] = []
    for name, module in network.named_children():
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            padding = module.padding if isinstance(module.padding, str) else tuple(module.padding)
            parts.append(First(name, tuple(module.stride), padding, tuple(module.dilation), module.groups))
        elif not isinstance(module, nn.Flatten):
            parts.append(First(name) if isinstance(module, nn.Linear) else RELU)
    return network_of(parts, tensors_of(network), shape, LEVELS)


def flat(stored: Tensor) -> NDArray[np.int64]:
    return np.asarray(stored.flatten(1).numpy())


def begun_for_bounds(network: nn.Sequential, seed: int) -> nn.Sequential:
    """Weights as training with interval bounds begins with, and biases, so that radii are neither 0 nor all alike."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
                layer.weight.normal_(0, math.sqrt(2 * math.pi) / layer.weight[0].numel())
                assert layer.bias is not None
                layer.bias.normal_(0, 0.1)
    return network
