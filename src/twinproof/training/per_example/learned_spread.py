"""The learned scales of a noise layer: errors times noise, through the chain rule of the softmax and the square root."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twinproof.layers.noise.learned_spread import LearnedSpread
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient
from twinproof.training.per_example.registry import Call, added, by_record, handles, trainable


@handles(LearnedSpread)
def learned_spread(layer: LearnedSpread, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """``log_shares`` of y = s * xi; the layer's inputs are the very noise xi of each copy.

    With p = softmax(log_shares) and s_k**2 = (1 - floor) K p_k + floor, the slope of s_k in log_share j is
    (1 - floor) K p_k (1[j = k] - p_j) / (2 s_k).
    """
    if "log_shares" not in trainable(layer):
        return {}
    at_scales = added([by_record(call.inputs * call.errors, records, layer.coordinates).sum(1) for call in calls])
    shares = torch.softmax(layer.log_shares.detach().double(), dim=0)
    growth = shares * ((1 - layer.floor) * layer.coordinates)
    slopes = (growth / (2 * (growth + layer.floor).sqrt())).to(at_scales.dtype)
    at_shares: Tensor = at_scales * slopes
    return {"log_shares": Instantiated(at_shares - shares.to(at_scales.dtype) * at_shares.sum(1, keepdim=True))}
