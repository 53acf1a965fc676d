"""Layer-wise relevance propagation: how much each input of a network took part in the score of a record's label.

Bach et al. 2015, by the epsilon rule; what the adaptive Laplace mechanism (Phan et al., ICDM 2017) decides its noise by. The
score is handed back layer by layer: a linear layer divides what its output k has among its inputs j in proportion to their
parts w_kj a_j of that output, a maximum gives all to the input that won, an activation hands on what it has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.noise import NoiseLayer, silenced

STABILISER = 0.01
"""Outputs of a linear layer are taken this much further from zero, so that no input is given a multiple of what there is."""

Rule = Callable[[nn.Module, Tensor, Tensor, float], Tensor]
"""Layer, what went into it, relevance of what came out, stabiliser -> relevance of what went in."""


def relevance(network: nn.Module, inputs: Tensor, labels: Tensor, *, stabiliser: float = STABILISER) -> Tensor:
    """The relevance of every input (rows, *shape) for the score of its row's label; no noise is drawn.

    Guarantees
        - A row depends on its own input and label alone: every accepted layer treats rows one by one.
        - In each row the relevances add up to the label's score, less the part of biases and what the stabiliser keeps back;
          without biases and with a small stabiliser they add up to the score.
    """
    layers = layers_with_rules(network)
    entered = [inputs]
    with silenced(network):
        for layer in layers:
            entered.append(layer(entered[-1]))
    scores = entered.pop()
    classes = torch.arange(scores.shape[-1], device=scores.device)
    share = torch.where(labels[:, None] == classes, scores, 0)
    for layer, values in zip(reversed(layers), reversed(entered), strict=True):
        share = _RULES[type(layer)](layer, values, share, stabiliser)
    return share


def _divided(layer: nn.Module, inputs: Tensor, share: Tensor, stabiliser: float) -> Tensor:
    """Among the inputs of a linear layer by their parts of each output: R_j = a_j sum_k w_kj R_k / (z_k + e sign z_k)."""
    outputs, transposed = _pullback(layer, inputs)
    stable = outputs + torch.copysign(torch.full_like(outputs, stabiliser), outputs)
    return inputs * transposed(share / stable)


def _to_winners(layer: nn.Module, inputs: Tensor, share: Tensor, stabiliser: float) -> Tensor:
    """All to the input that was the largest, which is where the slope of a maximum goes."""
    return _pullback(layer, inputs)[1](share)


def _handed_on(layer: nn.Module, inputs: Tensor, share: Tensor, stabiliser: float) -> Tensor:
    """One output for each input. A normalisation counts as such: its statistics are taken as given numbers."""
    return share.reshape(inputs.shape)


def _pullback(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What comes out of ``layer``, and the transpose of its slopes there; also inside ``vmap`` and ``no_grad``."""
    made = torch.func.vjp(layer, inputs)
    return made[0], lambda errors: made[1](errors)[0]


_RULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), _divided),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _divided),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), _to_winners),
    **dict.fromkeys((nn.Tanh, nn.ReLU, nn.GELU, nn.GroupNorm, nn.Flatten, nn.Identity, NoiseLayer), _handed_on),
}


def layers_with_rules(network: nn.Module) -> list[nn.Module]:
    """The modules in the order of the forward pass; one that relevance cannot be handed back through is refused.

    Exact types only, since a subclass may compute something else.
    """
    if type(network) is nn.Sequential:
        return [layer for child in network for layer in layers_with_rules(child)]
    flat = not isinstance(network, nn.Flatten) or network.start_dim == 1  # rows must stay rows
    if type(network) not in _RULES or not flat:
        raise ModelError(
            "relevance cannot be handed back through this layer",
            where="network",
            got=str(network),
            wanted="a Sequential of " + ", ".join(kind.__name__ for kind in _RULES),
            fix="use the model mlp, small-cnn, tramer-boneh-cnn or gelu-cnn, or equal shares (redistribution uniform)",
        )
    return [network]
