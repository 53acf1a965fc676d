"""Bounding one record's influence: the factor by which each record's gradient is scaled before the sum."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

# What rounding may add to weight * norm in the formulas below (a root, two sums, two quotients) is less than this share.
_ROOM = 2.0**-50


class ClipRule(StrEnum):
    """How a gradient's length becomes its factor. A closed set: each member's bound is proven and tested here."""

    FLAT = "flat"
    PSAC_PAPER = "psac-paper"
    PSAC_CODE = "psac-code"


def clip_weights(squared_norms: Tensor, threshold: float, rule: ClipRule, r: float) -> Tensor:
    """The factors by ``rule``, in float64; ``r`` (above 0) is the constant of the PSAC rules, which flat clipping has not.

    Guarantees
        The bound of the rule's own function, for every squared norm: NaN and infinities count nothing, zero stays zero.
    """
    if rule is ClipRule.FLAT:
        return flat_clip_weights(squared_norms, threshold)
    return psac_weights(squared_norms, threshold, r, as_in_code=rule is ClipRule.PSAC_CODE)


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


def psac_weights(squared_norms: Tensor, threshold: float, r: float, *, as_in_code: bool = False) -> Tensor:
    """Per-sample adaptive clipping: threshold / (n + r / (n + r)) by the paper, threshold / (n + r / n + r) by its program.

    Every gradient is scaled, short ones too, up or down: long ones nearly to the threshold, and the program's formula lets
    those much shorter than the root of r vanish. A length of 0 gets the weight threshold (paper) or 0 (program).

    Guarantees
        weight * norm <= threshold for every finite norm, rounding included. Proof: for r > 0 what is added to n in the
        denominator is not negative, so that the exact weight times n is below the threshold (strictly where n > 0); four
        roundings of positive terms move it by less than a share of 2^-50, which is taken off beforehand. NaN and infinite norms
        get the weight 0, as in :func:`flat_clip_weights`.
    """
    norms = squared_norms.to(torch.float64).sqrt()
    added = r / norms + r if as_in_code else r / (norms + r)
    weights = threshold * (1 - _ROOM) / (norms + added)
    return torch.where(torch.isfinite(norms), weights, torch.zeros_like(weights))
