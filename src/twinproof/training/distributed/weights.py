"""Whether all ranks have the same weights: they must, as they take the same steps."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from twinproof.training.distributed.ranks import Ranks


def weights_digest(model: nn.Module) -> str:
    """SHA-256 (hexadecimal) over names, types, shapes and bits of all that the network holds."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def agree_on_weights(ranks: Ranks, model: nn.Module, when: str) -> None:
    """Stops all ranks unless their weights are equal to the bit."""
    if ranks.world > 1:
        ranks.agree(f"the weights {when}", weights_digest(model))
