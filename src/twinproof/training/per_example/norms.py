"""Group and layer normalisation: the scale's gradient is the error times the normalised input, summed over positions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient
from twinproof.training.per_example.registry import Call, added, by_record, handles, trainable


@handles(nn.GroupNorm)
def group_norm(layer: nn.GroupNorm, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Scale and shift of one number per channel; channels are the second axis."""

    def summed(values: Tensor) -> Tensor:
        copies = values.shape[0] // records
        return values.reshape(records, copies, layer.num_channels, -1).sum((1, 3))

    found: dict[str, PerExampleGradient] = {}
    if "weight" in trainable(layer):
        normalised = [functional.group_norm(call.inputs, layer.num_groups, eps=layer.eps) for call in calls]
        parts = [summed(call.errors * values) for call, values in zip(calls, normalised, strict=True)]
        found["weight"] = Instantiated(added(parts))
    if "bias" in trainable(layer):
        found["bias"] = Instantiated(added([summed(call.errors) for call in calls]))
    return found


@handles(nn.LayerNorm)
def layer_norm(layer: nn.LayerNorm, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """Scale and shift in the shape of the last axes."""

    def summed(values: Tensor) -> Tensor:
        return by_record(values, records, *layer.normalized_shape).sum(1)

    found: dict[str, PerExampleGradient] = {}
    if "weight" in trainable(layer):
        shape = list(layer.normalized_shape)
        normalised = [functional.layer_norm(call.inputs, shape, eps=layer.eps) for call in calls]
        parts = [summed(call.errors * values) for call, values in zip(calls, normalised, strict=True)]
        found["weight"] = Instantiated(added(parts))
    if "bias" in trainable(layer):
        found["bias"] = Instantiated(added([summed(call.errors) for call in calls]))
    return found
