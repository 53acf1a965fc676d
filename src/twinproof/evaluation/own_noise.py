"""Whether a network draws noise of its own: attacks on it must then be in expectation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.layers.modes import evaluation_mode

_COPIES = 8
# Far above what the order of a device's sums changes, far below what a noise layer does.
_TOLERANCE = 1e-4


def answers_at_random(model: nn.Module, example: Tensor) -> bool:
    """Whether copies of one input in one batch, or the same batch again, get different scores in eval mode."""
    batch = example[:1].expand(_COPIES, *example.shape[1:])
    with evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[example.device] if example.is_cuda else []):
        first, again = model(batch), model(batch)
    scale = max(1.0, float(first.abs().nan_to_num().max()))
    spread = torch.maximum((first - first[:1]).abs(), (first - again).abs()).nan_to_num()
    return float(spread.max()) > _TOLERANCE * scale
