"""The largest eigenvalues of many symmetric operators at once, by power iteration, each with its residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.evaluation.example_metrics.subject import lengths, per_row

Operator = Callable[[Tensor], Tensor]
"""(rows, *shape) to the same shape in float64; row i is multiplied by the i-th symmetric matrix."""

# Steps before the rows that are done are left out, so that a few slow ones do not keep all the others busy.
_ROUND = 32
# An eigenvalue this small beside its shift need not be known to more digits: float32 products do not have them.
_SMALLEST_SHARE = 1e-2


@dataclass(frozen=True)
class Iteration:
    """When a power iteration stops: at a residual of ``tolerance`` times the eigenvalue, or after ``most_steps``.

    ``seed`` gives the one start vector that all examples share, so that a result depends on no other example.
    """

    tolerance: float = 1e-3
    most_steps: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance > 0):
            raise ConfigError("the tolerance cannot be used", where="tolerance", got=self.tolerance, wanted="above 0, finite")
        if self.most_steps < 1:
            raise ConfigError("there are no steps", where="most_steps", got=self.most_steps, wanted="at least 1")


@dataclass(frozen=True)
class Eigenvalues:
    """For each operator: the value, the residual |A v - value v| of its unit vector v, and whether it was small enough."""

    value: Tensor
    residual: Tensor
    converged: Tensor
    vectors: Tensor


def start_vectors(like: Tensor, seed: int) -> Tensor:
    """The same random unit vector for every row of ``like``, in float64; drawn on the CPU, so that devices agree."""
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn((1, *like.shape[1:]), generator=generator, dtype=torch.float64)
    return (one / lengths(one)).to(like.device).expand(like.shape)


def largest_eigenvalues(
    operator_of: Callable[[Tensor], Operator], start: Tensor, shift: Tensor, settings: Iteration
) -> Eigenvalues:
    """Of A_i = ``operator_of(rows)`` (positive semi-definite), the largest eigenvalue minus ``shift`` (rows,).

    Guarantees
        The value is v'Av - shift of a unit vector v: never above the largest eigenvalue of A - shift (but for rounding). Some
        eigenvalue lies within ``residual`` of it (the residual bound of symmetric matrices). That it is the largest one is
        what the iteration tends to and cannot prove. A row's result does not depend on the other rows.
    """
    vectors = start.clone()
    value, residual = torch.zeros_like(shift), torch.full_like(shift, math.inf)
    converged = torch.zeros_like(shift, dtype=torch.bool)
    left, steps = torch.arange(len(start), device=start.device), settings.most_steps
    while len(left) and steps > 0:
        found = _some_steps(operator_of(left), vectors[left], shift[left], settings.tolerance, min(_ROUND, steps))
        value[left], residual[left], converged[left] = found.value, found.residual, found.converged
        vectors[left] = found.vectors
        left, steps = left[~found.converged], steps - _ROUND
    return Eigenvalues(value, residual, converged, vectors)


def _some_steps(operator: Operator, vectors: Tensor, shift: Tensor, tolerance: float, steps: int) -> Eigenvalues:
    """At most ``steps`` steps from ``vectors``; a vector that is good enough stays."""
    settled = torch.zeros_like(shift, dtype=torch.bool)
    for _ in range(steps):
        images = operator(vectors)
        rayleigh = (vectors * images).flatten(1).sum(dim=1)
        value, residual = rayleigh - shift, lengths(images - per_row(rayleigh, vectors) * vectors)
        # Relative to the value and not to the shift: in the middle of the spectrum every residual is small beside the shift.
        settled = settled | (residual <= tolerance * torch.maximum(value.abs(), _SMALLEST_SHARE * shift))
        if bool(settled.all()):
            break
        advanced = images / per_row(lengths(images).clamp(min=torch.finfo(torch.float64).tiny), images)
        vectors = torch.where(per_row(settled, vectors), vectors, advanced)
    return Eigenvalues(value, residual, settled, vectors)
