"""A step shared by several ranks: sums, ledger, and equal weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twinproof.compute.ranks import Ranks
from twinproof.privacy.ledger import Entry, Ledger
from twinproof.training.step_sums import ClippedSums


def summed_by_name(parts: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The sums over all ranks, in float64, as one message."""
    flat = ranks.sum_in_order(torch.cat([value.double().flatten() for value in parts.values()]))
    pieces = torch.split(flat, [value.numel() for value in parts.values()])
    return {name: piece.view(value.shape) for (name, value), piece in zip(parts.items(), pieces, strict=True)}


def clipped_over_ranks(part: ClippedSums, ranks: Ranks) -> ClippedSums:
    """The clipped sums over the records of all ranks: the same bits on all of them.

    Numbers of ranks differ by the order of float64 additions alone.
    """
    # Counts travel in the same message: they are small whole numbers, which float64 holds exactly.
    summed = summed_by_name({**part.by_name, "": part.counts}, ranks)
    counts = summed.pop("").to(torch.int64)
    return ClippedSums(summed, counts)


class SharedLedger(Ledger):
    """The ledger as one rank has it.

    ``append`` returns on no rank before rank 0 has the entry on the disk, and on none where the heads of the chains differ.
    """

    def __init__(self, path: Path, entries: list[Entry], ranks: Ranks) -> None:
        super().__init__(path, entries)
        self._ranks = ranks
        self._agree()

    def append(self, kind: str, body: dict[str, Any]) -> None:
        """See :class:`Ledger`."""
        if self._ranks.is_first:
            super().append(kind, body)
        else:
            self.entries.append(Entry(len(self.entries), kind, body, self._last_hash))
        self._agree()

    def _agree(self) -> None:
        self._ranks.agree("the ledger", f"{len(self.entries)} lines, head {self._last_hash[:32]}")


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
