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

    def count(self, purpose: str, indices: list[int], stored: Tensor, draws: int) -> Tensor:
        """Votes (inputs, classes) of ``draws`` noisy copies of each input; ``stored`` holds levels as float32."""
        device = stored.device
        # One more column than classes: draws that voted for nobody.
        votes = torch.zeros(len(indices) * (self.classes + 1), dtype=torch.int64, device=device)
        blocks = ((row, number) for row in range(len(indices)) for number in range(-(-draws // BLOCK)))
        while group := list(islice(blocks, max(1, self.rows // min(BLOCK, draws)))):
            parts, owners = zip(*self._noisy(purpose, indices, stored, draws, group), strict=True)
            scores = checked_scores(self.model, torch.cat(parts), self.classes)
            choice = torch.where(scores.isnan().any(dim=1), self.classes, scores.argmax(dim=1))
            slots = torch.cat(owners) * (self.classes + 1) + choice
            votes.scatter_add_(0, slots, torch.ones_like(slots))
        return votes.view(len(indices), self.classes + 1)[:, : self.classes]

    def _noisy(
        self, purpose: str, indices: list[int], stored: Tensor, draws: int, group: list[tuple[int, int]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for row, number in group:
            size = min(BLOCK, draws - number * BLOCK)
            noise = self.noise.block(self.key, purpose, indices[row], number, (size, *stored.shape[1:]), stored.device)
            yield (noise.add_(stored[row])).div_(self.noise.levels), torch.full((size,), row, device=stored.device)
