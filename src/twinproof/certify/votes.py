"""Counting the base classifier's votes over noisy copies of many inputs at once, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from twinproof.certify.base_classifier import checked_scores
from twinproof.certify.grid_gaussian import BLOCK, GridGaussian
from twinproof.randomness import Key


@dataclass(frozen=True)
class Span:
    """The draws numbered ``first`` to ``end`` (without it) of the ``whole`` that an input may get."""

    first: int
    end: int
    whole: int

    @property
    def blocks(self) -> range:
        """The numbers of the blocks that these draws lie in."""
        return range(self.first // BLOCK, -(-self.end // BLOCK))

    def within(self, number: int) -> tuple[int, int, int]:
        """Where these draws start and stop within a block, and the block's size."""
        start = number * BLOCK
        return max(self.first - start, 0), min(BLOCK, self.end - start), min(BLOCK, self.whole - start)


@dataclass(frozen=True)
class VoteCounter:
    """Draws noise, runs the network, counts votes.

    Guarantees
        The noise of draw j for input i depends on (key, purpose, i, j) alone: not on the batch, its order or its size. Two
        inputs never share noise. A draw whose scores hold a NaN votes for no class, which can only lower a radius.
    """

    model: nn.Module
    noise: GridGaussian
    classes: int
    key: Key
    rows: int

    def count(
        self, purpose: str, indices: list[int], stored: Tensor, draws: int, *, after: int = 0, of: int | None = None
    ) -> Tensor:
        """Votes (inputs, classes) of ``draws`` noisy copies of each input; ``stored`` holds levels as float32.

        ``after`` leaves out that many draws from the first: they were counted before. ``of`` is the number of draws that
        these are the first ones of, where there may be more to come.
        """
        span = Span(after, draws, of or draws)
        device = stored.device
        # One more column than classes: draws that voted for nobody.
        votes = torch.zeros(len(indices) * (self.classes + 1), dtype=torch.int64, device=device)
        blocks = ((row, number) for row in range(len(indices)) for number in span.blocks)
        while group := list(islice(blocks, max(1, self.rows // min(BLOCK, draws - after)))):
            parts, owners = zip(*self._noisy(purpose, indices, stored, span, group), strict=True)
            scores = checked_scores(self.model, torch.cat(parts), self.classes)
            choice = torch.where(scores.isnan().any(dim=1), self.classes, scores.argmax(dim=1))
            slots = torch.cat(owners) * (self.classes + 1) + choice
            votes.scatter_add_(0, slots, torch.ones_like(slots))
        return votes.view(len(indices), self.classes + 1)[:, : self.classes]

    def _noisy(
        self, purpose: str, indices: list[int], stored: Tensor, span: Span, group: list[tuple[int, int]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        device = stored.device
        for row, number in group:
            start, stop, size = span.within(number)
            # Where a shorter block is another one, the block is drawn whole and the part taken out of it.
            shape = (stop if self.noise.grows(device) else size, *stored.shape[1:])
            noise = self.noise.block(self.key, purpose, indices[row], number, shape, device)[start:stop]
            # Not in place: a part of a block must not keep all of it in memory.
            yield (noise + stored[row]).div_(self.noise.levels), torch.full((stop - start,), row, device=device)
