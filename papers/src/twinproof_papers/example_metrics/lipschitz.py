"""Local Lipschitz constants: how far the output moves, in l1, for a small move of the input, in linf.

All numbers are ratios at points that were visited, so they are estimates from below and bound nothing. Three ways to choose
the point, as the published one does not do what it says:

- ``code``: the loop that DP-CERT took over from Yang et al. (NeurIPS 2020), as both released it. It adds the sign of the slope
  of *minus* the ratio, that is, it goes down, and ends where the ratio is small;
- ``loop``: the same loop with the sign that the papers describe, going up;
- ``search``: from the end of that loop and from random corners, on to the corner of the box that the slope points at, again
  and again; the largest ratio on the way, over exact distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from twinproof import checks
from twinproof.errors import DataError, ModelError
from twinproof_papers.example_metrics.subject import check_subject, in_batches, lengths, measuring, rows_at_once

# Keeps the published ratio finite: added to every coordinate of the difference.
_OFFSET = 1e-6

Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LipschitzSettings:
    """The published loop's numbers (``size`` is the box's half width), and how far our search goes on from there."""

    size: float = 0.01
    steps: int = 10
    step_size: float = 0.003
    start_deviation: float = 0.001
    corner_steps: int = 8
    restarts: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive(size=self.size, step_size=self.step_size, start_deviation=self.start_deviation)
        checks.whole(1, steps=self.steps, corner_steps=self.corner_steps)
        checks.whole(0, restarts=self.restarts, seed=self.seed)


@dataclass(frozen=True)
class LipschitzEstimates:
    """(examples,) each, in float64 on the CPU; see the module for the three ways."""

    code: Tensor
    loop: Tensor
    search: Tensor


def local_lipschitz(
    features: nn.Module, inputs: Tensor, *, settings: LipschitzSettings | None = None, batch_size: int | None = None
) -> LipschitzEstimates:
    """The three estimates at each input; ``features`` is the network (logits) or its ``penultimate`` layer.

    - Every point that is compared lies in the box around its input and in [0, 1] (but for rounding): ``search`` is never
      above the true constant there, and never below the exact ratio at the end of ``loop``.
    - A number depends on its own input, its place among the inputs and the seed, not on the other inputs or the batches -
      but for the rounding of the network's arithmetic, which ``code`` magnifies.
    - Noise layers are silent, the network runs in eval mode and is left as found.
    """
    chosen = settings or LipschitzSettings()
    device = check_subject(features, inputs, batch_size)
    if not bool(((inputs >= 0) & (inputs <= 1)).all()):
        got = f"{float(inputs.min()):g}..{float(inputs.max()):g}"
        raise DataError("inputs lie outside their range", where="inputs", got=got, wanted="0..1")
    # numpy's streams go on where the batch before ended, so that the size of the batches changes nothing.
    noise, corners = (np.random.default_rng((chosen.seed, purpose)) for purpose in (0, 1))
    parts = []
    with measuring(features, device):
        for rows in in_batches(len(inputs), rows_at_once(features, inputs, device, batch_size)):
            points = inputs[rows].detach().to(device)
            deviates = torch.from_numpy(noise.standard_normal(points.shape)).to(points)
            signs = torch.from_numpy(corners.integers(0, 2, (len(points), chosen.restarts, *points.shape[1:]))).to(points)
            parts.append(_estimates(features, points, points + chosen.start_deviation * deviates, 2 * signs - 1, chosen))
    found = LipschitzEstimates(*(torch.cat([getattr(part, field.name).cpu() for part in parts]) for field in fields(parts[0])))
    _refuse_unusable(found)
    return found


def _estimates(
    features: Features, points: Tensor, start: Tensor, signs: Tensor, settings: LipschitzSettings
) -> LipschitzEstimates:
    with torch.no_grad():
        outputs = _flat(features, points)
    down, up = (_walk(features, points, outputs, start, settings, climb=climb) for climb in (False, True))
    best = _exact_ratios(features, points, outputs, up)
    for begin in (up, *((points + settings.size * corner).clamp(0, 1) for corner in signs.unbind(1))):
        best = torch.maximum(best, _corner_search(features, points, outputs, begin, settings))
    with torch.no_grad():
        code, loop = (_published_ratios(features, points, outputs, end).double() for end in (down, up))
    return LipschitzEstimates(code, loop, best)


def _walk(
    features: Features, points: Tensor, outputs: Tensor, start: Tensor, settings: LipschitzSettings, *, climb: bool
) -> Tensor:
    """The published loop. It takes the slope of the batch's mean; the sum has the same signs, whatever the batch."""
    here, pace = start, settings.step_size if climb else -settings.step_size
    for _ in range(settings.steps):
        slope = _slope(lambda x: _published_ratios(features, points, outputs, x), here)
        moved = (here + pace * slope.sign() - points).clamp(-settings.size, settings.size)
        here = (points + moved).clamp(0, 1)
    return here


def _corner_search(features: Features, points: Tensor, outputs: Tensor, begin: Tensor, settings: LipschitzSettings) -> Tensor:
    """The largest exact ratio on a way over corners of the box, each where the slope of the output's distance points."""
    here, best = begin, _exact_ratios(features, points, outputs, begin)
    for _ in range(settings.corner_steps):
        slope = _slope(lambda x: (_flat(features, x) - outputs).abs().sum(dim=1), here)
        corner = (points + settings.size * slope.sign()).clamp(0, 1)
        here = torch.where(slope == 0, here, corner)
        best = torch.maximum(best, _exact_ratios(features, points, outputs, here))
    return best


def _slope(values: Callable[[Tensor], Tensor], here: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = here.detach().requires_grad_()
        (slope,) = torch.autograd.grad(values(leaf).sum(), leaf)
    return slope


def _flat(features: Features, points: Tensor) -> Tensor:
    return features(points).flatten(1)


def _published_ratios(features: Features, points: Tensor, outputs: Tensor, others: Tensor) -> Tensor:
    """l1 of the outputs' difference over linf of the inputs' difference plus an offset, in the network's precision."""
    moved = (outputs - _flat(features, others)).abs().sum(dim=1)
    apart: Tensor = torch.linalg.vector_norm((points - others).flatten(1) + _OFFSET, ord=math.inf, dim=1)
    return moved / apart


@torch.no_grad()
def _exact_ratios(features: Features, points: Tensor, outputs: Tensor, others: Tensor) -> Tensor:
    apart = lengths(points.double() - others.double(), math.inf)
    moved = lengths(_flat(features, others).double() - outputs.double(), 1)
    return torch.where(apart > 0, moved / apart.clamp(min=torch.finfo(torch.float64).tiny), 0.0)


def _refuse_unusable(found: LipschitzEstimates) -> None:
    broken = ~(found.code.isfinite() & found.loop.isfinite() & found.search.isfinite())
    if bool(broken.any()):
        raise ModelError(
            "the outputs of the network are not finite",
            where=f"near input {int(broken.nonzero()[0])}",
            got=f"{int(broken.sum())} of {len(broken)} inputs",
            wanted="finite numbers",
            fix="check the weights and the range of the inputs",
        )
