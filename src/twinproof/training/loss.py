"""Losses of one record: they are given its copies and its label, and nothing of anybody else's."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def mean_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy averaged over the record's copies: ``logits`` (copies, classes), ``label`` a scalar."""
    return F.cross_entropy(logits, label.expand(logits.shape[0]))
