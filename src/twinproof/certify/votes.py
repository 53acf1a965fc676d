"""Counting the base classifier's votes over noisy copies of many inputs at once, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from twinproof.certify.base_classifier import checked_scores
from twinproof.certify.grid_gaussian import GridGaussian
from twinproof.certify.noisy_rows import NoisyRows
from twinproof.certify.row_threads import each_batch
from twinproof.randomness import Key

# The largest batch whose numbers a GPU's kernel can count with 32 bits.
_MOST_NUMBERS = 2**30


class Counter(Protocol):
    """Whatever counts votes: with noise of each input's own, or shared by the inputs of a call."""

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """Votes (inputs, classes) of the draws numbered ``after`` to ``draws`` of each input."""


@dataclass(frozen=True)
class VoteCounter:
    """Draws noise, runs the network, counts votes.

    Guarantees
        The noise of draw j for input i depends on (key, purpose, i, j) alone: not on the device, the batch, its order or its
        size. Two inputs never share noise. A draw whose scores hold a NaN votes for no class, which can only lower a radius.
        Memory does not grow with the number of draws.
    """

    model: nn.Module
    noise: GridGaussian
    classes: int
    key: Key
    rows: int

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """Votes (inputs, classes) of ``draws`` noisy copies of each input; ``stored`` holds levels as float32.

        ``after`` leaves out that many draws from the first: they were counted before.
        """
        source = NoisyRows(self.noise, self.key, purpose, indices, stored, draws, after=after)
        shape, device = stored.shape[1:], stored.device
        slots, rows = len(indices) * (self.classes + 1), min(self.rows, max(1, _MOST_NUMBERS // source.dimension))

        def votes_of(starts: Sequence[int]) -> Tensor:
            """The votes of the batches that begin at these rows, in a buffer that is used again and again."""
            votes = torch.zeros(slots, dtype=torch.int64, device=device)
            buffer = torch.empty(min(rows, len(source)), source.dimension, dtype=torch.float32, device=device)
            for start in starts:
                batch = buffer[: len(source) - start]
                source.fill(start, batch)
                choice = self._choices(batch.view(-1, *shape))
                place = source.owners(start, len(batch)).mul_(self.classes + 1).add_(choice)
                votes.scatter_add_(0, place, torch.ones_like(place))
            return votes

        votes = each_batch(votes_of, range(0, len(source), rows), self.model, device)
        return votes.view(len(indices), self.classes + 1)[:, : self.classes]

    def _choices(self, batch: Tensor) -> Tensor:
        """The class that each row votes for; one more than the last class where it votes for nobody."""
        scores = checked_scores(self.model, batch, self.classes)
        return torch.where(scores.isnan().any(dim=1), self.classes, scores.argmax(dim=1))
