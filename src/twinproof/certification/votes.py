"""Counting the base classifier's votes, or adding up its scores, over noisy copies of many inputs at once, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from twinproof.certification.grid_noise import GridNoise
from twinproof.certification.noisy_rows import NoisyRows
from twinproof.certification.remaining_noise import draws_noise, repeatable
from twinproof.certification.row_statistic import VOTES, RowStatistic
from twinproof.certification.row_threads import each_batch
from twinproof.certification.row_trial import checked_scores
from twinproof.randomness import Key

# The largest batch whose numbers a GPU's kernel can count with 32 bits.
_MOST_NUMBERS = 2**30


class Counter(Protocol):
    """Whatever counts votes: with noise of each input's own, or shared by the inputs of a call."""

    @property
    def statistic(self) -> RowStatistic:
        """What a draw counts."""

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """Sums, one row for each input, of the draws numbered ``after`` to ``draws``; ``statistic.moments`` reads them."""


@dataclass(frozen=True)
class VoteCounter:
    """Draws noise, runs the network, counts votes; or adds up what another ``statistic`` makes of its outputs.

    Guarantees
        The noise of draw j for input i depends on (key, purpose, i, j) alone: not on the device, the batch, its order or its
        size. Two inputs never share noise. A draw whose scores hold a NaN votes for no class, which can only lower a radius.
        Memory does not grow with the number of draws. What a network draws besides, in layers of ours, depends on the key and
        the batch, so that the same call gives the same sums.
    """

    model: nn.Module
    noise: GridNoise
    classes: int
    key: Key
    rows: int
    statistic: RowStatistic = VOTES

    def count(self, purpose: str, indices: Sequence[int], stored: Tensor, draws: int, *, after: int = 0) -> Tensor:
        """Votes (inputs, classes) of ``draws`` noisy copies of each input; ``stored`` holds what the noise is added to.

        ``after`` leaves out that many draws from the first: they were counted before.
        """
        source = NoisyRows(self.noise, self.key, purpose, indices, stored, draws, after=after)
        shape, device = stored.shape[1:], stored.device
        rows, random = min(self.rows, max(1, _MOST_NUMBERS // source.dimension)), draws_noise(self.model)

        def sums_of(starts: Sequence[int]) -> Tensor:
            """The sums of the batches that begin at these rows, made in a buffer that is used again and again."""
            sums = self.statistic.empty(len(indices), self.classes, device)
            buffer = torch.empty(min(rows, len(source)), source.dimension, dtype=torch.float32, device=device)
            for start in starts:
                batch = buffer[: len(source) - start]
                source.fill(start, batch)
                with repeatable(device, self.key, purpose, indices[0], after, start) if random else nullcontext():
                    outputs = checked_scores(self.model, batch.view(-1, *shape), self.classes)
                self.statistic.add(sums, source.owners(start, len(batch)), outputs)
            return sums

        sums = each_batch(sums_of, range(0, len(source), rows), self.model, device, one_by_one=random)
        return self.statistic.counted(sums, self.classes)
