"""The adversarial batch of Algorithm 1, lines 6 to 11: the next batch in thirds, one attack for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from twinproof.training.adversarial_ensemble import ATTACKS, Attack


@dataclass(frozen=True)
class PrintedAttacks:
    """Attacks as in Eq. 8: ``steps`` steps of size / steps, away from the class that is predicted at each of them.

    Points are not brought back into the range of the inputs: with the fixed draw they lie outside it anyway.
    """

    steps: int

    def __call__(self, model: nn.Module, inputs: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """(m, *shape) -> attacked inputs, in the order of the records; part l of them by attack l."""
        parts = torch.tensor_split(inputs, len(ATTACKS))
        pairs = zip(ATTACKS, parts, strict=True)
        return torch.cat([self._attacked(model, part, size, attack, generator) for attack, part in pairs])

    def _attacked(self, model: nn.Module, inputs: Tensor, size: float, attack: Attack, generator: torch.Generator) -> Tensor:
        points, gathered = inputs, torch.zeros_like(inputs)
        if attack.random_start:
            start = torch.rand(inputs.shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
            points = inputs + size * (2 * start - 1)
        for _ in range(self.steps):
            slope = _slope(model, points)
            lengths = slope.abs().flatten(1).sum(dim=1).clamp_min(torch.finfo(slope.dtype).tiny)
            gathered = attack.decay * gathered + slope / lengths.view(-1, *(1 for _ in slope.shape[1:]))
            points = points + (size / self.steps) * gathered.sign()
            points = torch.minimum(torch.maximum(points, inputs - size), inputs + size)
        return points


def _slope(model: nn.Module, points: Tensor) -> Tensor:
    leaf = points.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(leaf)
        loss = cross_entropy(logits, logits.detach().argmax(dim=1), reduction="sum")
    return torch.autograd.grad(loss, leaf)[0]
