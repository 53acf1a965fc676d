"""Bringing attacked inputs back to the levels that inputs are stored on, without leaving the ball.

An attack moves an input to numbers that no file can hold, and the certificate speaks of storable inputs. Rounding everything
towards the original would be safe and would undo the attack where levels are coarse: on 16 levels, most coordinates of a
small l2 perturbation are shorter than one level. So each coordinate is first rounded towards the original, and then the
coordinates that lost most are rounded away from it again, one after the other, for as long as the ball allows.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from twinproof.errors import CheckFailed

# A float32 of k / levels times levels is off by less, for up to 65,535 levels; a smaller move was none.
_NO_MOVE = 1e-2
# Pulled in by a billionth first, so that float rounding cannot leave a row one unit over an exact budget.
_INWARDS = 1 - 1e-9


def stored_inside(attacked: Tensor, original: Tensor, levels: int, norm: str, size: float) -> Tensor:
    """``attacked`` (floats in [0, 1]) as stored levels (int64) within ``size`` of ``original`` (stored levels).

    Guarantees
        In exact arithmetic, with ``size`` taken as the decimal that it prints as: the result lies within the ball around the
        original, and each coordinate lies within one level of the attacked one, on the side where the attack moved it.
        Proof: moves are whole levels and the budget is an integer; what is spent is counted before it is spent, and
        ``CheckFailed`` is raised where the sum is over it in the end.
    """
    start = original.to(torch.int64)
    wanted = (attacked.double() * levels - start.double()) * _INWARDS
    steps = wanted.abs().floor().to(torch.int64)
    lost = (wanted.abs() - steps).flatten(1)
    grown = _grown(steps.flatten(1), lost, norm, budget(norm, size, levels)).view_as(start)
    moved = (start + wanted.sign().to(torch.int64) * grown).clamp(0, levels)
    over = spent(moved - start, norm) > budget(norm, size, levels)
    if bool(over.any()):
        raise CheckFailed(
            "rounding to stored levels left the ball",
            where=f"{norm} of size {size}, row {int(over.nonzero()[0])}",
            got=f"{int(over.sum())} of {len(over)} rows outside",
            wanted="every row inside",
        )
    return moved


def budget(norm: str, size: float, levels: int) -> int:
    """The most that ``spent`` may be: whole levels for linf and l1, their square for l2."""
    in_levels = Fraction(repr(float(size))) * levels
    return math.floor(in_levels**2 if norm == "l2" else in_levels)


def spent(moves: Tensor, norm: str) -> Tensor:
    """Each row's largest move, sum of moves, or sum of their squares, in whole levels."""
    rows = moves.flatten(1).abs()
    if norm == "linf":
        return rows.amax(dim=1)
    return rows.square().sum(dim=1) if norm == "l2" else rows.sum(dim=1)


def lengths_of(moves: Tensor, norm: str, levels: int) -> list[float]:
    """The length of each row of ``moves`` (in stored levels), in the units of the inputs."""
    totals = spent(moves, norm).tolist()
    return [(math.sqrt(total) if norm == "l2" else float(total)) / levels for total in totals]


def _grown(steps: Tensor, lost: Tensor, norm: str, most: int) -> Tensor:
    """``steps`` with one more where it is affordable, those that lost most first."""
    movable = lost >= _NO_MOVE
    if norm == "linf":
        return steps + (movable & (lost >= 0.5) & (steps < most)).to(steps.dtype)
    price = torch.where(movable, 2 * steps + 1 if norm == "l2" else torch.ones_like(steps), 0)
    left = most - spent(steps, norm)
    order = torch.where(movable, lost, -1.0).argsort(dim=1, descending=True, stable=True)
    affordable = price.gather(1, order).cumsum(dim=1) <= left.unsqueeze(1)
    chosen = torch.zeros_like(movable).scatter(1, order, affordable)
    return steps + (chosen & movable).to(steps.dtype)
