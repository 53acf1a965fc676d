"""Linear layers: outer products of inputs and errors, formed or kept as factors, whichever is cheaper."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from twinproof.training.per_example.gradients import Instantiated, LinearFactors, PerExampleGradient
from twinproof.training.per_example.registry import Call, by_record, handles, joined, trainable


@handles(nn.Linear)
def linear(layer: nn.Linear, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Weight and bias of ``y = x W^T + b``, with any number of axes between the batch and the features."""
    errors = joined([by_record(call.errors, records, layer.out_features) for call in calls])
    found: dict[str, PerExampleGradient] = {}
    if "weight" in trainable(layer):
        inputs = joined([by_record(call.inputs, records, layer.in_features) for call in calls])
        factors = LinearFactors(inputs, errors)
        keep = factors_are_cheaper(inputs.shape[1], layer.in_features, layer.out_features)
        found["weight"] = factors if keep else Instantiated(factors.instantiate())
    if "bias" in trainable(layer):
        found["bias"] = Instantiated(errors.sum(1))
    return found


def factors_are_cheaper(positions: int, n_in: int, n_out: int) -> bool:
    """Whether a sum of ``positions`` outer products is better kept as factors than formed as a matrix (n_out, n_in).

    Factors cost about T * T * (in + out) operations for the norm, the matrices T * in * out; the same inequality says which
    of the two takes less memory.
    """
    return positions * (n_in + n_out) <= n_in * n_out
