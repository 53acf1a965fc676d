"""Linear layers: outer products of inputs and errors, formed or kept as factors, whichever is cheaper."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from twinproof.training.per_example.gradients import Instantiated, LinearFactors, PerExampleGradient
from twinproof.training.per_example.registry import Call, bias_gradient, by_record, handles, joined, trainable

# Costs on a CPU in products of a float32 matrix product, measured on one core: a product in a batched float64 Gram matrix, one
# in a large float64 matrix product, and a number's two conversions to float64 with the norm and the sum taken from them.
_GRAM, _FLOAT64, _CONVERSION = 2.5, 2.0, 60.0
# On a GPU: how many times smaller than the matrix the factors must be.
_GPU_FACTORS = 4


@handles(nn.Linear)
def linear(layer: nn.Linear, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Weight and bias of ``y = x W^T + b``, with any number of axes between the batch and the features."""
    found: dict[str, PerExampleGradient] = {}
    own = trainable(layer)
    if "weight" in own:
        errors = joined([by_record(call.errors, records, layer.out_features) for call in calls])
        inputs = joined([by_record(call.inputs, records, layer.in_features) for call in calls])
        factors = LinearFactors(inputs, errors)
        keep = factors_are_cheaper(inputs.shape[1], layer.in_features, layer.out_features, errors.device.type)
        found["weight"] = factors if keep else Instantiated(factors.instantiate())
    if "bias" in own:
        width = layer.out_features
        found["bias"] = bias_gradient(own["bias"], calls, records, lambda errors: by_record(errors, records, width).sum(1))
    return found


def factors_are_cheaper(positions: int, n_in: int, n_out: int, device: str = "cpu") -> bool:
    """Whether a sum of ``positions`` outer products is better kept as factors than formed as a matrix (n_out, n_in).

    Factors need T * T * (in + out) products for the norm and T * in * out for the sum, all in float64, and two conversions of
    the factors; a matrix needs T * in * out products in float32, and two conversions of its entries. On a GPU, where kernels
    read a matrix as it is and factors are converted in memory, factors must be far smaller to be worth it.
    """
    cells, sides = n_in * n_out, n_in + n_out
    if device != "cpu":
        return positions == 1 or _GPU_FACTORS * positions * sides <= cells
    factors = positions * (sides * (_GRAM * positions + _CONVERSION) + _FLOAT64 * cells)
    return factors <= cells * (positions + _CONVERSION)
