"""Slope and curvature of the loss at each input: the gradient's norm and the Hessian's largest eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof import checks
from twinproof.errors import ModelError
from twinproof_papers.example_metrics.subject import (
    check_subject,
    in_batches,
    lengths,
    measuring,
    per_row,
    row_losses,
    rows_at_once,
)


def input_gradient_norms(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch_size: int | None = None) -> Tensor:
    """The l2 norm over all coordinates of d CE(x, y) / dx at each clean input: (examples,), float64, on the CPU."""
    device = check_subject(model, inputs, batch_size)
    norms = []
    with measuring(model, device), torch.enable_grad():
        for rows in in_batches(len(inputs), rows_at_once(model, inputs, device, batch_size)):
            points = inputs[rows].detach().to(device).requires_grad_()
            losses = row_losses(model, points, labels[rows].to(device))
            (slopes,) = torch.autograd.grad(losses.sum(), points)
            norms.append(lengths(slopes).cpu())
    return torch.cat(norms)


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
        checks.positive(tolerance=self.tolerance)
        checks.whole(1, most_steps=self.most_steps)


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


# Zero divided by it is still zero.
_TINY = torch.finfo(torch.float64).tiny

RowLosses = Callable[[Tensor, Tensor], Tensor]
"""(inputs, labels) -> (rows,), where a row's loss is a function of its own input and label."""


@dataclass(frozen=True)
class HessianNorms:
    """(examples,) each: the largest |eigenvalue|, the largest eigenvalue, their residuals, and whether both settled."""

    spectral: Tensor
    largest: Tensor
    spectral_residual: Tensor
    largest_residual: Tensor
    converged: Tensor


def input_hessian_norms(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    settings: Iteration | None = None,
    batch_size: int | None = None,
) -> HessianNorms:
    """Of d^2 CE(x, y) / dx^2 at each clean input, by products with vectors: no Hessian is ever written out. On the CPU.

    The kinks of ReLU and max-pooling have no curvature here, as in every automatic derivative.
    """
    device = check_subject(model, inputs, batch_size)
    chosen = settings or Iteration()
    parts = []
    with measuring(model, device):
        for rows in in_batches(len(inputs), rows_at_once(model, inputs, device, batch_size)):
            points, truth = inputs[rows].detach().to(device), labels[rows].to(device)
            parts.append(hessian_norms_of(lambda x, y: row_losses(model, x, y), points, truth, chosen))
    return HessianNorms(*(torch.cat([getattr(part, name).cpu() for part in parts]) for name in HessianNorms.__annotations__))


def hessian_norms_of(losses: RowLosses, inputs: Tensor, labels: Tensor, settings: Iteration) -> HessianNorms:
    """The same for any losses that are twice differentiable, all rows at once.

    - Per row: |largest| <= spectral <= the true spectral norm, and largest <= the true largest eigenvalue, but for the
      rounding of the products. Both come from unit vectors (|H v| and v'H v), so that no iteration can overstate them.
    - Some eigenvalue lies within each residual of its value, in magnitude for the spectral norm. Proof for that one: H^2
      has an eigenvalue m with |m - s^2| <= R, s = |H v| and R = |H^2 v - s^2 v|, and |sqrt(m) - s| (sqrt(m) + s) =
      |m - s^2| gives |sqrt(m) - s| <= R / s, which is the residual reported.
    - A row's numbers do not depend on the other rows.
    """
    start = start_vectors(inputs, settings.seed)
    none = torch.zeros(len(inputs), dtype=torch.float64, device=inputs.device)

    def products_of(rows: Tensor) -> Operator:
        return _products(losses, inputs[rows], labels[rows])

    # On H^2 and not on H: eigenvalues +a and -a would keep an iteration on H turning for ever.
    squares = largest_eigenvalues(lambda rows: _squared(products_of(rows)), start, none, settings)
    _refuse_unusable(squares.value)
    spectral = squares.value.clamp(min=0).sqrt()
    residual = torch.where(spectral > 0, squares.residual / spectral.clamp(min=_TINY), squares.residual)
    signed = _signed(products_of, start, squares, spectral, settings)
    # An iteration that was cut short may have seen less than the other one.
    seen_more = signed.value.abs() > spectral
    return HessianNorms(
        spectral=torch.where(seen_more, signed.value.abs(), spectral),
        largest=signed.value,
        spectral_residual=torch.where(seen_more, signed.residual, residual),
        largest_residual=signed.residual,
        converged=squares.converged & signed.converged,
    )


def _signed(
    products_of: Callable[[Tensor], Operator], start: Tensor, squares: Eigenvalues, spectral: Tensor, settings: Iteration
) -> Eigenvalues:
    """The largest eigenvalue: that of the spectral norm where it is positive, else by iteration on H + shift."""
    vectors = squares.vectors.clone()
    images = products_of(torch.arange(len(start), device=start.device))(vectors)
    value = (vectors * images).flatten(1).sum(dim=1)
    residual = lengths(images - per_row(value, vectors) * vectors)
    done = squares.converged & (residual <= settings.tolerance * spectral) & (value >= 0)
    rest = (~done).nonzero()[:, 0]
    if len(rest):
        # H + |H| has no negative eigenvalue, so that its largest one is that of H, shifted.
        shift = spectral[rest]
        found = largest_eigenvalues(lambda rows: _shifted(products_of(rest[rows]), shift[rows]), start[rest], shift, settings)
        value[rest], residual[rest], done[rest] = found.value, found.residual, found.converged
        vectors[rest] = found.vectors
    return Eigenvalues(value, residual, done, vectors)


def _products(losses: RowLosses, inputs: Tensor, labels: Tensor) -> Operator:
    """Each row's Hessian times a vector: the slopes' graph is built once, each product is one backward pass through it."""
    with torch.enable_grad():
        points = inputs.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(losses(points, labels).sum(), points, create_graph=True)

    def multiply(vectors: Tensor) -> Tensor:
        if not slopes.requires_grad:  # losses without curvature
            return torch.zeros_like(vectors)
        (images,) = torch.autograd.grad(
            slopes, points, vectors.to(points.dtype), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return images.double()

    return multiply


def _squared(multiply: Operator) -> Operator:
    def twice(vectors: Tensor) -> Tensor:
        images = multiply(vectors)
        length = per_row(lengths(images), images)
        # At length 1 in between: the square of a tiny curvature is not a number that float32 has.
        return multiply(images / length.clamp(min=_TINY)) * length

    return twice


def _shifted(multiply: Operator, shift: Tensor) -> Operator:
    return lambda vectors: multiply(vectors) + per_row(shift, vectors) * vectors


def _refuse_unusable(values: Tensor) -> None:
    broken = ~values.isfinite()
    if bool(broken.any()):
        raise ModelError(
            "the curvature of the loss is not finite",
            where=f"row {int(broken.nonzero()[0])} of the batch",
            got=f"{int(broken.sum())} of {len(values)} rows",
            wanted="finite second derivatives",
            fix="check the weights; the square root has none at 0",
        )
