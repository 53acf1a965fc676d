"""One parameter's gradients of m records, in the representation that is cheapest for the layer.

Clipping needs two things of a batch of gradients: each record's norm, and a weighted sum over the records. A linear layer can
give both from its inputs and errors without ever forming m matrices; a convolution usually forms them. What the training
loop sees is the same either way.

Precision
    Gradients are in the model's dtype. Norms and sums are taken in float64, because privacy rests on them: float32
    ``vector_norm`` under-states long norms (by 1.4e-3 at 25 million entries on a CPU), and a norm that is too small lets a
    record contribute more than the clipping bound. In float64 the sum of float32 gradients is right to about 1e-12.

Guarantees
    For gradients in float32 or lower precision, ``squared_norms()`` is never below the exact squared norm of what
    ``weighted_sum`` adds up. Proof: a float64 sum of n terms errs by at most n * 2**-53 times the sum of their absolute
    values, in whatever order it is taken; each representation adds more than that bound to its result.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_EPS = 2.0**-52  # twice the unit roundoff of float64, so that bounds of first order also cover the second
_SPARE_TERMS = 8  # the few operations around a sum (square root, squares, this correction itself)
# Elements of float64 scratch: one MiB on a CPU, where it stays in the cache; half a GiB on a GPU, where few kernels count more.
_BLOCK_ELEMENTS = {"cpu": 1 << 17, "other": 1 << 26}


def rounded_up(squares: Tensor, terms: int) -> Tensor:
    """A float64 sum of ``terms`` non-negative terms, raised by more than its rounding error can have lowered it."""
    return squares * (1.0 + (terms + _SPARE_TERMS) * _EPS)


class PerExampleGradient(ABC):
    """The gradients of m records with respect to one parameter."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squared Euclidean norm of each record's gradient: (m,) float64, never below the exact value."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over records of weight times gradient, for weights (m,) float64: float64, in the parameter's shape."""

    @abstractmethod
    def without(self, rows: Tensor) -> PerExampleGradient:
        """The same with exact zeros for the records marked in ``rows`` (m,) bool; their NaN or infinity is gone."""

    @abstractmethod
    def instantiate(self) -> Tensor:
        """All gradients as one tensor (m, *shape) in the model's dtype; for tests and oracles."""


@dataclass(frozen=True, eq=False)
class Instantiated(PerExampleGradient):
    """Gradients that are formed: ``values`` (m, *shape)."""

    values: Tensor

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        flat = _flat(self.values)
        squares = flat.new_empty(flat.shape[0], dtype=torch.float64)
        for block in _blocks(flat):
            squares[block] = torch.linalg.vector_norm(flat[block], dim=1, dtype=torch.float64).square()
        return rounded_up(squares, flat.shape[1])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See :class:`PerExampleGradient`."""
        flat = _flat(self.values)
        total = flat.new_zeros(flat.shape[1], dtype=torch.float64)
        for block in _blocks(flat):
            total += weights[block] @ flat[block].to(torch.float64)
        return total.view(self.values.shape[1:])

    def without(self, rows: Tensor) -> PerExampleGradient:
        """See :class:`PerExampleGradient`."""
        return self if _known_empty(rows) else Instantiated(_zeroed(self.values, rows))

    def instantiate(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        return self.values


@dataclass(frozen=True, eq=False)
class LinearFactors(PerExampleGradient):
    """Gradients of a weight (out, in) as sums over t of outer products of ``errors`` (m, T, out) and ``inputs`` (m, T, in).

    The norm is the Gram (ghost) norm: the sum over t and s of (e_t . e_s)(x_t . x_s).
    """

    inputs: Tensor
    errors: Tensor

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`.

        The terms of the Gram norm have both signs, so that its error is relative to (sum of |e_t||x_t|)**2, which can be far
        above the result; the bound that is added is in that unit.
        """
        gram_inputs, gram_errors = _gram(self.inputs), _gram(self.errors)
        total = (gram_inputs * gram_errors).sum((1, 2)).clamp(min=0)
        lengths = (gram_inputs.diagonal(dim1=1, dim2=2) * gram_errors.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        terms = self.inputs.shape[2] + self.errors.shape[2] + self.inputs.shape[1] ** 2
        return total + (terms + _SPARE_TERMS) * _EPS * lengths.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See :class:`PerExampleGradient`."""
        weighted = self.errors.to(torch.float64) * weights[:, None, None]
        return weighted.flatten(0, 1).T @ self.inputs.to(torch.float64).flatten(0, 1)

    def without(self, rows: Tensor) -> PerExampleGradient:
        """See :class:`PerExampleGradient`."""
        return self if _known_empty(rows) else LinearFactors(_zeroed(self.inputs, rows), _zeroed(self.errors, rows))

    def instantiate(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        return torch.bmm(self.errors.transpose(1, 2), self.inputs)


@dataclass(frozen=True, eq=False)
class EmbeddingFactors(PerExampleGradient):
    """Gradients of a table (rows, dim): ``errors`` (m, T, dim) belong to the table rows ``ids`` (m, T), which may repeat."""

    ids: Tensor
    errors: Tensor
    rows: int

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`. Errors of equal ids are added before they are squared."""
        tokens = self.ids.shape[1]
        errors = self.errors.to(torch.float64)
        norms = torch.linalg.vector_norm(self._summed_by_id(errors), dim=(1, 2))
        slack = tokens * _EPS * torch.linalg.vector_norm(errors, dim=2).sum(1)  # of the sums, whose terms may cancel
        return rounded_up((norms + slack).square(), tokens * errors.shape[2])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See :class:`PerExampleGradient`."""
        weighted = self.errors.to(torch.float64) * weights[:, None, None]
        total = weighted.new_zeros(self.rows, weighted.shape[2])
        return total.index_put_((self.ids.flatten(),), weighted.flatten(0, 1), accumulate=True)

    def without(self, rows: Tensor) -> PerExampleGradient:
        """See :class:`PerExampleGradient`."""
        return self if _known_empty(rows) else EmbeddingFactors(self.ids, _zeroed(self.errors, rows), self.rows)

    def instantiate(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        records, _, dim = self.errors.shape
        values = self.errors.new_zeros(records, self.rows, dim)
        return values.index_put_((_record_numbers(self.ids), self.ids), self.errors, accumulate=True)

    def _summed_by_id(self, errors: Tensor) -> Tensor:
        """(m, T, dim): in slot j of a record, the sum over the j-th distinct id. No table of all rows, no wait for a device.

        ``index_put_`` and not ``index_add_``, which adds in a varying order on a GPU.
        """
        order = self.ids.argsort(dim=1, stable=True)
        ordered = self.ids.gather(1, order)
        slots = torch.zeros_like(ordered)
        slots[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
        sums = torch.zeros_like(errors)
        ordered_errors = errors.gather(1, order[:, :, None].expand_as(errors))
        return sums.index_put_((_record_numbers(self.ids), slots), ordered_errors, accumulate=True)


@dataclass(frozen=True, eq=False)
class Rearranged(PerExampleGradient):
    """Another representation seen in the parameter's own shape: viewed as ``shape``, then its axes in the order ``axes``.

    A convolution is fastest with its weight in another order; only the sum, which is one parameter large, is put in place.
    """

    inner: PerExampleGradient
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        return self.inner.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See :class:`PerExampleGradient`."""
        return self.inner.weighted_sum(weights).reshape(self.shape).permute(self.axes)

    def without(self, rows: Tensor) -> PerExampleGradient:
        """See :class:`PerExampleGradient`."""
        return Rearranged(self.inner.without(rows), self.shape, self.axes)

    def instantiate(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        values = self.inner.instantiate()
        return values.reshape(values.shape[0], *self.shape).permute(0, *(axis + 1 for axis in self.axes))


def zero_gradient(parameter: Tensor, records: int) -> Instantiated:
    """The gradient of a parameter that took no part; takes no memory whatever the number of records."""
    return Instantiated(parameter.new_zeros(()).expand(records, *parameter.shape))


def _flat(values: Tensor) -> Tensor:
    """(m, everything else); the size is given, since -1 cannot be resolved for zero records."""
    return values.reshape(values.shape[0], math.prod(values.shape[1:]))


def _blocks(flat: Tensor) -> Iterator[slice]:
    """Ranges of records whose float64 copy is small."""
    records, size = flat.shape
    limit = _BLOCK_ELEMENTS["cpu" if flat.device.type == "cpu" else "other"]
    step = max(1, limit // max(1, size))
    return (slice(start, start + step) for start in range(0, records, step))


def _gram(factors: Tensor) -> Tensor:
    """Inner products in float64 of a record's T vectors: (m, T, T)."""
    factors = factors.to(torch.float64)
    return torch.bmm(factors, factors.transpose(1, 2))


def _zeroed(values: Tensor, rows: Tensor) -> Tensor:
    """Exact zeros in the marked records: selected, not multiplied, since 0 * NaN is NaN."""
    return values.masked_fill(rows.view(-1, *(1 for _ in values.shape[1:])), 0)


def _known_empty(rows: Tensor) -> bool:
    """Whether nothing is marked, where knowing is free: on a GPU the question itself would wait for the device."""
    return rows.device.type == "cpu" and not bool(rows.any())


def _record_numbers(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[0], device=ids.device)[:, None].expand_as(ids)
