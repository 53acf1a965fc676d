"""The certified balls of a batch: where an attack may go, and which of those points can be stored at all.

A certificate speaks of storable inputs only (integers 0..levels), so only those can contradict it. Distances are measured on
the integers, in float64, and divided by the number of levels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twinproof.attacks.threat import Ball, ball_of, per_row

# Halvings of a scale: far finer than the steps at which another coordinate moves by one level.
_HALVINGS = 40


@dataclass(frozen=True)
class Balls:
    """Around each row of ``stored`` (levels, float64) a ball of ``radii`` in input units, in ``norm``.

    Guarantees
        Every point of ``storable`` is an integer in 0..levels in each coordinate, and no further from its row than asked for:
        the length that decides is the one that ``measure`` gives for the very same point.
    """

    norm: str
    stored: Tensor
    radii: Tensor
    levels: int

    @property
    def ball(self) -> Ball:
        """The norm's geometry."""
        return ball_of(self.norm)

    @property
    def inputs(self) -> Tensor:
        """What the network sees: float32 in [0, 1]."""
        return (self.stored / self.levels).float()

    def copies(self, count: int) -> Balls:
        """Each row ``count`` times, copies side by side."""
        return replace(
            self, stored=self.stored.repeat_interleave(count, dim=0), radii=self.radii.repeat_interleave(count, dim=0)
        )

    def measure(self, points: Tensor) -> Tensor:
        """Distances of stored ``points`` to their rows, in input units."""
        return self.ball.length(points - self.stored) / self.levels

    def inside(self, points: Tensor, share: float) -> Tensor:
        """Any points in [0, 1] units, brought into the range and into ``share`` of the radius; for steps of a search."""
        size = per_row(self.radii * share, points)
        centre = self.stored / self.levels
        delta = points.double().nan_to_num().clamp(0, 1) - centre
        # Norms scale: a ball of any size is the unit ball of rows divided by that size.
        return (centre + self.ball.project(delta / size, 1.0) * size).clamp(0, 1).float()

    def random(self, share: float, generator: torch.Generator) -> Tensor:
        """A random point of each ball of ``share`` of the radius, within the range."""
        inputs = self.inputs
        away = self.ball.random(inputs, 1.0, generator) * per_row(self.radii * share, inputs).float()
        return self.inside(inputs + away, share)

    def unit(self, directions: Tensor) -> Tensor:
        """Directions at length 1 in the norm, in float64; a row of zeros, or with a NaN in it, becomes zero."""
        finite = per_row(directions.isfinite().flatten(1).all(dim=1), directions)
        known = torch.where(finite, directions, 0.0).double()
        length = self.ball.length(known)
        return known / per_row(torch.where(length > 0, length, 1.0), known)

    def storable(self, directions: Tensor, lengths: Tensor) -> Tensor:
        """The storable point along each direction that is as far away as it may be, and at most ``lengths``.

        The direction is scaled and rounded to levels, at the largest scale at which the rounded point still fits: cutting
        coordinates off towards the input instead would lose all that move by less than a level.
        """
        along = self.unit(directions) * self.levels
        dimension = along[0].numel() if len(along) else 1
        low, high = torch.zeros_like(lengths), 2 * lengths + dimension / self.levels
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fits = self.measure(self._rounded(along, middle)) <= lengths
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        return self._rounded(along, low)

    def _rounded(self, along: Tensor, scale: Tensor) -> Tensor:
        # Each coordinate moves away from the row as the scale grows, and clamping stops it: lengths grow with the scale.
        return (self.stored + (along * per_row(scale, along)).round()).clamp(0, self.levels)
