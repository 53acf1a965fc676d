"""The adversarial batch of Algorithm 1, lines 6 to 11: the next batch in thirds, one attack for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from twinproof.training.published_stobatch.trainers import WHOLE_BATCH, Part
from twinproof.training.stobatch import ATTACKS


@dataclass(frozen=True)
class PrintedAttacks:
    """Attacks as in Eq. 8: ``steps`` steps of size / steps, away from the class that is predicted at each of them.

    Points are not brought back into the range of the inputs: with the fixed draw they lie outside it anyway.
    """

    steps: int

    def __call__(
        self, model: nn.Module, inputs: Tensor, size: float, generator: torch.Generator, part: Part = WHOLE_BATCH
    ) -> Tensor:
        """(m, *shape) -> attacked inputs of one worker's ``part``, in the order of ``rows_of``; third l by attack l.

        Guarantees
            Starts are drawn for the whole batch: the points of a record are the same whichever worker makes them.
        """
        mine, starts, decays = [], [], []
        for attack, rows in zip(ATTACKS, torch.tensor_split(inputs, len(ATTACKS)), strict=True):
            begun = rows
            if attack.random_start:
                drawn = torch.rand(rows.shape, generator=generator, device=rows.device, dtype=rows.dtype)
                begun = rows + size * (2 * drawn - 1)
            own = part.of(rows)
            mine.append(own)
            starts.append(part.of(begun))
            decays.append(torch.full((len(own), *(1 for _ in rows.shape[1:])), attack.decay, device=rows.device))
        return self._attacked(model, torch.cat(mine), torch.cat(starts), size, torch.cat(decays))

    def _attacked(self, model: nn.Module, inputs: Tensor, starts: Tensor, size: float, decays: Tensor) -> Tensor:
        """All attacks walk together, which the network allows because it does not mix rows: a third of the passes."""
        points, gathered = starts, torch.zeros_like(inputs)
        for _ in range(self.steps):
            slope = _slope(model, points)
            lengths = slope.abs().flatten(1).sum(dim=1).clamp_min(torch.finfo(slope.dtype).tiny)
            gathered = decays * gathered + slope / lengths.view(decays.shape)
            points = points + (size / self.steps) * gathered.sign()
            points = torch.minimum(torch.maximum(points, inputs - size), inputs + size)
        return points


def rows_of(batch: Tensor, part: Part) -> Tensor:
    """One worker's rows of an attacked batch: its part of each attack's third."""
    return torch.cat([part.of(rows) for rows in torch.tensor_split(batch, len(ATTACKS))])


def _slope(model: nn.Module, points: Tensor) -> Tensor:
    leaf = points.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(leaf)
        loss = cross_entropy(logits, logits.detach().argmax(dim=1), reduction="sum")
    return torch.autograd.grad(loss, leaf)[0]
