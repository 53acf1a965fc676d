"""Bounding one record's influence: the factor by which each record's gradient is scaled before the sum."""

from __future__ import annotations

import torch
from torch import Tensor


def flat_clip_weights(squared_norms: Tensor, threshold: float) -> Tensor:
    """min(1, threshold / norm) for each record, in float64.

    Guarantees
        weight * norm <= threshold (1 + 2^-50) for every finite norm. A norm that is NaN or infinite gets the weight 0:
        a rule that looks at one record alone, so it changes nobody else's contribution. Its gradient must also be removed
        from the sum (0 * NaN is NaN); ``PerExampleGradient.weighted_sum`` does that for every weight of 0.
    """
    norms = squared_norms.to(torch.float64).sqrt()
    weights = torch.clamp(threshold / norms.clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    return torch.where(torch.isfinite(norms), weights, torch.zeros_like(weights))
