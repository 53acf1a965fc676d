"""The scores of a network, refused where they are not one number per class."""

from __future__ import annotations

from torch import Tensor, nn

from twinproof.errors import ModelError


def scores_of(model: nn.Module, batch: Tensor) -> Tensor:
    """(rows, classes); any other shape is a ModelError."""
    scores = model(batch)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[0] != len(batch) or scores.shape[1] < 2:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ModelError(
            "the network does not give one score per class",
            where=type(model).__name__,
            got=f"{got} for {len(batch)} rows",
            wanted="(rows, classes) with at least 2 classes",
        )
    return scores
