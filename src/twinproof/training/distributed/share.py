"""Which part of the work is a rank's own: whole passes, dealt out in turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """The work of ``rank`` (from 0) among ``world`` ranks.

    Whole passes are dealt out, not records: a pass has noise and dropout of its own, drawn for all of its rows at once, so
    that its sum is the same to the bit on whichever rank it is made.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is not one of {self.world} ranks")

    def has(self, number: int) -> bool:
        """Whether piece ``number`` of the work is this rank's."""
        return number % self.world == self.rank

    def number(self, mine: int) -> int:
        """The number, among the pieces of all ranks, of this rank's piece ``mine``."""
        return mine * self.world + self.rank

    def own(self, indices: Tensor, size: int) -> Tensor:
        """The records of this rank's passes, of ``size`` records each, when ``indices`` are cut into passes.

        Guarantees
            Every record is in the share of exactly one rank. Cut again into passes of ``size``, pass m of the share is pass
            ``number(m)`` of the whole, record by record.
        """
        starts = range(self.rank * size, len(indices), self.world * size)
        return torch.cat([indices[:0], *(indices[start : start + size] for start in starts)])


WHOLE = Share()
