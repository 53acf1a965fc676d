"""Embedding tables: a record touches few rows, so its gradient is kept as those rows' errors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from twinproof.training.per_example.gradients import EmbeddingFactors, PerExampleGradient
from twinproof.training.per_example.registry import Call, by_record, handles, joined


@handles(nn.Embedding)
def embedding(layer: nn.Embedding, calls: Sequence[Call], records: int) -> dict[str, PerExampleGradient]:
    """The table; ids may repeat inside a record, and ``padding_idx`` has no gradient."""
    ids = joined([by_record(call.inputs, records) for call in calls]).long()
    errors = joined([by_record(call.errors, records, layer.embedding_dim) for call in calls])
    if layer.padding_idx is not None:
        errors = errors.masked_fill((ids == layer.padding_idx)[:, :, None], 0)
    return {"weight": EmbeddingFactors(ids, errors, layer.num_embeddings)}
